/* Grouped-query attention over a BF16 or 8-bit cache with BF16 products and f32 sums
 * (VDPBF16PS).
 *
 * Scores: queries are scaled and rounded to BF16 once. A block of 64 keys is turned round, so
 * that lane j of a vector holds elements (2i, 2i + 1) of key j: then four queries and 64 keys
 * are an outer product of broadcasts and loads with 16 accumulators, and scores come out as
 * vectors. Turning 16 x 16 pairs costs 64 shuffles, against the 45 instructions that adding up
 * the lanes of 16 dot products would cost for every 16 scores; with eight queries the two are
 * even, with more they are not.
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

#include "kernels/attn/turn512.h"
#include "kernels/simd/bf16x512.h"
#include "kernels/simd/exp512.h"

#define PAIR_ROW KT_TURNED_ROW /* bytes of one pair index of a turned block */
#define SLICE 128              /* elements that are met at a time where keys or values are long */
#define SLICE_FROM 192         /* longest keys that are met at once: 64 of them are 24 KB */

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

static void store_sums(const float *o, int64_t d, float *out) {
    const __m512i first = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 a = _mm512_load_ps(o + i), b = _mm512_load_ps(o + i + 16);
        _mm512_mask_storeu_ps(out + i, mask16(d - i), _mm512_permutex2var_ps(a, first, b));
        _mm512_mask_storeu_ps(out + i + 16, mask16(d - i - 16),
                              _mm512_permutex2var_ps(a, second, b));
    }
}

/* ---- scores ---- */

/* Lines of the block to come, one after the other. The inner loops ask for a constant number of
 * them with every 16 products, without a branch: a loop in there costs a tenth of the time. */
KT_INLINE void ask_lines(const char *at, const int n) {
    KT_EACH (i, n) _mm_prefetch(at + 64 * i, _MM_HINT_T1);
}

/* Rows of the block to come that lie one behind the other, or NULL: then all are asked for at once.
 */
static const char *ask_from(const kt_attn_next *next) {
    if (!next->rows || next->ld == next->bytes) return (const char *)next->rows;
    for (int64_t r = 0; r < KEYS; r++)
        for (int64_t x = 0; x < next->bytes; x += 64)
            _mm_prefetch((const char *)next->rows + r * next->ld + x, _MM_HINT_T1);
    return NULL;
}

/* 16 keys from k on, of which there are n. Keys past the last repeat it; their scores are never
 * looked at. */
KT_INLINE void turn_keys(const uint16_t *k, int64_t ldk, int64_t d, int64_t n, uint8_t *to,
                         const int is_whole) {
    for (int64_t x = 0; x < d; x += 32, to += 16 * PAIR_ROW) {
        const __mmask32 m = mask32(d - x);
        __m512i r[16];
        KT_EACH (i, 16)
            r[i] = _mm512_maskz_loadu_epi16(m, k + (is_whole || i < n ? i : n - 1) * ldk + x);
        transpose(r);
        KT_EACH (i, 16) _mm512_store_si512(to + (size_t)i * PAIR_ROW, r[i]);
    }
}

/* keys[i][j] = pair i of key j. */
static void load_keys(const uint16_t *k, int64_t ldk, int64_t d, int64_t n_keys, void *keys) {
    for (int64_t j = 0; j < n_keys; j += 16) {
        uint8_t *to = (uint8_t *)keys + 4 * j;
        if (n_keys - j >= 16)
            turn_keys(k + j * ldk, ldk, d, 16, to, 1);
        else
            turn_keys(k + j * ldk, ldk, d, n_keys - j, to, 0);
    }
}

static size_t keys_bytes(int64_t d) {
    return (size_t)((d + 31) / 32 * 16) * PAIR_ROW;
}

/* Pairs [begin, end) of a key's elements: what is met at a time. Sums of those before are in s. */
typedef struct pairs {
    int64_t begin, end;
} pairs;

