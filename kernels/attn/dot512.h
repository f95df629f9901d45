/* Grouped-query attention over a BF16 or 8-bit cache with BF16 products and f32 sums
 * (VDPBF16PS).
 *
 * Scores (scores512.h): queries are scaled and rounded to BF16 once. A block of 64 keys is turned
 * round, so that lane j of a vector holds elements (2i, 2i + 1) of key j.
 *
 * Values (pairs512.h): two keys meet eight queries at a time.
 *
 * A score is one chain of products over i, an output one chain over the keys of a block: neither
 * depends on the queries around it. Keys past the last enter as weight zero with value zero.
 *
 * Any head size: loads of the last 32 elements are masked. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_DOT512_H
#define KT_ATTN_DOT512_H

#include "kernels/attn/pairs512.h"
#include "kernels/attn/scores512.h"

/* As assembler, since not every including file is compiled for BF16. */
KT_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* ---- scores ---- */

KT_INLINE void score_pair(const float *q, int64_t ldq, int64_t p, const __m512i u[4], const int nq,
                          const int nv, __m512 sum[4][4]) {
    KT_EACH (r, nq) {
        __m512i w = _mm512_set1_epi32(kt_load_i32((const uint8_t *)(q + r * ldq + p)));
        KT_EACH (c, nv) sum[r][c] = dot(sum[r][c], u[c], w);
    }
}

/* ---- values ---- */

/* Keys [j, n_keys), which not all of the tile's queries see, query r of it keys[r]: as a query
 * alone has them, so that values past its last one are not even multiplied by zero. */
KT_INLINE void weigh_last(const kt_attn_part *t, int64_t j, const int64_t *keys,
                          const uint16_t *row, const uint8_t *weights, const __mmask32 m,
                          __m512 sum[][2], const int nq) {
    for (; j < t->n_keys; j += 2, row += 2 * t->v.ld, weights += 4) {
        const __m512i a = _mm512_maskz_loadu_epi16(m, row), zero = _mm512_setzero_si512();
        __m512i b = zero, both[2], first[2];
        if (j + 1 < t->n_keys) b = _mm512_maskz_loadu_epi16(m, row + t->v.ld);
        pair_values(a, b, both);
        pair_values(a, zero, first);
        KT_EACH (r, nq) {
            const __m512i p = _mm512_set1_epi32(kt_load_i32(weights + 4 * r * KT_ATTN_LDS));
            if (keys[r] > j + 1) {
                KT_EACH (c, 2) sum[r][c] = dot(sum[r][c], both[c], p);
            } else if (keys[r] > j) {
                KT_EACH (c, 2) sum[r][c] = dot(sum[r][c], first[c], p);
            }
        }
    }
}

/* nq queries from i on x 32 columns from column x on; nq and lines are constants at each call.
 * keys: how many each query of the part sees, or NULL where all see all. */
KT_INLINE void weigh_tile(const kt_attn_part *t, const int64_t *keys, int64_t i, int64_t x,
                          const char *ask, const int lines, const int nq) {
    const int64_t n_keys = keys ? keys[i] & -2 : t->n_keys, ldv = t->v.ld;
    const int is_near = t->v.is_near;
    const uint16_t *v = kt_attn_row(&t->v, 0) + x;
    const uint8_t *weights = (const uint8_t *)(t->s + i * KT_ATTN_LDS);
    const __mmask32 m = mask32(t->v.d - x);
    __m512 sum[KT_ATTN_FEW][2];

    begin_sums(t, i, x, sum, nq);
    for (int64_t j = 0; j < n_keys; j += 2, weights += 4) {
        const uint16_t *row = v + j * ldv;
        __m512i a = _mm512_maskz_loadu_epi16(m, row), b = _mm512_setzero_si512(), pair[2];
        if (j + 1 < n_keys) b = _mm512_maskz_loadu_epi16(m, row + ldv);
        ask_lines(ask + j * 32 * lines, lines, is_near);
        pair_values(a, b, pair);
        KT_EACH (r, nq) {
            __m512i p = _mm512_set1_epi32(kt_load_i32(weights + 4 * r * KT_ATTN_LDS));
            KT_EACH (c, 2) sum[r][c] = dot(sum[r][c], pair[c], p);
        }
    }
    if (keys) weigh_last(t, n_keys, keys + i, v + n_keys * ldv, weights, m, sum, nq);
    end_sums(t, i, x, sum, nq);
}

/* Columns [x, end). A tile of 32 columns asks for its share of for_values. */
KT_INLINE void weigh_rows(const kt_attn_part *t, const int64_t *keys, int64_t i, int64_t x,
                          int64_t end, const char *ask, const int nq) {
    for (; x < end; x += 32) {
        if (ask)
            weigh_tile(t, keys, i, x, ask + x * 128, 2, nq);
        else
            weigh_tile(t, keys, i, x, (const char *)t->v.at, 0, nq);
    }
}

/* Slices of long values stay in L1 for all queries. */
KT_INLINE void weigh_all(const kt_attn_part *t, const int64_t *keys) {
    const int64_t d = t->v.d;
    const char *const all = t->for_values.bytes > d ? ask_from(&t->for_values)
                                                    : NULL; /* codes are widened, not read here */

    for (int64_t x = 0; x < d; x += SLICE) {
        const int64_t end = x + SLICE < d ? x + SLICE : d;
        const char *ask = all; /* the first queries ask for what comes */
        int64_t i = 0;
        for (; i + 8 <= t->n; i += 8, ask = NULL) {
            kt_attn_ask(t->ask, t->ask_eight);
            weigh_rows(t, keys, i, x, end, ask, 8);
        }
        for (; i + 4 <= t->n; i += 4, ask = NULL) weigh_rows(t, keys, i, x, end, ask, 4);
        for (; i < t->n; i++, ask = NULL) weigh_rows(t, keys, i, x, end, ask, 1);
    }
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t keys[KT_ATTN_FEW];

    if (t->n_keys == t->least) {
        weigh_all(t, NULL);
        return;
    }
    for (int64_t i = 0; i < t->n; i++) keys[i] = kt_attn_keys(t, i);
    weigh_all(t, keys);
}

/* ---- what both variants bring ---- */

#define DOT_INNER                                                                      \
    .lanes = 32, .load_query = load_query, .keys_bytes = keys_bytes, .scores = scores, \
    .soften_all = soften_all, .weighs_ragged = true, .store_sums = store_sums

#endif
