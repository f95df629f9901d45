/* The experts of a layer that lie on a device, or its one shared expert, by the kernels of a
 * ladder. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_EXPERTS_H
#define KT_DEVICE_DEVICE_EXPERTS_H

#include "dispatch/device/device_kernel.h"
#include "kernels/cuda/moe_calls.h"

/* Gate and up [count, n, k], down [count, k, n]; biases of the ending in the same order. */
typedef struct kt_device_experts {
    kt_device_matrices gate, up, down;
    kt_dev_ending ending;
    int64_t slots; /* experts of a row at most */
    int64_t rows;  /* at once: what they leave between gate and the sum fits in scratch */
    kt_device_ladder ladder;
    kt_device_kernel gate_up[KT_DEVICE_RUNGS], put_down[KT_DEVICE_RUNGS];
    kt_device_kernel permute, round, quantise_x, quantise_h; /* where needed */
} kt_device_experts;

/* What a step brings: rows of x and out, and [rows, slots] places of experts here (-1 = none) and
 * weights. A row names an expert at most once. */
typedef struct kt_device_experts_call {
    kt_device_view in, out;
    const int32_t *id;
    const float *route;
    int64_t rows;
    bool accumulate;
    void *scratch; /* kt_device_experts_scratch bytes, aligned to 256 */
} kt_device_experts_call;

kt_device_job kt_device_experts_job(const kt_device_matrices *gate, const kt_device_matrices *down,
                                    int64_t slots, uint32_t encodings);
/* Code for calls of at most max_rows rows; gate, up, down, ending, slots of *out are set before. */
kt_status kt_device_experts_make(kt_device *d, const kt_device_ladder *ladder, int64_t max_rows,
                                 kt_device_experts *out, kt_err *err);
size_t kt_device_experts_scratch(const kt_device_experts *e);
/* Puts the launches into KT_STREAM_MAIN. */
kt_status kt_device_experts_put(kt_device *d, const kt_device_experts *e,
                                const kt_device_experts_call *call, kt_err *err);
/* The same with weights elsewhere, of the same sizes and formats; count may be smaller. */
kt_status kt_device_experts_put_of(kt_device *d, const kt_device_experts *e, const uint8_t *gate,
                                   const uint8_t *up, const uint8_t *down,
                                   const kt_device_experts_call *call, kt_err *err);

#endif
