/* Grouped-query attention over a BF16 or 8-bit cache with BF16 products and f32 sums
 * (VDPBF16PS).
 *
 * Scores (scores512.h): queries are scaled and rounded to BF16 once. A block of 64 keys is turned
 * round, so that lane j of a vector holds elements (2i, 2i + 1) of key j.
 *
 * Values: weights are rounded to BF16, and the rounded ones are also summed, so that they add up
 * to one. Two keys meet eight queries at a time: interleaving the keys' values makes the pairs,
 * in the order that the shuffle has (columns 0-3, 8-11, 16-19, 24-27 of 32, then the others),
 * which store_sums undoes.
 *
 * A score is one chain of products over i, an output one chain over the keys of a block: neither
 * depends on the queries around it. Keys past the last enter as weight zero with value zero.
 *
 * Any head size: loads of the last 32 elements are masked. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_DOT512_H
#define KT_ATTN_DOT512_H

#include "kernels/attn/scores512.h"
#include "kernels/attn/soften512.h"
#include "kernels/simd/bf16x512.h"

/* As assembler, since not every including file is compiled for BF16. */
KT_INLINE __m512i to_bf16(__m512 low, __m512 high) {
    __m512i pairs;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(pairs) : "v"(high), "v"(low));
    return pairs;
}
KT_INLINE __m512 dot(__m512 sum, __m512i a, __m512i b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

/* The scratch row begins with the head as BF16, zeros up to a multiple of 32. */
static void load_query(const float *q, int64_t d, float scale, float *out) {
    const __m512 s = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < d; i += 32) {
        __m512 low = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(mask16(d - i), q + i));
        __m512 high = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(mask16(d - i - 16), q + i + 16));
        _mm512_store_si512(out + i / 2, to_bf16(low, high));
    }
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 a = _mm512_mul_ps(f, _mm512_load_ps(o + i));
        __m512 b = _mm512_mul_ps(f, _mm512_load_ps(o + i + 16));
        _mm512_mask_storeu_ps(out + i, mask16(d - i), _mm512_permutex2var_ps(a, first, b));
        _mm512_mask_storeu_ps(out + i + 16, mask16(d - i - 16),
                              _mm512_permutex2var_ps(a, second, b));
    }
}

/* ---- scores ---- */

KT_INLINE void score_pair(const float *q, int64_t ldq, int64_t p, const __m512i u[4], const int nq,
                          const int nv, __m512 sum[4][4]) {
    KT_EACH (r, nq) {
        __m512i w = _mm512_set1_epi32(kt_load_i32((const uint8_t *)(q + r * ldq + p)));
        KT_EACH (c, nv) sum[r][c] = dot(sum[r][c], u[c], w);
    }
}

/* ---- weights: the row of scores becomes 64 BF16 numbers at its beginning ---- */

/* With scales of values the weights are rounded after these multiply them: then the plain ones are
 * summed. Conversion takes denormal numbers as zero. */
KT_INLINE __m512 put_weights(const kt_attn_part *t, float *s, int64_t n_keys, float top,
                             const softening how) {
    __m512 v[4], sum = _mm512_setzero_ps();

    load_scores(t, s, n_keys, how, v);
    exp_less(v, top, how.nv);
    KT_EACH (i, how.nv) {
        const __mmask16 m = seen(n_keys, i, how);
        if (!how.is_scaled) continue;
        sum = _mm512_add_ps(sum, v[i]);
        v[i] = _mm512_mul_ps(v[i], _mm512_maskz_loadu_ps(m, t->v_scale + 16 * i));
    }
    KT_EACH (i, how.nv / 2) {
        const __m512i weights = to_bf16(v[2 * i], v[2 * i + 1]);
        _mm512_store_si512(s + 16 * i, weights);
        if (how.is_scaled) continue;
        sum = _mm512_add_ps(sum, _mm512_add_ps(kt_bf16_even512(weights), kt_bf16_odd512(weights)));
    }
    return sum;
}

/* ---- values ---- */

/* Two keys' values of 32 columns as pairs: columns 0-3, 8-11, .., then the others. */
KT_INLINE void pair_values(__m512i a, __m512i b, __m512i pair[2]) {
    pair[0] = _mm512_unpacklo_epi16(a, b);
    pair[1] = _mm512_unpackhi_epi16(a, b);
}

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
    const uint16_t *v = kt_attn_row(&t->v, 0) + x;
    const uint8_t *weights = (const uint8_t *)(t->s + i * KT_ATTN_LDS);
    const __mmask32 m = mask32(t->v.d - x);
    __m512 sum[KT_ATTN_FEW][2];

    begin_sums(t, i, x, sum, nq);
    for (int64_t j = 0; j < n_keys; j += 2, weights += 4) {
        const uint16_t *row = v + j * ldv;
        __m512i a = _mm512_maskz_loadu_epi16(m, row), b = _mm512_setzero_si512(), pair[2];
        if (j + 1 < n_keys) b = _mm512_maskz_loadu_epi16(m, row + ldv);
        ask_lines(ask + j * 32 * lines, lines);
        pair_values(a, b, pair);
        KT_EACH (r, nq) {
            __m512i p = _mm512_set1_epi32(kt_load_i32(weights + 4 * r * KT_ATTN_LDS));
            KT_EACH (c, 2) sum[r][c] = dot(sum[r][c], pair[c], p);
        }
    }
    if (keys) weigh_last(t, n_keys, keys + i, v + n_keys * ldv, weights, m, sum, nq);
    end_sums(t, i, x, sum, nq);
}

/* Columns [x, end). A tile of 32 columns asks for as many of the values to come. */
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
    const char *const all =
        t->next_v.bytes > d ? ask_from(&t->next_v) : NULL; /* codes are widened, not read here */

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
