/* Grouped-query attention over a BF16 or 8-bit cache, plain C: any head size, any group.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "base/numeric.h"
#include "kernels/attn/attn_walk.h"

static void load_query(const float *q, int64_t d, float scale, float *out) {
    for (int64_t i = 0; i < d; i++) out[i] = q[i] * scale;
}

static void widen(kt_weight_format cache, const uint8_t *codes, int64_t ld, int64_t d,
                  int64_t n_keys, uint16_t *out, int64_t ldo) {
    for (int64_t j = 0; j < n_keys; j++)
        for (int64_t x = 0; x < d; x++)
            out[j * ldo + x] = kt_f32_to_bf16(kt_attn_item(cache, codes, j * ld + x));
}

static void scores(const float *q, int64_t ldq, int64_t n_queries, const uint16_t *k, int64_t ldk,
                   int64_t d, int64_t n_keys, int64_t ahead, float *s) {
    (void)ahead;
    for (int64_t i = 0; i < n_queries; i++)
        for (int64_t j = 0; j < n_keys; j++) {
            float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
            for (int64_t x = 0; x < d; x++)
                sum[x % 4] += q[i * ldq + x] * kt_bf16_to_f32(k[j * ldk + x]);
            s[i * KT_ATTN_LDS + j] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        }
}

static float soften(float *s, int64_t n_keys, const float *k_scale, const float *v_scale,
                    float *stats) {
    float top = stats[0], keep, sum = 0.0f;
    for (int64_t j = 0; k_scale && j < n_keys; j++) s[j] *= k_scale[j];
    for (int64_t j = 0; j < n_keys; j++)
        if (s[j] > top) top = s[j];
    for (int64_t j = 0; j < n_keys; j++) sum += s[j] = expf(s[j] - top);
    for (int64_t j = 0; v_scale && j < n_keys; j++) s[j] *= v_scale[j];
    keep = expf(stats[0] - top);
    stats[0] = top;
    stats[1] = stats[1] * keep + sum;
    return keep;
}

static void weigh(float *o, int64_t ldo, const float *keep, int64_t n_queries, const float *s,
                  const uint16_t *v, int64_t ldv, int64_t d, int64_t n_keys,
                  const kt_attn_next *next) {
    (void)next;
    for (int64_t i = 0; i < n_queries; i++) {
        for (int64_t x = 0; x < d; x++) o[i * ldo + x] *= keep[i];
        for (int64_t j = 0; j < n_keys; j++)
            for (int64_t x = 0; x < d; x++)
                o[i * ldo + x] += s[i * KT_ATTN_LDS + j] * kt_bf16_to_f32(v[j * ldv + x]);
    }
}

static void store_sums(const float *o, int64_t d, float *out) {
    for (int64_t i = 0; i < d; i++) out[i] = o[i];
}

static const kt_attn_inner inner = {.lanes = 1,
                                    .load_query = load_query,
                                    .widen = widen,
                                    .scores = scores,
                                    .soften = soften,
                                    .weigh_step = 1,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

static void attn(const kt_attn_call *call) {
    kt_attn_walk(call, &inner);
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return kt_attn_walk_bytes(problem, config, &inner);
}

KT_VARIANT(bf16_online__scalar) = {
    .name = "bf16_online__scalar",
    .op = KT_OP_ATTN,
    .weights = KT_ATTN_CACHES,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "online",
    .version = 1,
    .layout = "",
    .rank = 1,
    .params = kt_attn_params,
    .n_params = KT_ATTN_N_PARAMS,
    .accepts = kt_attn_accepts,
    .workspace_bytes = workspace_bytes,
    .attn = attn,
};
