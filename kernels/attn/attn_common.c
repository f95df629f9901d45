/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_common.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* Compiled once, for the baseline: every variant folds with these very instructions. One of the two
 * factors is exp(0) = 1. */
void kt_attn_fold(float *sum, float *sum_stats, const float *o, const float *o_stats,
                  int64_t head_dim) {
    float top = sum_stats[0] > o_stats[0] ? sum_stats[0] : o_stats[0];
    float keep = expf(sum_stats[0] - top), add = expf(o_stats[0] - top);

    for (int64_t i = 0; i < head_dim; i++) sum[i] = sum[i] * keep + o[i] * add;
    sum_stats[1] = sum_stats[1] * keep + o_stats[1] * add;
    sum_stats[0] = top;
}

void kt_attn_finish(float *sum, const float *sum_stats, int64_t head_dim) {
    float r = 1.0f / sum_stats[1];
    for (int64_t i = 0; i < head_dim; i++) sum[i] *= r;
}

void kt_attn_merge(const float *o, int64_t ldo, const float *stats, int64_t ldstats,
                   int64_t n_chunks, int64_t head_dim, float *out) {
    float total[2] = {stats[0], stats[1]};
    memcpy(out, o, (size_t)head_dim * sizeof *out);
    for (int64_t c = 1; c < n_chunks; c++)
        kt_attn_fold(out, total, o + c * ldo, stats + c * ldstats, head_dim);
    kt_attn_finish(out, total, head_dim);
}

kt_status kt_attn_accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    if (p->n < 1 || p->k < 1 || p->kv_heads < 1 || p->n % p->kv_heads != 0)
        return kt_fail(why, KT_E_UNSUPPORTED,
                       "attention: %lld query heads of size %lld over %lld kv heads: expected a "
                       "whole number of query heads per kv head",
                       (long long)p->n, (long long)p->k, (long long)p->kv_heads);
    return KT_OK;
}
