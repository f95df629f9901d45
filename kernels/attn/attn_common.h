/* How attention walks the cache, the same for every variant. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_COMMON_H
#define KT_KERNELS_ATTN_COMMON_H

#include "kt/variant.h"

#define KT_ATTN_BLOCK 64   /* keys whose scores are held before they become weights */
#define KT_ATTN_CHUNK 1024 /* keys with a running maximum of their own; a multiple of the block */

/* A row's result is defined as: chunks [0, 1024), [1024, 2048), ... each by online softmax over
 * blocks [0, 64), [64, 128), ...; then chunks are folded from the first to the last. Whether one
 * call or many threads do that, the operations on a row, and so its bits, are the same.
 *
 * Of a block a row sees a run of keys: up to its position and, with a window, from
 * kt_attn_first_key on. That run is computed as a block of its own, whose first key is the first
 * of the run: keys before and after it are neither read, computed nor added. Blocks and chunks
 * without a key that the row sees do not exist for it, so its first chunk is the one with its
 * first key. */

/* Floats of a head of the result. */
static inline int64_t kt_attn_value_size(const kt_problem *p) {
    return p->v ? p->v : p->k;
}

/* Are values the beginning of the keys' rows, as latent attention has them: one kv head, whose
 * values are shorter than its keys? */
static inline int kt_attn_is_latent(const kt_problem *p) {
    return p->kv_heads == 1 && p->v > 0 && p->v < p->k;
}

/* The first key that a row at this position sees. */
static inline int64_t kt_attn_first_key(const kt_problem *p, int64_t position) {
    return p->window > 0 && position >= p->window ? position - p->window + 1 : 0;
}

/* What a cache may hold: BF16, or 8-bit codes with an f32 scale per row (kernels/formats/w8c.c,
 * wf8c.c). KT_W_NONE stands for BF16. */
#define KT_ATTN_CACHES \
    (1u << KT_W_NONE | 1u << KT_W_BF16 | 1u << KT_W_INT8_CHANNEL | 1u << KT_W_FP8_CHANNEL)

static inline int kt_attn_has_scales(kt_weight_format cache) {
    return cache == KT_W_INT8_CHANNEL || cache == KT_W_FP8_CHANNEL;
}

/* Bytes of one element of a row, and the element's value before scaling. */
static inline size_t kt_attn_item_bytes(kt_weight_format cache) {
    return kt_attn_has_scales(cache) ? 1 : 2;
}
float kt_attn_item(kt_weight_format cache, const void *rows, int64_t index);

/* Write one row of d floats as a cache holds it; *scale (may be NULL with BF16) gets the row's
 * scale: the largest magnitude becomes the largest code, 127 or 448. What is not finite stays
 * visible: NaN is a code of FP8 and spoils the scale of an INT8 row, infinity spoils the row.
 * Baseline code: the same bits on every machine. */
void kt_attn_store(kt_weight_format cache, const float *x, int64_t d, void *row, float *scale);

/* Add one chunk's sums o [head_dim] with stats (largest score, sum of exponentials) to the running
 * sum and its stats. */
void kt_attn_fold(float *sum, float *sum_stats, const float *o, const float *o_stats,
                  int64_t head_dim);

/* What divides by the sum of exponentials; sink: NULL, or the score of a key without a value, which
 * counts in that sum. Finishing multiplies a row's sum by it. */
float kt_attn_factor(const float *sum_stats, const float *sink);
void kt_attn_finish(float *sum, const float *sum_stats, int64_t head_dim, const float *sink);

/* Join the chunks of one head, the row's first and those after it: o[c * ldo ..], stats[c *
 * ldstats], stats[c * ldstats + 1] of c = 0 .. n_chunks - 1 into out [head_dim]; sink as above. */
void kt_attn_merge(const float *o, int64_t ldo, const float *stats, int64_t ldstats,
                   int64_t n_chunks, int64_t head_dim, const float *sink, float *out);

/* Descriptor member: refuses query heads that are not a multiple of kv heads, and negative sizes.
 */
kt_status kt_attn_accepts(const kt_problem *problem, const kt_config *config, kt_err *why);

#endif
