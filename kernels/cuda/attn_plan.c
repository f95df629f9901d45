/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/attn_plan.h"

enum { LEAST_KEYS = 256 /* of a split */, ALL_KEYS = 1 << 30 };

bool kt_attn_is_few(const kt_attn_shape *shape, const kt_attn_sequence *sequence) {
    return (int64_t)sequence->rows * (shape->heads / shape->kv_heads) <= KT_ATTN_FEW_PAIRS;
}

int64_t kt_attn_cut_rows(const kt_attn_shape *shape, const kt_attn_sequence *sequence, int pairs,
                         bool is_row_bound, kt_attn_tile *out) {
    const int32_t group = shape->heads / shape->kv_heads;
    const int64_t all = (int64_t)sequence->rows * group;
    int64_t n = 0;

    for (int64_t at = 0, size; at < all; at += size, n++) {
        const int64_t head = at % group;
        size = all - at < pairs ? all - at : pairs;
        if (is_row_bound && size > group - head) size = group - head;
        if (out)
            out[n] = (kt_attn_tile){sequence->row + (int32_t)(at / group), (int32_t)head,
                                    (int32_t)size, sequence->page};
    }
    return n;
}

void kt_attn_cut_keys(const kt_attn_shape *shape, int64_t tiles, int64_t longest,
                      int multiprocessors, int32_t *split_keys, int32_t *splits) {
    const int64_t blocks = tiles * shape->kv_heads;
    int64_t most = blocks > 0 ? (2 * (int64_t)multiprocessors + blocks - 1) / blocks : 1;
    int64_t size = LEAST_KEYS;

    *split_keys = ALL_KEYS;
    *splits = 1;
    if (most > KT_ATTN_MAX_SPLITS - 1) most = KT_ATTN_MAX_SPLITS - 1;
    if (most <= 1 || longest <= LEAST_KEYS) return;
    while (size * most < longest) size *= 2;
    *split_keys = (int32_t)size;
    /* Where keys begin inside a split, they touch one more. */
    *splits = (int32_t)((longest + size - 1) / size + (shape->window > 0));
}

size_t kt_attn_part_bytes(const kt_attn_shape *shape, int64_t tiles, int pairs, int32_t splits) {
    if (splits <= 1) return 0;
    return (size_t)(tiles * shape->kv_heads * pairs * splits) * (size_t)(shape->v + 2) *
           sizeof(float);
}

/* blocks < 2 m, else nothing is split; splits <= (2 m + blocks - 1) / blocks + 1. */
size_t kt_attn_most_part_bytes(const kt_attn_shape *shape, int pairs, int multiprocessors) {
    return 6 * (size_t)multiprocessors * (size_t)pairs * (size_t)(shape->v + 2) * sizeof(float);
}

bool kt_attn_config(const kt_cuda_kernel *kernel, const kt_attn_shape *shape,
                    const kt_cuda_target *target, kt_config *out) {
    *out = kt_cuda_initial(kernel);
    out->value[0] = shape->k;
    out->value[1] = shape->v == shape->k && !shape->is_shared ? 0 : shape->v;
    out->value[2] = shape->cache;
    for (int32_t i = kernel->param_count - 1; i >= 3; i--) {
        const kt_param *p = &kernel->params[i];
        for (int32_t j = p->count - 1; kernel->refuse(out, target) && j >= 0; j--)
            if (p->values[j] < out->value[i]) out->value[i] = p->values[j];
    }
    return kernel->refuse(out, target) == NULL;
}
