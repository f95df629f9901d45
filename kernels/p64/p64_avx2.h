/* Panel kernels for AVX2: rows of encoded activations times one p64 panel (64 output rows).
 *
 * Each function fills one kt_p64_tile. A quarter of the panel's 64 rows, two registers of eight, meets
 * four activation rows at a time (p64_blocked.h); BF16 is here. The sums of a row run over k in
 * ascending order whatever `rows` is.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AVX2_H
#define KT_SIMD_P64_AVX2_H

#include "kernels/p64/words256.h"

/* VPMADDUBSW adds two products of a 4-bit code and an int8: at most 2 * 15 * 127 = 3810, so the 8 steps
 * of a group fit int16 (30480) and widen once per group. */
KT_INLINE kt_vi kt_dot_first(kt_vi u, kt_vi q, kt_vi start) {
    (void)start;
    return _mm256_maddubs_epi16(u, q);
}
KT_INLINE kt_vi kt_dot_next(kt_vi sum, kt_vi u, kt_vi q) {
    return kt_v_keep(_mm256_add_epi16(sum, _mm256_maddubs_epi16(u, q)));
}
KT_INLINE kt_vi kt_dot_last(kt_vi sum, kt_vi start) {
    return _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), start);
}

#define KT_DOT_APART 1
#include "kernels/p64/p64_blocked.h"

/* BF16: FMA in f32, whose products of two bfloat16 are exact. A block of k of the rows and of a slice of
 * the panel is widened to f32 once; six rows by two vectors of sums stay in registers over the block. */
#define KT_BF16_K 64      /* inputs of a block: 4 KiB of weights, half of a block of FP8 */
#define KT_BF16_BLOCK 128 /* rows that widened weights serve */
#define KT_BF16_ROWS 6
#define KT_BF16_WIDEN 12 /* rows from which widening weights into L1 pays */

typedef struct kt_bf16_block {
    const float *w;              /* [k][16] */
    const float (*a)[KT_BF16_K]; /* from the first row on */
    float *out;                  /* the sums, 64 floats from row to row */
    int k;
} kt_bf16_block;

/* Where input j of a block lies in a row of f32: of sixteen first the even ones, then the odd ones. */
KT_INLINE int kt_bf16_at(int j) {
    return (j & ~15) + j % 16 / 2 + j % 2 * 8;
}

KT_INLINE void kt_micro_bf16(const kt_bf16_block *b, const int rows) {
    const float *w = b->w, (*a)[KT_BF16_K] = b->a;
    const int k = b->k;
    __m256 sum[KT_BF16_ROWS][2];

    KT_EACH (r, rows) {
        sum[r][0] = _mm256_load_ps(b->out + 64 * r);
        sum[r][1] = _mm256_load_ps(b->out + 64 * r + 8);
    }
    for (int j = 0; j < k; j += 2, w += 32) {
        const int even = kt_bf16_at(j);
        KT_EACH (odd, 2) {
            const __m256 w0 = _mm256_load_ps(w + 16 * odd), w1 = _mm256_load_ps(w + 16 * odd + 8);
            KT_EACH (r, rows) {
                const __m256 x = _mm256_broadcast_ss(&a[r][even + 8 * odd]);
                sum[r][0] = _mm256_fmadd_ps(w0, x, sum[r][0]);
                sum[r][1] = _mm256_fmadd_ps(w1, x, sum[r][1]);
            }
        }
    }
    KT_EACH (r, rows) {
        _mm256_store_ps(b->out + 64 * r, sum[r][0]);
        _mm256_store_ps(b->out + 64 * r + 8, sum[r][1]);
    }
}

/* Constant row counts, so that loops unroll and sums are registers. The last seven or eight rows go as four
 * and the rest: fewer than eight sums would wait for each other. */
static inline void kt_rows_bf16(kt_bf16_block b, int rows) {
    while (rows > 0) {
        const int now = rows > 8 || rows == 6 ? 6 : rows > 6 ? 4 : rows;
        switch (now) {
        case 1: kt_micro_bf16(&b, 1); break;
        case 2: kt_micro_bf16(&b, 2); break;
        case 3: kt_micro_bf16(&b, 3); break;
        case 4: kt_micro_bf16(&b, 4); break;
        case 5: kt_micro_bf16(&b, 5); break;
        default: kt_micro_bf16(&b, 6); break;
        }
        rows -= now;
        b.a += now;
        b.out += now * 64;
    }
}

/* A pair of weights is two f32 by shift and mask. */
KT_INLINE void kt_widen_pairs(const uint8_t *panel, int pairs, float *out) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    for (int p = 0; p < pairs; p++, panel += 256, out += 32)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            _mm256_store_ps(out + 8 * c, _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
            _mm256_store_ps(out + 16 + 8 * c, _mm256_castsi256_ps(_mm256_and_si256(v, high)));
        }
}

