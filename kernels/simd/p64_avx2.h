/* Panel kernels for AVX2: rows of encoded activations times one p64 panel (64 output rows).
 *
 * Each function fills one kt_p64_tile. The eight 8-row columns of a
 * panel are one YMM register each (8 rows x 4 bytes), so the layout of the AVX-512 kernels is read
 * as it is. The sums of a row run over k in ascending order whatever `rows` is.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AVX2_H
#define KT_SIMD_P64_AVX2_H

#include <immintrin.h>
#include <string.h>

#include "kernels/simd/p64_glue.h"

#define KT_AVX2_ROWS 8 /* rows per tile: the tile (2 KiB) and the rows' groups stay in L1 */

/* Bytes ahead of the stream: hardware prefetch stops at the end of a 4 KiB page. */
#define KT_AVX2_PREFETCH 2048

static inline __m256i kt_bcast_dword(const int8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
}

static inline __m256 kt_load_bf16_8(const uint8_t *p) {
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

/* INT4 in groups of 32. VPMADDUBSW adds two products of a 4-bit code and an int8: at most
 * 2 * 15 * 127 = 3810, so the 8 steps of a group fit int16 (30480) and widen once per group. */
KT_INLINE void kt_tile_w4g32_avx2(const kt_p64_tile *tile) {
    const __m256i mask = _mm256_set1_epi8(15), ones = _mm256_set1_epi16(1);

    const uint8_t *panel = tile->panel;
    const int64_t k = tile->k;

    memset(tile->tile, 0, sizeof(float) * 64 * (size_t)tile->rows);
    for (int64_t g = 0; g < k / 32; g++, panel += 1152) {
        for (int line = 0; line < 1152; line += 64)
            _mm_prefetch((const char *)panel + KT_AVX2_PREFETCH + line, _MM_HINT_T0);
        for (int column = 0; column < 8; column++) {
            const __m256 w_scale = kt_load_bf16_8(panel + 1024 + 16 * column);
            __m256i w[8];
            for (int t = 0; t < 4; t++) {
                __m256i raw = _mm256_load_si256(
                    (const __m256i *)(const void *)(panel + 256 * t + 32 * column));
                w[t] = _mm256_and_si256(raw, mask);
                w[4 + t] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), mask);
            }
            for (int i = 0; i < tile->rows; i++) {
                const int8_t *q = (const int8_t *)tile->a[i] + 32 * g;
                float *out = tile->tile + 64 * i + 8 * column;
                __m256i sum = _mm256_maddubs_epi16(w[0], kt_bcast_dword(q));
                __m256 scale =
                    _mm256_mul_ps(w_scale, _mm256_set1_ps(kt_a8_scales(tile->a[i], k)[g]));
                for (int t = 1; t < 8; t++)
                    sum = _mm256_add_epi16(sum,
                                           _mm256_maddubs_epi16(w[t], kt_bcast_dword(q + 4 * t)));
                sum = _mm256_add_epi32(_mm256_madd_epi16(sum, ones),
                                       _mm256_set1_epi32(kt_a8_comps(tile->a[i], k)[g]));
                _mm256_storeu_ps(
                    out, _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum), scale, _mm256_loadu_ps(out)));
            }
        }
    }
}

/* INT8 per channel. VPMADDUBSW would saturate on 8-bit codes with full range, so it multiplies |w| by
 * a with w's sign: 2 * 128 * 127 = 32512 fits int16; every step widens to int32. */
KT_INLINE void kt_tile_w8c_avx2(const kt_p64_tile *tile) {
    const __m256i flip = _mm256_set1_epi8(-128), ones = _mm256_set1_epi16(1);
    const uint8_t *panel = tile->panel;
    const int64_t k = tile->k;
    const float *scales = (const float *)(const void *)(panel + 64 * k);

    memset(tile->tile, 0, sizeof(float) * 64 * (size_t)tile->rows);
    for (int64_t g = 0; g < k / 32; g++, panel += 2048) {
        for (int line = 0; line < 2048; line += 64)
            _mm_prefetch((const char *)panel + KT_AVX2_PREFETCH + line, _MM_HINT_T0);
        for (int column = 0; column < 8; column++) {
            __m256i w[8];
            for (int t = 0; t < 8; t++)
                w[t] = _mm256_xor_si256(
                    _mm256_load_si256(
                        (const __m256i *)(const void *)(panel + 256 * t + 32 * column)),
                    flip);
            for (int i = 0; i < tile->rows; i++) {
                const int8_t *q = (const int8_t *)tile->a[i] + 32 * g;
                float *out = tile->tile + 64 * i + 8 * column;
                __m256i sum = _mm256_setzero_si256();
                for (int t = 0; t < 8; t++) {
                    __m256i signed_a = _mm256_sign_epi8(kt_bcast_dword(q + 4 * t), w[t]);
                    __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w[t]), signed_a);
                    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, ones));
                }
                _mm256_storeu_ps(out,
                                 _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum),
                                                 _mm256_set1_ps(kt_a8_scales(tile->a[i], k)[g]),
                                                 _mm256_loadu_ps(out)));
            }
        }
    }
    for (int i = 0; i < tile->rows; i++)
        for (int column = 0; column < 8; column++) {
            __m256 scale = _mm256_loadu_ps(scales + 8 * column);
            float *out = tile->tile + 64 * i + 8 * column;
            _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_loadu_ps(out), scale));
        }
}

