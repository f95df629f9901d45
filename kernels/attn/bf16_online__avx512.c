/* Grouped-query attention over a BF16 or 8-bit cache with f32 arithmetic, decode and prefill alike.
 *
 * BF16 is widened without shuffles: of a dword that holds two elements a left shift by 16 gives the
 * first and a mask the second.
 *
 * Scores (scores512.h): a block of keys is turned round, lane j of a vector holds two elements of
 * key j. Values: eight queries x 32 columns stay in registers over a whole block of keys; sums are
 * kept as 16 even columns, then 16 odd ones, which store_sums undoes.
 *
 * Any head size: loads of the last 32 elements are masked. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/scores512.h"
#include "kernels/attn/soften512.h"
#include "kernels/attn/widen512.h"
#include "kernels/simd/bf16x512.h"

static void load_query(const float *q, int64_t d, float scale, float *out) {
    const __m512 s = _mm512_set1_ps(scale);
    for (int64_t i = 0; i < (d + 31) / 32 * 32; i += 16)
        _mm512_storeu_ps(out + i,
                         _mm512_mul_ps(s, _mm512_maskz_loadu_ps(kt_lanes512(d - i), q + i)));
}

static void store_sums(const float *o, int64_t d, float factor, float *out) {
    const __m512 f = _mm512_set1_ps(factor);
    const __m512i low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
    for (int64_t i = 0; i < d; i += 32) {
        __m512 e = _mm512_mul_ps(f, _mm512_loadu_ps(o + i));
        __m512 u = _mm512_mul_ps(f, _mm512_loadu_ps(o + i + 16));
        _mm512_mask_storeu_ps(out + i, kt_lanes512(d - i), _mm512_permutex2var_ps(e, low, u));
        _mm512_mask_storeu_ps(out + i + 16, kt_lanes512(d - i - 16),
                              _mm512_permutex2var_ps(e, high, u));
    }
}

KT_INLINE void score_pair(const float *q, int64_t ldq, int64_t p, const __m512i u[4], const int nq,
                          const int nv, __m512 sum[4][4]) {
    __m512 first[4], second[4];

    KT_EACH (c, nv) {
        first[c] = kt_bf16_even512(u[c]);
        second[c] = kt_bf16_odd512(u[c]);
    }
    KT_EACH (r, nq) {
        const __m512 a = _mm512_set1_ps(q[r * ldq + 2 * p]);
        const __m512 b = _mm512_set1_ps(q[r * ldq + 2 * p + 1]);
        KT_EACH (c, nv) sum[r][c] = _mm512_fmadd_ps(first[c], a, sum[r][c]);
        KT_EACH (c, nv) sum[r][c] = _mm512_fmadd_ps(second[c], b, sum[r][c]);
    }
}

static void load_keys(const kt_attn_part *t, void *keys) {
    turn_keys(&t->k, keys, _mm512_setzero_si512(), 2);
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

/* nq queries from i on x 32 nv columns from column x on; nq, nv, lines and is_whole are constants
 * at each call. Each key asks for so many lines of the values to come. is_whole: there are so many
 * columns, and loads need no mask. */
KT_INLINE void weigh_tile(const kt_attn_part *t, int64_t i, int64_t x, const char *ask,
                          const int lines, const int is_whole, const int nq, const int nv) {
    const int64_t n_keys = t->n_keys;
    const kt_attn_rows rows = t->v;
    const float *s = t->s + i * KT_ATTN_LDS;
    const __mmask32 m = mask32(rows.d - x);
    __m512 sum[4][KT_ATTN_FEW][2];

    KT_EACH (c, nv) begin_sums(t, i, x + 32 * c, sum[c], nq);
    for (int64_t j = 0; j < n_keys; j++) {
        const uint16_t *v = kt_attn_row(&rows, j) + x;
        ask_lines(ask + j * 64 * lines, lines, rows.is_near);
        KT_EACH (c, nv) {
            const __m512i pairs =
                is_whole ? _mm512_loadu_si512(v + 32 * c) : _mm512_maskz_loadu_epi16(m, v + 32 * c);
            const __m512 first = kt_bf16_even512(pairs), second = kt_bf16_odd512(pairs);
            KT_EACH (r, nq) {
                const __m512 p = _mm512_set1_ps(s[r * KT_ATTN_LDS + j]);
                sum[c][r][0] = _mm512_fmadd_ps(p, first, sum[c][r][0]);
                sum[c][r][1] = _mm512_fmadd_ps(p, second, sum[c][r][1]);
            }
        }
    }
    KT_EACH (c, nv) end_sums(t, i, x + 32 * c, sum[c], nq);
}

/* One query meets 128 columns at a time: its two sums of 32 would wait for each other. Lines of the
 * values to come are asked for in their order, or NULL: the cores' own prefetchers follow that. */
KT_INLINE void weigh_columns(const kt_attn_part *t, int64_t i, const char *ask, const int lines,
                             const int nq) {
    int64_t x = 0;

    for (; nq == 1 && x + 128 <= t->v.d; x += 128)
        weigh_tile(t, i, x, ask + 64 * lines * x / 32 * KEYS, 4 * lines, 1, nq, 4);
    for (; x + 32 <= t->v.d; x += 32)
        weigh_tile(t, i, x, ask + 64 * lines * x / 32 * KEYS, lines, 1, nq, 1);
    if (x < t->v.d) weigh_tile(t, i, x, ask + 64 * lines * x / 32 * KEYS, lines, 0, nq, 1);
}

KT_INLINE void weigh_queries(const kt_attn_part *t, int64_t i, const char *ask, const int nq) {
    if (ask && i == 0)
        weigh_columns(t, i, ask, 1, nq);
    else
        weigh_columns(t, i, (const char *)t->v.at, 0, nq);
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const char *const ask = t->for_values.bytes > t->v.d ? ask_from(&t->for_values)
                                                         : NULL; /* codes are widened, not read */
    int64_t i = 0;

    for (; i + 8 <= t->n; i += 8) {
        kt_attn_ask(t->ask, t->ask_eight);
        weigh_queries(t, i, ask, 8);
    }
    for (; i + 4 <= t->n; i += 4) weigh_queries(t, i, ask, 4);
    for (; i < t->n; i++) weigh_queries(t, i, ask, 1);
}

static const kt_attn_inner inner = {.lanes = 32,
                                    .load_query = load_query,
                                    .widen = kt_widen512,
                                    .keys_bytes = keys_bytes,
                                    .load_keys = load_keys,
                                    .scores = scores,
                                    .soften_all = soften_all,
                                    .weighs_from_any = true,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

KT_ATTN_VARIANT(bf16_online__avx512, .weights = KT_ATTN_CACHES, .isa = KT_ISA_AVX512,
                .numerics = KT_NUM_F32, .bits = "turned512", .version = 3, .rank = 1,
                .params = params, .accepts = kt_attn_accepts);
