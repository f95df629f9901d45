/* Attention of a step's rows on a device: what ATTEND and ATTEND_SPARSE share.
 *
 * Layers of one shape share codes, and the lists of tiles that the host makes once a step. Few and
 * many rows of a sequence go by different kernels (kernels/cuda/attn_plan.h has the rule); where
 * values are the beginning of keys' rows, one kernel has both.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_ATTN_H
#define KT_RUNTIME_DEVICE_ATTN_H

#include "kernels/cuda/attn_plan.h"
#include "runtime/device/device_op.h"

/* One of the ways: a kernel, and what of the current step goes by it. */
typedef struct kt_device_attn_way {
    const kt_cuda_kernel *kernel; /* NULL = there is no such way */
    kt_config config;
    const kt_device_code *code;
    int pairs; /* of a tile */
    const kt_attn_tile *tile;
    int64_t tiles, longest; /* longest: keys that one of its rows meets */
    int32_t split_keys, splits;
} kt_device_attn_way;

typedef struct kt_device_attn {
    kt_attn_shape shape;
    int32_t topk;  /* of picked keys: tiles are of one row; 0 = none are picked */
    uint64_t step; /* whose lists these are */
    bool has_lists;
    kt_attn_tile *room; /* host's */
    kt_device_attn_way few, many;
} kt_device_attn;

/* Why a node's attention cannot run on the target, or NULL. */
const char *kt_device_attn_refuse(const kt_device_ask *ask, const kt_node *n);

/* What the node uses, shared with earlier nodes of its shape; n->state begins with a pointer to it.
 * Asks for scratch. */
kt_status kt_device_attn_init(kt_device_node *n, int32_t topk, kt_device_attn **out, kt_err *err);

/* Launches for all rows of the step. sink: device [heads], or NULL. picked: of rows that see more keys than topk, device [rows,
 * topk]; NULL = every row meets all keys. Uses the first kt_device_attn_scratch bytes of the
 * step's scratch. */
kt_status kt_device_attn_put(kt_device_node *n, kt_device_attn *a, const float *sink,
                             const int32_t *picked, kt_err *err);
size_t kt_device_attn_scratch(const kt_device_attn *a, const kt_device_step *d);

#endif