/* BF16. A word pair of weights is two f32 by shift and mask. Rows are widened to f32 a block of k at a
 * time (8 rows take 4 KiB of L1), then ROWS x COLUMNS sums stay in registers over the block:
 * 8 of them hide the latency of FMA. */
#define KT_AVX2_BF16_BLOCK 128

typedef struct kt_bf16_block {
    const uint8_t *panel; /* at the block's first pair */
    int64_t pairs;
    const float (*a)[KT_AVX2_BF16_BLOCK];
    float *tile;
} kt_bf16_block;

KT_INLINE void kt_bf16_block_avx2(const kt_bf16_block *b, const int rows, const int columns) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    const uint8_t *panel = b->panel;
    __m256 sum[2][8];

    for (int i = 0; i < rows; i++)
        for (int c = 0; c < columns; c++) sum[i][c] = _mm256_loadu_ps(b->tile + 64 * i + 8 * c);
    for (int64_t pair = 0; pair < b->pairs; pair++, panel += 256)
        for (int c = 0; c < columns; c++) {
            const __m256i v = _mm256_load_si256((const __m256i *)(const void *)(panel + 32 * c));
            const __m256 even = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
            const __m256 odd = _mm256_castsi256_ps(_mm256_and_si256(v, high));
            for (int i = 0; i < rows; i++) {
                sum[i][c] = _mm256_fmadd_ps(even, _mm256_set1_ps(b->a[i][2 * pair]), sum[i][c]);
                sum[i][c] = _mm256_fmadd_ps(odd, _mm256_set1_ps(b->a[i][2 * pair + 1]), sum[i][c]);
            }
        }
    for (int i = 0; i < rows; i++)
        for (int c = 0; c < columns; c++) _mm256_storeu_ps(b->tile + 64 * i + 8 * c, sum[i][c]);
}

/* Four rows by two columns: the weights first, or the eight broadcasts would take the registers. */
static inline void kt_bf16_block_4x2(const kt_bf16_block *b) {
    const __m256i high = _mm256_set1_epi32((int)0xffff0000u);
    const uint8_t *panel = b->panel;
    __m256 sum[4][2];

    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++) sum[i][c] = _mm256_loadu_ps(b->tile + 64 * i + 8 * c);
    for (int64_t pair = 0; pair < b->pairs; pair++, panel += 256) {
        const __m256i v0 = _mm256_load_si256((const __m256i *)(const void *)panel);
        const __m256i v1 = _mm256_load_si256((const __m256i *)(const void *)(panel + 32));
        const __m256 even0 = _mm256_castsi256_ps(_mm256_slli_epi32(v0, 16));
        const __m256 even1 = _mm256_castsi256_ps(_mm256_slli_epi32(v1, 16));
        const __m256 odd0 = _mm256_castsi256_ps(_mm256_and_si256(v0, high));
        const __m256 odd1 = _mm256_castsi256_ps(_mm256_and_si256(v1, high));
        for (int i = 0; i < 4; i++) {
            const __m256 first = _mm256_set1_ps(b->a[i][2 * pair]);
            const __m256 second = _mm256_set1_ps(b->a[i][2 * pair + 1]);
            sum[i][0] = _mm256_fmadd_ps(even0, first, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(even1, first, sum[i][1]);
            sum[i][0] = _mm256_fmadd_ps(odd0, second, sum[i][0]);
            sum[i][1] = _mm256_fmadd_ps(odd1, second, sum[i][1]);
        }
    }
    for (int i = 0; i < 4; i++)
        for (int c = 0; c < 2; c++) _mm256_storeu_ps(b->tile + 64 * i + 8 * c, sum[i][c]);
}

/* The wide ones with constant sizes, so that the loops unroll and the sums are registers. */
static inline void kt_bf16_block_2x4(const kt_bf16_block *b) {
    kt_bf16_block_avx2(b, 2, 4);
}
static inline void kt_bf16_block_1x8(const kt_bf16_block *b) {
    kt_bf16_block_avx2(b, 1, 8);
}

KT_INLINE void kt_tile_wbf16_avx2(const kt_p64_tile *tile) {
    float a[KT_AVX2_ROWS][KT_AVX2_BF16_BLOCK] __attribute__((aligned(32)));

    memset(tile->tile, 0, sizeof(float) * 64 * (size_t)tile->rows);
    for (int64_t k = 0; k < tile->k; k += KT_AVX2_BF16_BLOCK) {
        const int64_t left = tile->k - k;
        const int64_t length = left < KT_AVX2_BF16_BLOCK ? left : KT_AVX2_BF16_BLOCK;
        int i = 0;

        for (int r = 0; r < tile->rows; r++)
            for (int64_t j = 0; j < length; j += 8)
                _mm256_store_ps(&a[r][j],
                                kt_load_bf16_8((const uint8_t *)tile->a[r] + 2 * (k + j)));
        while (i < tile->rows) {
            const int rows = tile->rows - i >= 4 ? 4 : tile->rows - i >= 2 ? 2 : 1;
            const int columns = 8 / rows;
            for (int c = 0; c < 8; c += columns) {
                const kt_bf16_block block = {tile->panel + 128 * k + 32 * c, length / 2,
                                             (const float(*)[KT_AVX2_BF16_BLOCK]) & a[i],
                                             tile->tile + 64 * i + 8 * c};
                if (rows == 4) kt_bf16_block_4x2(&block);
                if (rows == 2) kt_bf16_block_2x4(&block);
                if (rows == 1) kt_bf16_block_1x8(&block);
            }
            i += rows;
        }
    }
}

#endif
