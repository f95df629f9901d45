/* Router logits in blocks of 4 rows by 4 experts, or 8 experts for a single row.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kt/variant.h"

static inline __m512 load_weights(const void *w, int64_t at, __mmask16 m, int is_bf16) {
    __m512i wide;
    if (!is_bf16) return _mm512_maskz_loadu_ps(m, (const float *)w + at);
    wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(m, (const uint16_t *)w + at));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

/* A block of logits. Every logit has one accumulator of 16 lanes that walks k in order: its bits do
 * not depend on the block it is part of. rows and experts are constants at each call. */
static inline __attribute__((always_inline)) void
block(const kt_router_call *c, int64_t row, int64_t e, int rows, int experts, int is_bf16) {
    int64_t k = c->problem->k;
    __m512 s[4][8], x[4];

    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++) s[r][j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < k; i += 16) {
        __mmask16 m = k - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (k - i)) - 1u);
        for (int r = 0; r < rows; r++)
            x[r] = _mm512_maskz_loadu_ps(m, c->x + (row + r) * c->ldx + i);
        for (int j = 0; j < experts; j++) {
            __m512 w = load_weights(c->w, (e + j) * k + i, m, is_bf16);
            for (int r = 0; r < rows; r++) s[r][j] = _mm512_fmadd_ps(x[r], w, s[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++)
            c->logits[(row + r) * c->ldl + e + j] = _mm512_reduce_add_ps(s[r][j]);
}

static inline __attribute__((always_inline)) void walk(const kt_router_call *c, int is_bf16) {
    int64_t row = c->row_begin, e;
    for (; row + 4 <= c->row_end; row += 4) {
        for (e = c->expert_begin; e + 4 <= c->expert_end; e += 4) block(c, row, e, 4, 4, is_bf16);
        for (; e < c->expert_end; e++) block(c, row, e, 4, 1, is_bf16);
    }
    for (; row < c->row_end; row++) {
        for (e = c->expert_begin; e + 8 <= c->expert_end; e += 8) block(c, row, e, 1, 8, is_bf16);
        for (; e < c->expert_end; e++) block(c, row, e, 1, 1, is_bf16);
    }
}

static void router(const kt_router_call *c) {
    if (c->problem->weights == KT_W_BF16)
        walk(c, 1);
    else
        walk(c, 0);
}

KT_VARIANT(logits_rows__avx512) = {
    .name = "logits_rows__avx512",
    .op = KT_OP_ROUTER,
    .weights = (1u << KT_W_BF16) | (1u << KT_W_F32),
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .version = 1,
    .layout = "",
    .router = router,
};
