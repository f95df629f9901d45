/* Router logits, plain C. Sixteen partial sums keep the rounding error of long rows small.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kt/variant.h"

static float dot_bf16(const float *x, const uint16_t *w, int64_t k) {
    float s[16] = {0.0f};
    for (int64_t i = 0; i < k; i++) s[i % 16] += x[i] * kt_bf16_to_f32(w[i]);
    for (int j = 1; j < 16; j++) s[0] += s[j];
    return s[0];
}

static float dot_f32(const float *x, const float *w, int64_t k) {
    float s[16] = {0.0f};
    for (int64_t i = 0; i < k; i++) s[i % 16] += x[i] * w[i];
    for (int j = 1; j < 16; j++) s[0] += s[j];
    return s[0];
}

static void router(const kt_router_call *c) {
    int64_t k = c->problem->k;
    for (int64_t row = c->row_begin; row < c->row_end; row++)
        for (int64_t e = c->expert_begin; e < c->expert_end; e++) {
            const float *x = c->x + row * c->ldx;
            float *out = c->logits + row * c->ldl + e;
            if (c->problem->weights == KT_W_BF16)
                *out = dot_bf16(x, (const uint16_t *)c->w + e * k, k);
            else
                *out = dot_f32(x, (const float *)c->w + e * k, k);
        }
}

KT_VARIANT(logits_rows__scalar) = {
    .name = "logits_rows__scalar",
    .op = KT_OP_ROUTER,
    .weights = (1u << KT_W_BF16) | (1u << KT_W_F32),
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "plain",
    .version = 1,
    .layout = "",
    .rank = 1,
    .router = router,
};