/* A few rows widen weights as they come: `rows` by `columns` sums over one block of k. */
KT_INLINE void kt_direct_bf16(const kt_bf16_block *b, const uint8_t *panel, const int rows,
                              const int columns) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    __m256 sum[4][8];

    KT_EACH (r, rows) {
        KT_EACH (c, columns) sum[r][c] = _mm256_load_ps(b->out + 64 * r + 8 * c);
    }
    for (int j = 0; j < b->k; j += 2, panel += 256) {
        __m256 x[4];
        const int at = kt_bf16_at(j);
        KT_EACH (r, rows) x[r] = _mm256_broadcast_ss(&b->a[r][at]);
        KT_EACH (c, columns) {
            const __m256i even = _mm256_slli_epi32(kt_v_load(panel + 32 * c), 16);
            KT_EACH (r, rows) {
                sum[r][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(even), x[r], sum[r][c]);
            }
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) x[r] = _mm256_broadcast_ss(&b->a[r][at + 8]);
        KT_EACH (c, columns) {
            const __m256i odd = _mm256_and_si256(kt_v_load(panel + 32 * c), high);
            KT_EACH (r, rows) {
                sum[r][c] = _mm256_fmadd_ps(_mm256_castsi256_ps(odd), x[r], sum[r][c]);
            }
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, columns) _mm256_store_ps(b->out + 64 * r + 8 * c, sum[r][c]);
    }
}

/* All 64 panel rows. Eight sums or more, so that their chains cover the latency of FMA. */
static inline void kt_few_rows_bf16(kt_bf16_block b, const uint8_t *panel, int rows) {
    float *out = b.out;
    for (; rows > 0; rows -= 4, b.a += 4, out += 4 * 64) {
        const int columns = rows == 1 ? 8 : rows == 2 ? 4 : 2;
        for (int c = 0; c < 8; c += columns) {
            b.out = out + 8 * c;
            switch (rows) {
            case 1: kt_direct_bf16(&b, panel + 32 * c, 1, 8); break;
            case 2: kt_direct_bf16(&b, panel + 32 * c, 2, 4); break;
            case 3: kt_direct_bf16(&b, panel + 32 * c, 3, 2); break;
            default: kt_direct_bf16(&b, panel + 32 * c, 4, 2); break;
            }
        }
    }
}

/* A block of k of the rows in f32. */
KT_INLINE void kt_widen_acts(const kt_p64_tile *t, int64_t k, int length, float (*a)[KT_BF16_K]) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    for (int r = 0; r < t->rows; r++)
        for (int j = 0; j < length; j += 16) {
            const __m256i v = kt_v_load((const uint8_t *)t->a[r] + 2 * (k + j));
            _mm256_store_ps(&a[r][j], _mm256_castsi256_ps(_mm256_slli_epi32(v, 16)));
            _mm256_store_ps(&a[r][j + 8], _mm256_castsi256_ps(_mm256_and_si256(v, high)));
        }
}

/* A quarter of the rows' next block of k, into L1 or nearly: rows lie anywhere in L3. */
KT_INLINE void kt_fetch_acts(const kt_p64_tile *t, int64_t k, int quarter) {
    if (k >= t->k) return;
    for (int r = quarter; r < t->rows; r += 4)
        for (int j = 0; j < KT_BF16_K; j += 32)
            _mm_prefetch((const char *)t->a[r] + 2 * (k + j), _MM_HINT_T1);
}

static inline void kt_tile_wbf16_avx2(const kt_p64_tile *t) {
    _Alignas(64) float a[KT_BF16_BLOCK][KT_BF16_K], w[KT_BF16_K * 16];

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += KT_BF16_K) {
        const int length = t->k - k < KT_BF16_K ? (int)(t->k - k) : KT_BF16_K;
        const uint8_t *panel = t->panel + 128 * k;
        kt_bf16_block block = {w, (const float(*)[KT_BF16_K])a, t->tile, length};

        kt_fetch_next(t, panel, 128 * length);
        kt_widen_acts(t, k, length, a);
        if (t->rows < KT_BF16_WIDEN) {
            kt_few_rows_bf16(block, panel, t->rows);
            continue;
        }
        for (int slice = 0; slice < 4; slice++, block.out += 16) {
            kt_fetch_acts(t, k + KT_BF16_K, slice);
            kt_widen_pairs(panel + 64 * slice, length / 2, w);
            kt_rows_bf16(block, t->rows);
        }
    }
}

/* --- F16 and FP8 weights: widened to f32 for any number of rows --------------------------------- */