/* nq queries x nv vectors of 16 keys; nq and nv are constants at each call. */
KT_INLINE void score_tile(const float *q, int64_t ldq, const uint8_t *keys, pairs x, float *s,
                          const char *ask, const int lines, const int nq, const int nv) {
    __m512 sum[4][4];

    KT_EACH (r, nq) {
        KT_EACH (c, nv)
            sum[r][c] =
                x.begin ? _mm512_load_ps(s + r * KT_ATTN_LDS + 16 * c) : _mm512_setzero_ps();
    }
    keys += x.begin * (int64_t)PAIR_ROW;
    for (int64_t i = x.begin; i < x.end; i++, keys += PAIR_ROW) {
        __m512i u[4];
        ask_lines(ask + (i - x.begin) * 64 * lines, lines);
        KT_EACH (c, nv) u[c] = _mm512_load_si512(keys + 64 * c);
        KT_EACH (r, nq) {
            __m512i w = _mm512_set1_epi32(kt_load_i32((const uint8_t *)(q + r * ldq + i)));
            KT_EACH (c, nv) sum[r][c] = dot(sum[r][c], u[c], w);
        }
    }
    KT_EACH (r, nq) {
        KT_EACH (c, nv) _mm512_store_ps(s + r * KT_ATTN_LDS + 16 * c, sum[r][c]);
    }
}

KT_INLINE void score_rows(const float *q, int64_t ldq, const uint8_t *keys, pairs x, int64_t n_keys,
                          float *s, const char *ask, const int lines, const int nq) {
    if (n_keys > 48)
        score_tile(q, ldq, keys, x, s, ask, lines, nq, 4);
    else if (n_keys > 32)
        score_tile(q, ldq, keys, x, s, ask, 0, nq, 3);
    else if (n_keys > 16)
        score_tile(q, ldq, keys, x, s, ask, 0, nq, 2);
    else
        score_tile(q, ldq, keys, x, s, ask, 0, nq, 1);
}

/* The first two tiles ask for the block of keys after this one, half of it each; the first one for
 * all when it is alone. Of codes there are half as many lines. */
static void score_pairs(const float *q, int64_t ldq, int64_t n_queries, const uint8_t *keys,
                        pairs x, int64_t n_keys, const char *ask, int is_wide, float *s) {
    const int64_t half = (x.end - x.begin) * (is_wide ? 128 : 64);
    int64_t i = 0;

    if (ask && n_queries >= 8) {
        for (; i < 8; i += 4, ask += half) {
            if (is_wide)
                score_rows(q + i * ldq, ldq, keys, x, n_keys, s + i * KT_ATTN_LDS, ask, 2, 4);
            else
                score_rows(q + i * ldq, ldq, keys, x, n_keys, s + i * KT_ATTN_LDS, ask, 1, 4);
        }
    } else if (ask) {
        const int n = n_queries >= 4 ? 4 : 1;
        if (n == 4 && is_wide)
            score_rows(q, ldq, keys, x, n_keys, s, ask, 4, 4);
        else if (n == 4)
            score_rows(q, ldq, keys, x, n_keys, s, ask, 2, 4);
        else if (is_wide)
            score_rows(q, ldq, keys, x, n_keys, s, ask, 4, 1);
        else
            score_rows(q, ldq, keys, x, n_keys, s, ask, 2, 1);
        i = n;
    }
    for (; i + 4 <= n_queries; i += 4)
        score_rows(q + i * ldq, ldq, keys, x, n_keys, s + i * KT_ATTN_LDS, (const char *)keys, 0,
                   4);
    for (; i < n_queries; i++)
        score_rows(q + i * ldq, ldq, keys, x, n_keys, s + i * KT_ATTN_LDS, (const char *)keys, 0,
                   1);
}

/* Long keys are met in slices that L1 holds, so that only the first queries wait for L2. A sum goes
 * through memory between two slices as it is. */
static void scores(const float *q, int64_t ldq, int64_t n_queries, const void *keys, int64_t d,
                   int64_t n_keys, const kt_attn_next *next, float *s) {
    const int64_t end = (d + 1) / 2;
    const char *ask = ask_from(next);
    const int is_wide = next->bytes > d; /* BF16, not codes */
    const int64_t slice = d > SLICE_FROM && n_queries > 4 ? SLICE / 2 : end;

    for (pairs x = {0, slice}; x.begin < end; x.begin = x.end, x.end += slice) {
        if (x.end > end) x.end = end;
        score_pairs(q, ldq, n_queries, keys, x, n_keys,
                    ask ? ask + x.begin * (is_wide ? 256 : 128) : NULL, is_wide, s);
    }
}

