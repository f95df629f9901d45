/* Grouped-query attention over a BF16 or 8-bit cache with f32 arithmetic, decode and prefill alike.
 *
 * BF16 is widened without shuffles: of 32 values loaded as 16 dwords, a left shift by 16 gives the
 * even elements and a mask the odd ones. Queries and sums are kept in that order (16 even, 16 odd, per
 * 32), which a dot product does not notice and store_sums undoes.
 *
 * Scores: 16 dot products at a time, as 4 queries x 4 keys, 2 x 8 or 1 x 16, one accumulator each;
 * then one tree adds the lanes of all 16 (lane i + 8, + 4, + 2, + 1), so the shape of the tile does not
 * show in the result. Past the last key the tile reads the last key again and its scores are ignored.
 * Values: 4 queries x 64 columns stay in registers over a whole block of keys.
 *
 * Any head size: loads of the last 32 elements are masked.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>

#include "kernels/attn/widen512.h"
#include "kernels/simd/exp512.h"

#define INLINE static inline __attribute__((always_inline))

INLINE __mmask32 mask32(int64_t left) {
    return left >= 32 ? (__mmask32)0xffffffffu : (__mmask32)((1u << left) - 1u);
}
INLINE __mmask16 mask16(int64_t left) {
    return left >= 16 ? (__mmask16)0xffff : left <= 0 ? 0 : (__mmask16)((1u << left) - 1u);
}
INLINE __m512 even(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
INLINE __m512 odd(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32((int)0xffff0000u)));
}

static void load_query(const float *q, int64_t d, float scale, float *out) {
    const __m512i evens =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odds = _mm512_add_epi32(evens, _mm512_set1_epi32(1));
    const __m512 s = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < d; i += 32) {
        __m512 lo = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(mask16(d - i), q + i));
        __m512 hi = _mm512_mul_ps(s, _mm512_maskz_loadu_ps(mask16(d - i - 16), q + i + 16));
        _mm512_storeu_ps(out + i, _mm512_permutex2var_ps(lo, evens, hi));
        _mm512_storeu_ps(out + i + 16, _mm512_permutex2var_ps(lo, odds, hi));
    }
}

static void store_sums(const float *o, int64_t d, float *out) {
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 e = _mm512_loadu_ps(o + i), u = _mm512_loadu_ps(o + i + 16);
        _mm512_mask_storeu_ps(out + i, mask16(d - i), _mm512_permutex2var_ps(e, low, u));
        _mm512_mask_storeu_ps(out + i + 16, mask16(d - i - 16), _mm512_permutex2var_ps(e, high, u));
    }
}

/* Lane 4 i + j of the result is the sum of the lanes of a[i + 4 j]. */
INLINE __m512 sum_lanes(__m512 a[16]) {
    for (int i = 0; i < 8; i++) /* a[i] = 8 sums of each of a[2i], a[2i + 1] */
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xee));
    for (int i = 0; i < 4; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0x88),
                             _mm512_shuffle_f32x4(a[2 * i], a[2 * i + 1], 0xdd));
    for (int i = 0; i < 2; i++)
        a[i] = _mm512_add_ps(_mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0x44),
                             _mm512_shuffle_ps(a[2 * i], a[2 * i + 1], 0xee));
    return _mm512_add_ps(_mm512_shuffle_ps(a[0], a[1], 0x88), _mm512_shuffle_ps(a[0], a[1], 0xdd));
}

