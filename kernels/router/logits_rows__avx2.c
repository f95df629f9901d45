/* Router logits in blocks of 3 rows by 3 experts, or 8 experts for a single row.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "base/numeric.h"
#include "kt/variant.h"

static inline __m256 load_weights(const void *w, int64_t at, int is_bf16) {
    const uint16_t *h = (const uint16_t *)w + at;
    if (!is_bf16) return _mm256_loadu_ps((const float *)w + at);
    return _mm256_castsi256_ps(_mm256_slli_epi32(
        _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)h)), 16));
}

/* The product at index i, past the last whole vector. */
static inline float one_product(const float *x, const void *w, int64_t i, int is_bf16) {
    if (is_bf16) return x[0] * kt_bf16_to_f32(((const uint16_t *)w)[i]);
    return x[0] * ((const float *)w)[i];
}

static inline float sum8(__m256 v) {
    __m128 a = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/* What follows a block of 8 experts, step by step in ascending order: a single row multiplies eight rows of
 * weights at once, a small page apart from each other, where the hardware prefetchers see no stream (BF16, k =
 * 2048, Zen 4: 15.7 GB/s without, 21.2 with). One expert after the other, as 512-bit vectors do it, waits for
 * its chain of additions (14.2). Inlined always: a call that only prefetches is dropped as one without effect. */
static inline __attribute__((always_inline)) void fetch_next(const kt_router_call *c, int64_t e,
                                                             int64_t i, int is_bf16) {
    const int64_t item = is_bf16 ? 2 : 4;
    const char *next = (const char *)c->w + ((e + 8) * c->problem->k + 8 * i) * item;
    for (int64_t at = 0; at < 64 * item; at += 64) _mm_prefetch(next + at, _MM_HINT_T1);
}

/* A block of logits. Every logit has one accumulator of 8 lanes that walks k in order: its bits do
 * not depend on the block it is part of. rows and experts are constants at each call. */
static inline __attribute__((always_inline)) void
block(const kt_router_call *c, int64_t row, int64_t e, int rows, int experts, int is_bf16) {
    int64_t k = c->problem->k, whole = k / 8 * 8;
    __m256 s[3][8], x[3];

    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++) s[r][j] = _mm256_setzero_ps();
    for (int64_t i = 0; i < whole; i += 8) {
        if (rows == 1 && experts == 8) fetch_next(c, e, i, is_bf16);
        for (int r = 0; r < rows; r++) x[r] = _mm256_loadu_ps(c->x + (row + r) * c->ldx + i);
        for (int j = 0; j < experts; j++) {
            __m256 w = load_weights(c->w, (e + j) * k + i, is_bf16);
            for (int r = 0; r < rows; r++) s[r][j] = _mm256_fmadd_ps(x[r], w, s[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++) {
            float total = sum8(s[r][j]);
            for (int64_t i = whole; i < k; i++)
                total += one_product(c->x + (row + r) * c->ldx + i, c->w, (e + j) * k + i, is_bf16);
            c->logits[(row + r) * c->ldl + e + j] = total;
        }
}

static inline __attribute__((always_inline)) void walk(const kt_router_call *c, int is_bf16) {
    int64_t row = c->row_begin, e;
    for (; row + 3 <= c->row_end; row += 3) {
        for (e = c->expert_begin; e + 3 <= c->expert_end; e += 3) block(c, row, e, 3, 3, is_bf16);
        for (; e < c->expert_end; e++) block(c, row, e, 3, 1, is_bf16);
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

KT_VARIANT(logits_rows__avx2) = {
    .name = "logits_rows__avx2",
    .op = KT_OP_ROUTER,
    .weights = (1u << KT_W_BF16) | (1u << KT_W_F32),
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "sums256",
    .version = 2,
    .layout = "",
    .rank = 1,
    .router = router,
};