/* ---- weights: the row of scores becomes 64 BF16 numbers at its beginning ---- */

/* With scales of values the weights are rounded after these multiply them: then the plain ones
 * are summed. */
static float soften(float *s, int64_t n_keys, const float *k_scale, const float *v_scale,
                    float *stats) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 v[4], top4, total = _mm512_setzero_ps();
    float top, keep;

    KT_EACH (i, 4) v[i] = _mm512_mask_loadu_ps(lowest, mask16(n_keys - 16 * i), s + 16 * i);
    if (k_scale)
        KT_EACH (i, 4) {
            __mmask16 m = mask16(n_keys - 16 * i);
            v[i] = _mm512_mask_mul_ps(lowest, m, v[i], _mm512_maskz_loadu_ps(m, k_scale + 16 * i));
        }
    top4 = _mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3]));
    top = _mm512_reduce_max_ps(top4);
    if (stats[0] > top) top = stats[0];
    KT_EACH (i, 4)
        v[i] = _mm512_maskz_mov_ps(mask16(n_keys - 16 * i),
                                   kt_exp_ps512(_mm512_sub_ps(v[i], _mm512_set1_ps(top))));
    if (v_scale)
        KT_EACH (i, 4) {
            total = _mm512_add_ps(total, v[i]);
            v[i] = _mm512_mul_ps(v[i],
                                 _mm512_maskz_loadu_ps(mask16(n_keys - 16 * i), v_scale + 16 * i));
        }
    KT_EACH (i, 2) {
        __m512i weights = to_bf16(v[2 * i], v[2 * i + 1]);
        _mm512_store_si512(s + 16 * i, weights);
        if (v_scale) continue;
        total =
            _mm512_add_ps(total, _mm512_add_ps(kt_bf16_even512(weights), kt_bf16_odd512(weights)));
    }
    /* exp(0) is exactly 1; after the first blocks the maximum hardly ever moves */
    keep = stats[0] == top ? 1.0f : _mm512_cvtss_f32(kt_exp_ps512(_mm512_set1_ps(stats[0] - top)));
    stats[0] = top;
    stats[1] = stats[1] * keep + _mm512_reduce_add_ps(total);
    return keep;
}

/* The largest, or the sum, of the lanes of four vectors, by the tree that reduces one: lanes i and
 * i + 8, + 4, + 2, + 1. Lane 4 r of the result belongs to a[r]. */
#define REDUCE_FOUR(a, op)                                                                      \
    __extension__({                                                                             \
        __m512 x_ =                                                                             \
            op(_mm512_shuffle_f32x4(a[0], a[1], 0x44), _mm512_shuffle_f32x4(a[0], a[1], 0xee)); \
        __m512 y_ =                                                                             \
            op(_mm512_shuffle_f32x4(a[2], a[3], 0x44), _mm512_shuffle_f32x4(a[2], a[3], 0xee)); \
        x_ = op(_mm512_shuffle_f32x4(x_, y_, 0x88), _mm512_shuffle_f32x4(x_, y_, 0xdd));        \
        x_ = op(x_, _mm512_shuffle_ps(x_, x_, 0x4e));                                           \
        op(x_, _mm512_shuffle_ps(x_, x_, 0xb1));                                                \
    })

/* Scores [16 i, 16 i + 16) of a row of n_keys, times the keys' scales; lowest where none is. */
KT_INLINE __m512 load_scores(const float *s, int64_t n_keys, const float *k_scale, const int i,
                             const int is_whole, const int is_scaled) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    const __mmask16 m = is_whole ? (__mmask16)0xffff : mask16(n_keys - 16 * i);
    const __m512 v = _mm512_mask_loadu_ps(lowest, m, s + 16 * i);

    if (!is_scaled) return v;
    return _mm512_mask_mul_ps(lowest, m, v, _mm512_maskz_loadu_ps(m, k_scale + 16 * i));
}