/* nq queries x 16 / nq keys; nq is a constant at each call. */
INLINE void score_tile(const float *q, int64_t ldq, const uint16_t *k, int64_t ldk, int64_t d,
                       int64_t n_keys, int64_t j, float *s, int64_t lds, const int nq) {
    const int nk = 16 / nq;
    const uint16_t *key[16];
    __m512 sum[16], all;

    for (int i = 0; i < nk; i++) key[i] = k + (j + i < n_keys ? j + i : n_keys - 1) * ldk;
    for (int i = 0; i < 16; i++) sum[i] = _mm512_setzero_ps();
    for (int64_t x = 0; x < d; x += 32) {
        __mmask32 m = mask32(d - x);
        for (int i = 0; i < nk; i++) {
            __m512i pairs = _mm512_maskz_loadu_epi16(m, key[i] + x);
            __m512 a = even(pairs), b = odd(pairs);
            for (int r = 0; r < nq; r++) {
                int lane = r * nk + i, at = lane / 4 + 4 * (lane % 4);
                sum[at] = _mm512_fmadd_ps(_mm512_loadu_ps(q + r * ldq + x), a, sum[at]);
                sum[at] = _mm512_fmadd_ps(_mm512_loadu_ps(q + r * ldq + x + 16), b, sum[at]);
            }
        }
    }
    all = sum_lanes(sum);
    if (nq == 1) _mm512_storeu_ps(s + j, all);
    if (nq == 2) {
        _mm256_storeu_ps(s + j, _mm512_castps512_ps256(all));
        _mm256_storeu_ps(s + lds + j, _mm512_extractf32x8_ps(all, 1));
    }
    if (nq == 4) {
        _mm_storeu_ps(s + j, _mm512_castps512_ps128(all));
        _mm_storeu_ps(s + lds + j, _mm512_extractf32x4_ps(all, 1));
        _mm_storeu_ps(s + 2 * lds + j, _mm512_extractf32x4_ps(all, 2));
        _mm_storeu_ps(s + 3 * lds + j, _mm512_extractf32x4_ps(all, 3));
    }
}

/* Each four queries fetch their share of the lines of keys to come. */
static void scores(const float *q, int64_t ldq, int64_t n_queries, const uint16_t *k, int64_t ldk,
                   int64_t d, int64_t n_keys, int64_t ahead, float *s) {
    const int64_t lds = KT_ATTN_LDS, fours = (n_queries + 3) / 4;
    int64_t i = 0;
    for (; i + 4 <= n_queries; i += 4)
        for (int64_t j = 0; j < n_keys; j += 4) {
            kt_attn_fetch(k + j * ldk, ldk, 4, i / 4 * 32, d, fours * 32, ahead);
            score_tile(q + i * ldq, ldq, k, ldk, d, n_keys, j, s + i * lds, lds, 4);
        }
    for (; i + 2 <= n_queries; i += 2)
        for (int64_t j = 0; j < n_keys; j += 8) {
            kt_attn_fetch(k + j * ldk, ldk, 8, i / 4 * 32, d, fours * 32, ahead);
            score_tile(q + i * ldq, ldq, k, ldk, d, n_keys, j, s + i * lds, lds, 2);
        }
    for (; i < n_queries; i++)
        for (int64_t j = 0; j < n_keys; j += 16) {
            kt_attn_fetch(k + j * ldk, ldk, 16, i / 4 * 32, d, fours * 32, ahead);
            score_tile(q + i * ldq, ldq, k, ldk, d, n_keys, j, s + i * lds, lds, 1);
        }
}

static float soften(float *s, int64_t n_keys, const float *k_scale, const float *v_scale,
                    float *stats) {
    const __m512 lowest = _mm512_set1_ps(-__builtin_inff());
    __m512 v[4], sum[4];
    float top, keep;

    for (int i = 0; i < 4; i++)
        v[i] = _mm512_mask_loadu_ps(lowest, mask16(n_keys - 16 * i), s + 16 * i);
    for (int i = 0; k_scale && i < 4; i++) {
        __mmask16 m = mask16(n_keys - 16 * i);
        v[i] = _mm512_mask_mul_ps(lowest, m, v[i], _mm512_maskz_loadu_ps(m, k_scale + 16 * i));
    }
    top = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_max_ps(v[0], v[1]), _mm512_max_ps(v[2], v[3])));
    if (stats[0] > top) top = stats[0];
    for (int i = 0; i < 4; i++) {
        __mmask16 m = mask16(n_keys - 16 * i);
        sum[i] = _mm512_maskz_mov_ps(m, kt_exp_ps512(_mm512_sub_ps(v[i], _mm512_set1_ps(top))));
        _mm512_storeu_ps(s + 16 * i,
                         v_scale ? _mm512_mul_ps(sum[i], _mm512_maskz_loadu_ps(m, v_scale + 16 * i))
                                 : sum[i]);
    }
    keep = _mm512_cvtss_f32(kt_exp_ps512(_mm512_set1_ps(stats[0] - top)));
    stats[0] = top;
    stats[1] = stats[1] * keep + _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(sum[0], sum[1]),
                                                                    _mm512_add_ps(sum[2], sum[3])));
    return keep;
}

