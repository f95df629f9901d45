/* Panels of floats on AVX2: FMA in f32 on a block of k of the rows and of a slice of the panel, both widened to f32.
 *
 * For kernels of BF16, F16 and FP8 weights, which differ in how a slice is widened.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_FLOATS256_H
#define KT_P64_FLOATS256_H

#include "kernels/p64/p64_avx2.h"

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
            kt_fetch_line((const uint8_t *)t->a[r] + 2 * (k + j), t->is_near);
}

#endif