/* exp of scores less the largest, times the values' scales, to the row as BF16; their sum. Of nv
 * vectors, 2 or 4: those behind them have no keys. */
KT_INLINE __m512 store_weights(float *s, int64_t n_keys, const float *k_scale, const float *v_scale,
                               float top, const int is_whole, const int is_scaled, const int nv) {
    __m512 v[4], sum = _mm512_setzero_ps();

    KT_EACH (i, nv) {
        const __mmask16 m = is_whole ? (__mmask16)0xffff : mask16(n_keys - 16 * i);
        const __m512 x = load_scores(s, n_keys, k_scale, i, is_whole, is_scaled);
        v[i] = _mm512_maskz_mov_ps(m, kt_exp_ps512(_mm512_sub_ps(x, _mm512_set1_ps(top))));
        if (!is_scaled) continue;
        sum = _mm512_add_ps(sum, v[i]);
        v[i] = _mm512_mul_ps(v[i], _mm512_maskz_loadu_ps(m, v_scale + 16 * i));
    }
    KT_EACH (i, nv / 2) {
        const __m512i weights = to_bf16(v[2 * i], v[2 * i + 1]);
        _mm512_store_si512(s + 16 * i, weights);
        if (is_scaled) continue;
        sum = _mm512_add_ps(sum, _mm512_add_ps(kt_bf16_even512(weights), kt_bf16_odd512(weights)));
    }
    return sum;
}

/* soften for four queries: what takes long by itself, reducing vectors to numbers, is done for all
 * four at once. The same operations on each, and so the same bits. */
KT_INLINE void soften_four(float *s, const int64_t n_keys[4], const float *k_scale,
                           const float *v_scale, float *stats, float *keep, const int is_whole,
                           const int is_scaled, const int nv) {
    __m512 most[4], total[4];
    _Alignas(64) float number[16];
    float top[4];

    KT_EACH (r, 4) {
        const float *row = s + r * KT_ATTN_LDS;
        __m512 v[4];
        KT_EACH (i, nv) v[i] = load_scores(row, n_keys[r], k_scale, i, is_whole, is_scaled);
        most[r] = _mm512_max_ps(v[0], v[1]);
        if (nv == 4) most[r] = _mm512_max_ps(most[r], _mm512_max_ps(v[2], v[3]));
    }
    _mm512_store_ps(number, REDUCE_FOUR(most, _mm512_max_ps));
    KT_EACH (r, 4) top[r] = stats[2 * r] > number[4 * r] ? stats[2 * r] : number[4 * r];
    KT_EACH (r, 4)
        total[r] = store_weights(s + r * KT_ATTN_LDS, n_keys[r], k_scale, v_scale, top[r], is_whole,
                                 is_scaled, nv);
    _mm512_store_ps(number, REDUCE_FOUR(total, _mm512_add_ps));
    KT_EACH (r, 4) {
        keep[r] = 1.0f;
        if (stats[2 * r] != top[r])
            keep[r] = _mm512_cvtss_f32(kt_exp_ps512(_mm512_set1_ps(stats[2 * r] - top[r])));
        stats[2 * r] = top[r];
        stats[2 * r + 1] = stats[2 * r + 1] * keep[r] + number[4 * r];
    }
}

static void soften_rows(float *s, int64_t n_queries, int64_t n_keys, int64_t group, int64_t most,
                        const float *k_scale, const float *v_scale, float *stats, float *keep) {
    int64_t i = 0;

    for (; i + 4 <= n_queries; i += 4) {
        float *rows = s + i * KT_ATTN_LDS, *x = stats + 2 * i;
        int64_t n[4];
        KT_EACH (r, 4) {
            n[r] = n_keys + (i + r) / group;
            if (n[r] > most) n[r] = most;
        }
        if (k_scale)
            soften_four(rows, n, k_scale, v_scale, x, keep + i, 0, 1, 4);
        else if (n[0] == KEYS)
            soften_four(rows, n, NULL, NULL, x, keep + i, 1, 0, 4);
        else if (n[3] <= KEYS / 2)
            soften_four(rows, n, NULL, NULL, x, keep + i, 0, 0, 2);
        else
            soften_four(rows, n, NULL, NULL, x, keep + i, 0, 0, 4);
    }
    for (; i < n_queries; i++) {
        const int64_t n = n_keys + i / group;
        keep[i] = soften(s + i * KT_ATTN_LDS, n < most ? n : most, k_scale, v_scale, stats + 2 * i);
    }
}