/* nq queries x nv * 32 columns from column x on; nq and nv are constants at each call. */
INLINE void weigh_tile(float *o, int64_t ldo, const float *keep, const float *s, int64_t lds,
                       const uint16_t *v, int64_t ldv, int64_t d, int64_t x, int64_t n_keys,
                       int64_t ahead, const int nq, const int nv) {
    __m512 sum[4][4];
    __mmask32 m[2];

    for (int c = 0; c < nv; c++) m[c] = mask32(d - x - 32 * c);
    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++)
            sum[r][c] =
                _mm512_mul_ps(_mm512_set1_ps(keep[r]), _mm512_loadu_ps(o + r * ldo + x + 16 * c));
    for (int64_t j = 0; j < n_keys; j++) {
        __m512 value[4];
        kt_attn_fetch(v + j * ldv, ldv, 1, x, x + 32 * nv, 32, ahead);
        for (int c = 0; c < nv; c++) {
            __m512i pairs = _mm512_maskz_loadu_epi16(m[c], v + j * ldv + x + 32 * c);
            value[2 * c] = even(pairs);
            value[2 * c + 1] = odd(pairs);
        }
        for (int r = 0; r < nq; r++) {
            __m512 p = _mm512_set1_ps(s[r * lds + j]);
            for (int c = 0; c < 2 * nv; c++) sum[r][c] = _mm512_fmadd_ps(p, value[c], sum[r][c]);
        }
    }
    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++) _mm512_storeu_ps(o + r * ldo + x + 16 * c, sum[r][c]);
}

INLINE void weigh_rows(float *o, int64_t ldo, const float *keep, const float *s, const uint16_t *v,
                       int64_t ldv, int64_t d, int64_t n_keys, int64_t ahead, const int nq) {
    int64_t x = 0;
    for (; x + 32 < d; x += 64)
        weigh_tile(o, ldo, keep, s, KT_ATTN_LDS, v, ldv, d, x, n_keys, ahead, nq, 2);
    if (x < d) weigh_tile(o, ldo, keep, s, KT_ATTN_LDS, v, ldv, d, x, n_keys, ahead, nq, 1);
}

static void weigh(float *o, int64_t ldo, const float *keep, int64_t n_queries, const float *s,
                  const uint16_t *v, int64_t ldv, int64_t d, int64_t n_keys,
                  const kt_attn_next *next) {
    const int64_t ahead = next->ahead;
    const int64_t lds = KT_ATTN_LDS;
    int64_t i = 0;
    for (; i + 4 <= n_queries; i += 4)
        weigh_rows(o + i * ldo, ldo, keep + i, s + i * lds, v, ldv, d, n_keys, ahead, 4);
    for (; i < n_queries; i++)
        weigh_rows(o + i * ldo, ldo, keep + i, s + i * lds, v, ldv, d, n_keys, ahead, 1);
}

static const kt_attn_inner inner = {.lanes = 32,
                                    .load_query = load_query,
                                    .widen = kt_widen512,
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

KT_VARIANT(bf16_online__avx512) = {
    .name = "bf16_online__avx512",
    .op = KT_OP_ATTN,
    .weights = KT_ATTN_CACHES,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "online512",
    .version = 2,
    .layout = "",
    .rank = 1,
    .params = kt_attn_params,
    .n_params = KT_ATTN_N_PARAMS,
    .accepts = kt_attn_accepts,
    .workspace_bytes = workspace_bytes,
    .attn = attn,
};
