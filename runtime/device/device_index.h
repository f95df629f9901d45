/* Which keys, entries or blocks the rows of a step meet, by an indexer on a device
 * (kernels/cuda/attn_index.cu). Scores of some rows at a time go to scratch.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_INDEX_H
#define KT_RUNTIME_DEVICE_INDEX_H

#include "kernels/cuda/attn_calls.h"
#include "runtime/device/device_op.h"

typedef struct kt_device_index {
    const kt_cuda_kernel *kernel;
    kt_config config;
    const kt_device_code *code;
} kt_device_index;

/* Why it cannot run on the target, or NULL. */
const char *kt_device_index_refuse(const kt_device_ask *ask, const kt_index_rule *rule);
kt_status kt_device_index_init(kt_device_step *d, const kt_index_rule *rule, kt_device_index *out,
                               kt_err *err);
/* Bytes of scores, of keys that stand for `ratio` tokens each (0 or 1: their own). */
size_t kt_device_index_scratch(const kt_device_step *d, const kt_index_rule *rule, int64_t ratio);

/* Launches for all rows of the step. call: q, w, k, ratio, block, local, heads, topk and `picked`
 * of row 0, what else it has is set here; scores: scratch of the bytes above, aligned to 16. */
kt_status kt_device_index_put(kt_device_step *d, const kt_device_index *index,
                              const kt_attn_index *call, void *scores, kt_err *err);

/* A plane's index keys on the device, one for each token. */
kt_attn_kept kt_device_index_keys(const kt_device_step *d, int plane, int64_t dim);

#endif
