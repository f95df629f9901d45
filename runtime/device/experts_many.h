/* Experts of more rows than moe_decode takes at once, on a device: rows sorted by expert, tiles
 * of tensor cores, and the sum back. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPERTS_MANY_H
#define KT_RUNTIME_EXPERTS_MANY_H

#include "runtime/device/device_product.h"

/* Sizes are fixed by init. */
typedef struct kt_experts_many {
    kt_device_kernel permute, round;
    kt_device_kernel gate_up[KT_DEVICE_TILE_SIZES], down[KT_DEVICE_TILE_SIZES];
    int64_t experts, slots, n, k;
    int64_t rows; /* at once: what they leave between gate and the sum fits in scratch */
} kt_experts_many;

/* What a step brings: rows of x and out, and [rows, slots] numbers of experts on this device (-1 =
 * none) and weights. */
typedef struct kt_experts_many_call {
    const kt_device_matrices *gate, *up, *down;
    kt_device_view in, out;
    const int32_t *id;
    const float *route;
    int64_t rows;
    bool accumulate;
} kt_experts_many_call;

/* For init: code for gate and up [experts, n, k] and down [experts, k, n], and scratch for `slots`
 * experts a row. */
kt_status kt_experts_many_init(kt_device_step *s, const kt_device_matrices *gate,
                               const kt_device_matrices *down, int64_t slots, kt_experts_many *out,
                               kt_err *err);
/* For enqueue. */
kt_status kt_experts_many_put(kt_device_step *s, const kt_experts_many *m,
                              const kt_experts_many_call *call, kt_err *err);

#endif