/* `pairs` pairs of inputs of 16 panel rows -> f32 [k][16]. */
KT_INLINE void kt_widen_f16(const uint8_t *panel, int pairs, float *out) {
    const __m256i low = _mm256_set1_epi32(0xffff);
    for (int p = 0; p < pairs; p++, panel += 256, out += 32)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            /* The pack works per 128-bit lane; the permutation gathers even, then odd inputs. */
            const __m256i both = _mm256_permute4x64_epi64(
                _mm256_packus_epi32(_mm256_and_si256(v, low), _mm256_srli_epi32(v, 16)), 0xd8);
            _mm256_store_ps(out + 8 * c, _mm256_cvtph_ps(_mm256_castsi256_si128(both)));
            _mm256_store_ps(out + 16 + 8 * c, _mm256_cvtph_ps(_mm256_extracti128_si256(both, 1)));
        }
}

/* Eight words with an E4M3 code in the high byte -> f32. Shifted right by one arithmetically, sign and
 * exponent lie where half precision has them, 2^8 too small; denormals come out right too. The one
 * magnitude that is not a number, 127, is put in by hand. */
KT_INLINE __m256 kt_f8_to_float(__m128i words) {
    const __m128i magnitude = _mm_and_si128(words, _mm_set1_epi16(0x7f00));
    const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f00));
    const __m128i half = _mm_and_si128(_mm_srai_epi16(words, 1), _mm_set1_epi16((short)0xbf80));
    const __m128i safe = _mm_blendv_epi8(half, _mm_set1_epi16(0x7e00), is_nan);
    return _mm256_mul_ps(_mm256_cvtph_ps(safe), _mm256_set1_ps(256.0f));
}

/* `quads` four inputs of 16 panel rows -> f32 [k][16], times scale. Sixteen bytes hold four rows: two
 * inputs of each, then their next two. */
KT_INLINE void kt_widen_f8(const uint8_t *panel, int quads, float scale, float *out) {
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, -1, 2, -1, 4, -1, 6, -1, 1, -1, 3, -1, 5, -1, 7));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 8, -1, 10, -1, 12, -1, 14, -1, 9, -1, 11, -1, 13, -1, 15));
    const __m256 factor = _mm256_set1_ps(scale);

    for (int p = 0; p < quads; p++, panel += 256, out += 64)
        for (int c = 0; c < 2; c++) {
            const __m256i v = kt_v_load(panel + 32 * c);
            for (int h = 0; h < 2; h++) {
                const __m256i words =
                    _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, h ? second : first), 0xd8);
                float *to = out + 32 * h + 8 * c;
                _mm256_store_ps(
                    to, _mm256_mul_ps(kt_f8_to_float(_mm256_castsi256_si128(words)), factor));
                _mm256_store_ps(
                    to + 16,
                    _mm256_mul_ps(kt_f8_to_float(_mm256_extracti128_si256(words, 1)), factor));
            }
        }
}

/* Inputs [k, k + length) of a slice. A block lies within one scale of FP8 in blocks of 128. */
KT_INLINE void kt_widen_slice(const kt_p64_tile *t, int64_t k, int length, int slice, float *w) {
    float scale = 1.0f;
    if (t->weights == KT_W_F16) {
        kt_widen_f16(t->panel + 128 * k + 64 * slice, length / 2, w);
        return;
    }
    if (t->weights == KT_W_FP8_B128)
        memcpy(&scale, t->panel + 64 * t->k + 4 * (k / 128 * 2 + slice / 2), sizeof scale);
    kt_widen_f8(t->panel + 64 * k + 64 * slice, length / 4, scale, w);
}

static inline void kt_tile_wfloat_avx2(const kt_p64_tile *t) {
    _Alignas(64) float a[KT_BF16_BLOCK][KT_BF16_K], w[KT_BF16_K * 16];

    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t k = 0; k < t->k; k += KT_BF16_K) {
        const int length = t->k - k < KT_BF16_K ? (int)(t->k - k) : KT_BF16_K;
        const int bytes = t->weights == KT_W_F16 ? 128 : 64;
        kt_bf16_block block = {w, (const float(*)[KT_BF16_K])a, t->tile, length};

        kt_fetch_next(t, t->panel + bytes * k, bytes * length);
        kt_widen_acts(t, k, length, a);
        for (int slice = 0; slice < 4; slice++, block.out += 16) {
            kt_fetch_acts(t, k + KT_BF16_K, slice);
            kt_widen_slice(t, k, length, slice, w);
            kt_rows_bf16(block, t->rows);
        }
    }
    if (t->weights == KT_W_FP8_CHANNEL) kt_scale_channels(t);
}

static inline void kt_tile_w4g32_avx2(const kt_p64_tile *t) {
    kt_tile_w4g32_blocked(t);
}

static inline void kt_tile_w8c_avx2(const kt_p64_tile *t) {
    kt_tile_w8c_words(t);
}

#endif
