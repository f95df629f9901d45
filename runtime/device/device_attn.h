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

/* A way by the kernel of this name, if it has a config for the shape. */
bool kt_device_attn_find(const char *name, const kt_attn_shape *shape, const kt_cuda_target *target,
                         kt_device_attn_way *out);
/* The format of the cache as the kernels' constant. */
int32_t kt_device_attn_cache(kt_weight_format format);
int kt_device_processors(const kt_device_step *d);
/* Its launches for the tiles that it has; common: the rest of the call. */
kt_status kt_device_attn_put_way(kt_device_step *d, int32_t kv_heads, const kt_device_attn_way *way,
                                 const kt_attn_paged *common, kt_err *err);
/* A plane's keys (which = 0) or values (1) on the device. */
kt_attn_kept kt_device_attn_kept(const kt_device_step *d, int cache, int plane, int which);

typedef struct kt_device_attn {
    kt_attn_shape shape;
    int32_t topk;  /* of picked keys: tiles are of one row; 0 = none are picked */
    int64_t most;  /* sequences with more keys are not met; 0 = all are */
    uint64_t step; /* whose lists these are */
    bool has_lists;
    kt_attn_tile *room; /* host's */
    kt_device_attn_way few, many;
} kt_device_attn;

/* Why a node's attention cannot run on the target, or NULL. */
const char *kt_device_attn_refuse(const kt_device_ask *ask, const kt_node *n);

/* What the node uses, shared with earlier nodes of its shape; n->state begins with a pointer to it.
 * Asks for scratch. */
kt_status kt_device_attn_init(kt_device_node *n, int32_t topk, int64_t most, kt_device_attn **out,
                              kt_err *err);

/* Scores of the node's sinks, device [heads]; NULL = it has none. */
kt_status kt_device_attn_sinks(kt_device_node *n, const float **out, kt_err *err);

/* Launches for all rows of the step. sink: device [heads], or NULL. picked: of rows that see more
 * keys than topk, device [rows, topk]; NULL = every row meets all keys. Uses the first
 * kt_device_attn_scratch bytes of the step's scratch. */
kt_status kt_device_attn_put(kt_device_node *n, kt_device_attn *a, const float *sink,
                             const int32_t *picked, kt_err *err);
size_t kt_device_attn_scratch(const kt_device_attn *a, const kt_device_step *d);

#endif
