/* Router logits in blocks of 4 rows by 4 experts; a single row expert by expert, or
 * eight by eight where their weights are long, as one stream of weights.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kt/variant.h"

enum { SMALL_PAGE = 4096 };

/* Floats of 16 BF16 values in the low halves of lanes. */
static inline __m512 widen(__m256i v) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
}

static inline __m512 load_weights(const void *w, int64_t at, int is_bf16) {
    if (!is_bf16) return _mm512_loadu_ps((const float *)w + at);
    return widen(_mm256_loadu_si256((const __m256i *)(const void *)((const uint16_t *)w + at)));
}

static inline __m512 load_rest(const void *w, int64_t at, __mmask16 rest, int is_bf16) {
    if (!is_bf16) return _mm512_maskz_loadu_ps(rest, (const float *)w + at);
    return widen(_mm256_maskz_loadu_epi16(rest, (const uint16_t *)w + at));
}

/* A block of logits. Every logit has one accumulator of 16 lanes that walks k in order: its bits do
 * not depend on the block it is part of. rows and experts are constants at each call. */
static inline __attribute__((always_inline)) void
block(const kt_router_call *c, int64_t row, int64_t e, int rows, int experts, int is_bf16) {
    int64_t k = c->problem->k, whole = k / 16 * 16;
    __mmask16 rest = (__mmask16)((1u << (k - whole)) - 1u);
    __m512 s[4][4], x[4];

    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++) s[r][j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += 16) {
        for (int r = 0; r < rows; r++) x[r] = _mm512_loadu_ps(c->x + (row + r) * c->ldx + i);
        for (int j = 0; j < experts; j++) {
            __m512 w = load_weights(c->w, (e + j) * k + i, is_bf16);
            for (int r = 0; r < rows; r++) s[r][j] = _mm512_fmadd_ps(x[r], w, s[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts && rest; j++) {
            __m512 tail = _mm512_maskz_loadu_ps(rest, c->x + (row + r) * c->ldx + whole);
            __m512 w = load_rest(c->w, (e + j) * k + whole, rest, is_bf16);
            s[r][j] = _mm512_fmadd_ps(tail, w, s[r][j]);
        }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < experts; j++)
            c->logits[(row + r) * c->ldl + e + j] = _mm512_reduce_add_ps(s[r][j]);
}

/* Eight logits of one row. The lines of the eight experts behind them are asked for in ascending
 * order, as far ahead as these are long, into L2: what is read here lies there. `ask` NULL: there
 * are none. The sums are those of block(). */
static inline __attribute__((always_inline)) void eight(const kt_router_call *c, int64_t row,
                                                        int64_t e, const char *ask, int is_bf16) {
    const int64_t k = c->problem->k, whole = k / 32 * 32, item = is_bf16 ? 2 : 4;
    const float *x = c->x + row * c->ldx;
    __m512 s[8];

    if (!ask) ask = (const char *)c->w + e * k * item;
    for (int j = 0; j < 8; j++) s[j] = _mm512_setzero_ps();
    for (int64_t i = 0; i < whole; i += 32, ask += 8 * 32 * item) {
        for (int64_t line = 0; line < 8 * 32 * item; line += 64)
            _mm_prefetch(ask + line, _MM_HINT_T1);
        for (int u = 0; u < 32; u += 16) {
            const __m512 v = _mm512_loadu_ps(x + i + u);
            for (int j = 0; j < 8; j++)
                s[j] = _mm512_fmadd_ps(v, load_weights(c->w, (e + j) * k + i + u, is_bf16), s[j]);
        }
    }
    for (int64_t i = whole; i < k; i += 16) {
        const __mmask16 m = k - i >= 16 ? (__mmask16)0xffff : (__mmask16)((1u << (k - i)) - 1u);
        const __m512 v = _mm512_maskz_loadu_ps(m, x + i);
        for (int j = 0; j < 8; j++)
            s[j] = _mm512_fmadd_ps(v, load_rest(c->w, (e + j) * k + i, m, is_bf16), s[j]);
    }
    for (int j = 0; j < 8; j++) c->logits[row * c->ldl + e + j] = _mm512_reduce_add_ps(s[j]);
}

/* One row. Experts of a small page are left to the hardware prefetchers, which want lines in strict
 * order: the chain of additions does not bind, since those of the next expert begin before it ends.
 * Longer ones are no chain to be hidden, and x does not stay in L1 beside them
 * (kernels/router/README.md). */
static inline __attribute__((always_inline)) void one_row(const kt_router_call *c, int64_t row,
                                                          int is_bf16) {
    const int64_t item = is_bf16 ? 2 : 4, bytes = c->problem->k * item;
    int64_t e = c->expert_begin;

    for (; bytes > SMALL_PAGE && e + 8 <= c->expert_end; e += 8)
        eight(c, row, e, e + 16 <= c->problem->n ? (const char *)c->w + (e + 8) * bytes : NULL,
              is_bf16);
    for (; e < c->expert_end; e++) block(c, row, e, 1, 1, is_bf16);
}

static inline __attribute__((always_inline)) void walk(const kt_router_call *c, int is_bf16) {
    int64_t row = c->row_begin, e;

    for (; row + 4 <= c->row_end; row += 4) {
        for (e = c->expert_begin; e + 4 <= c->expert_end; e += 4) block(c, row, e, 4, 4, is_bf16);
        for (; e < c->expert_end; e++) block(c, row, e, 4, 1, is_bf16);
    }
    for (; row < c->row_end; row++) one_row(c, row, is_bf16);
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
    .bits = "sums512",
    .version = 3,
    .layout = "",
    .rank = 1,
    .router = router,
};