/* ---- values ---- */

/* nq queries x 32 columns from column x on; nq and lines are constants at each call. */
KT_INLINE void weigh_tile(float *o, int64_t ldo, const float *keep, const float *s,
                          const uint16_t *v, int64_t ldv, int64_t d, int64_t x, int64_t n_keys,
                          const char *ask, const int lines, const int nq) {
    const __mmask32 m = mask32(d - x);
    __m512 sum[8][2];

    KT_EACH (r, nq) {
        KT_EACH (c, 2)
            sum[r][c] =
                _mm512_mul_ps(_mm512_set1_ps(keep[r]), _mm512_load_ps(o + r * ldo + x + 16 * c));
    }
    for (int64_t j = 0; j < n_keys; j += 2) {
        const uint16_t *row = v + j * ldv + x;
        __m512i a = _mm512_maskz_loadu_epi16(m, row), b = _mm512_setzero_si512(), low, high;
        if (j + 1 < n_keys) b = _mm512_maskz_loadu_epi16(m, row + ldv);
        ask_lines(ask + j * 32 * lines, lines);
        low = _mm512_unpacklo_epi16(a, b);
        high = _mm512_unpackhi_epi16(a, b);
        KT_EACH (r, nq) {
            __m512i p =
                _mm512_set1_epi32(kt_load_i32((const uint8_t *)(s + r * KT_ATTN_LDS + j / 2)));
            sum[r][0] = dot(sum[r][0], low, p);
            sum[r][1] = dot(sum[r][1], high, p);
        }
    }
    KT_EACH (r, nq) {
        KT_EACH (c, 2) _mm512_store_ps(o + r * ldo + x + 16 * c, sum[r][c]);
    }
}

/* Columns [x, end). A tile of 32 columns asks for as many of the values to come. */
KT_INLINE void weigh_rows(float *o, int64_t ldo, const float *keep, const float *s,
                          const uint16_t *v, int64_t ldv, int64_t d, int64_t x, int64_t end,
                          int64_t n_keys, const char *ask, const int nq) {
    for (; x < end; x += 32) {
        if (ask)
            weigh_tile(o, ldo, keep, s, v, ldv, d, x, n_keys, ask + x * 128, 2, nq);
        else
            weigh_tile(o, ldo, keep, s, v, ldv, d, x, n_keys, (const char *)v, 0, nq);
    }
}

/* Slices of long values stay in L1 for all queries. */
static void weigh(float *o, int64_t ldo, const float *keep, int64_t n_queries, const float *s,
                  const uint16_t *v, int64_t ldv, int64_t d, int64_t n_keys,
                  const kt_attn_next *next) {
    const int64_t lds = KT_ATTN_LDS;
    const char *const all =
        next->bytes > d ? ask_from(next) : NULL; /* codes are widened, not read here */

    for (int64_t x = 0; x < d; x += SLICE) {
        const int64_t end = x + SLICE < d ? x + SLICE : d;
        const char *ask = all; /* the first queries ask for what comes */
        int64_t i = 0;
        for (; i + 8 <= n_queries; i += 8, ask = NULL)
            weigh_rows(o + i * ldo, ldo, keep + i, s + i * lds, v, ldv, d, x, end, n_keys, ask, 8);
        for (; i + 4 <= n_queries; i += 4, ask = NULL)
            weigh_rows(o + i * ldo, ldo, keep + i, s + i * lds, v, ldv, d, x, end, n_keys, ask, 4);
        for (; i < n_queries; i++, ask = NULL)
            weigh_rows(o + i * ldo, ldo, keep + i, s + i * lds, v, ldv, d, x, end, n_keys, ask, 1);
    }
}

#endif
