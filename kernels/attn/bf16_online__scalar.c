/* Grouped-query attention over a BF16 or 8-bit cache, plain C: any head size, any group.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/numeric.h"
#include "kernels/attn/attn_walk.h"

static void load_query(const float *q, int64_t d, float scale, float *out) {
    for (int64_t i = 0; i < d; i++) out[i] = q[i] * scale;
}

static void widen(const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    for (int64_t j = 0; j < codes->n; j++)
        for (int64_t x = 0; x < codes->d; x++)
            out[j * ldo + x] =
                kt_f32_to_bf16(kt_attn_item(codes->cache, codes->at, j * codes->ld + x));
}

static void scores(const kt_attn_part *t) {
    for (int64_t i = 0; i < t->n; i++)
        for (int64_t j = 0; j < t->n_keys; j++) {
            const float *q = t->q + i * t->ldq;
            const uint16_t *key = kt_attn_row(&t->k, j);
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (int64_t x = 0; x < t->k.d; x++) sum[x % 4] += q[x] * kt_bf16_to_f32(key[x]);
            t->s[i * KT_ATTN_LDS + j] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
}

static float soften(const kt_attn_part *t, int64_t query) {
    const int64_t n_keys = kt_attn_keys(t, query);
    float *s = t->s + query * KT_ATTN_LDS, *stats = t->stats + 2 * query;
    float top = stats[0], keep, sum = 0.0f;

    for (int64_t j = 0; t->k_scale && j < n_keys; j++) s[j] *= t->k_scale[j];
    for (int64_t j = 0; j < n_keys; j++)
        if (s[j] > top) top = s[j];
    for (int64_t j = 0; j < n_keys; j++) sum += s[j] = expf(s[j] - top);
    for (int64_t j = 0; t->v_scale && j < n_keys; j++) s[j] *= t->v_scale[j];
    keep = expf(stats[0] - top);
    stats[0] = top;
    stats[1] = stats[1] * keep + sum;
    return keep;
}

static void weigh(const kt_attn_part *t) {
    for (int64_t i = 0; i < t->n; i++) {
        float *o = t->o + i * t->ldo;
        for (int64_t x = 0; x < t->v.d; x++) o[x] *= t->keep[i];
        for (int64_t j = 0; j < t->n_keys; j++)
            for (int64_t x = 0; x < t->v.d; x++)
                o[x] += t->s[i * KT_ATTN_LDS + j] * kt_bf16_to_f32(kt_attn_row(&t->v, j)[x]);
    }
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    for (int64_t i = 0; i < d; i++) out[i] = o[i] * factor;
}

static const kt_attn_inner inner = {.lanes = 1,
                                    .load_query = load_query,
                                    .widen = widen,
                                    .scores = scores,
                                    .soften = soften,
                                    .weighs_from_any = true,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

KT_ATTN_VARIANT(bf16_online__scalar, .weights = KT_ATTN_CACHES, .isa = KT_ISA_SCALAR,
                .numerics = KT_NUM_F32, .bits = "online", .version = 1, .rank = 1,
                .params = kt_attn_params, .accepts = kt_attn_accepts);
