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
#define SCORES 16
#include "kernels/attn/online.h"
#include "kernels/attn/soften512.h"
#include "kernels/attn/widen512.h"

KT_INLINE __m512 even(__m512i pairs) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16));
}
KT_INLINE __m512 odd(__m512i pairs) {
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

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 e = _mm512_mul_ps(f, _mm512_loadu_ps(o + i));
        __m512 u = _mm512_mul_ps(f, _mm512_loadu_ps(o + i + 16));
        _mm512_mask_storeu_ps(out + i, mask16(d - i), _mm512_permutex2var_ps(e, low, u));
        _mm512_mask_storeu_ps(out + i + 16, mask16(d - i - 16), _mm512_permutex2var_ps(e, high, u));
    }
}

/* Lane 4 i + j of the result is the sum of the lanes of a[i + 4 j]. */
KT_INLINE __m512 sum_lanes(__m512 a[16]) {
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

KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, int64_t j, const int nq) {
    const int nk = SCORES / nq;
    const int64_t d = t->k.d, ldq = t->ldq, lds = KT_ATTN_LDS;
    const float *q = t->q + i * ldq;
    const uint16_t *key[SCORES];
    float *s = t->s + i * lds;
    __m512 sum[SCORES], all;

    for (int n = 0; n < nk; n++) key[n] = key_or_last(t, j + n);
    for (int n = 0; n < SCORES; n++) sum[n] = _mm512_setzero_ps();
    for (int64_t x = 0; x < d; x += 32) {
        __mmask32 m = mask32(d - x);
        for (int n = 0; n < nk; n++) {
            __m512i pairs = _mm512_maskz_loadu_epi16(m, key[n] + x);
            __m512 a = even(pairs), b = odd(pairs);
            for (int r = 0; r < nq; r++) {
                int lane = r * nk + n, at = lane / 4 + 4 * (lane % 4);
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

/* Scales of values multiply what was summed. */
KT_INLINE __m512 put_weights(const kt_attn_part *t, float *s, int64_t n_keys, float top,
                             const softening how) {
    __m512 v[4], sum;

    load_scores(t, s, n_keys, how, v);
    KT_EACH (i, how.nv)
        v[i] = _mm512_maskz_mov_ps(seen(n_keys, i, how),
                                   kt_exp_ps512(_mm512_sub_ps(v[i], _mm512_set1_ps(top))));
    sum = _mm512_add_ps(v[0], v[1]);
    if (how.nv == 4) sum = _mm512_add_ps(sum, _mm512_add_ps(v[2], v[3]));
    KT_EACH (i, how.nv) {
        const __mmask16 m = seen(n_keys, i, how);
        if (how.is_scaled)
            v[i] = _mm512_mul_ps(v[i], _mm512_maskz_loadu_ps(m, t->v_scale + 16 * i));
        _mm512_store_ps(s + 16 * i, v[i]);
    }
    return sum;
}

/* nq queries from i on x nv * 32 columns from column x on; nq and nv are constants at each call. */
KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, const int nq, const int nv) {
    const int64_t lds = KT_ATTN_LDS, ldo = t->ldo, n_keys = t->n_keys;
    const kt_attn_rows rows = t->v;
    const float *s = t->s + i * lds;
    float *o = t->o + i * ldo + x;
    __m512 sum[4][4];
    __mmask32 m[2];

    for (int c = 0; c < nv; c++) m[c] = mask32(rows.d - x - 32 * c);
    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++)
            sum[r][c] = _mm512_mul_ps(_mm512_set1_ps(t->keep[i + r]),
                                      _mm512_loadu_ps(o + r * ldo + 16 * c));
    for (int64_t j = 0; j < n_keys; j++) {
        const uint16_t *v = kt_attn_row(&rows, j) + x;
        __m512 value[4];
        kt_attn_fetch(&rows, j, 1, x, x + 32 * nv, 32);
        for (int c = 0; c < nv; c++) {
            __m512i pairs = _mm512_maskz_loadu_epi16(m[c], v + 32 * c);
            value[2 * c] = even(pairs);
            value[2 * c + 1] = odd(pairs);
        }
        for (int r = 0; r < nq; r++) {
            __m512 p = _mm512_set1_ps(s[r * lds + j]);
            for (int c = 0; c < 2 * nv; c++) sum[r][c] = _mm512_fmadd_ps(p, value[c], sum[r][c]);
        }
    }
    for (int r = 0; r < nq; r++)
        for (int c = 0; c < 2 * nv; c++) _mm512_storeu_ps(o + r * ldo + 16 * c, sum[r][c]);
}

KT_INLINE void weigh_columns(const kt_attn_part *t, int64_t i, const int nq) {
    const int64_t d = t->v.d;
    int64_t x = 0;

    for (; x + 32 < d; x += 64) weigh_tile(t, i, x, nq, 2);
    if (x < d) weigh_tile(t, i, x, nq, 1);
}

static const kt_attn_inner inner = {.lanes = 32,
                                    .load_query = load_query,
                                    .widen = kt_widen512,
                                    .scores = scores,
                                    .soften_all = soften_all,
                                    .weighs_from_any = true,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

KT_ATTN_VARIANT(bf16_online__avx512, .weights = KT_ATTN_CACHES, .isa = KT_ISA_AVX512,
                .numerics = KT_NUM_F32, .bits = "online512", .version = 2, .rank = 1,
                .params = kt_attn_params, .accepts = kt_attn_accepts);
