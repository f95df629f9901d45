/* Tiles of bfloat16 multiply-adds on AVX-512: p64 panels of wbf16 with abf16 activations.
 *
 * A 32-bit lane holds the pair (2i, 2i + 1). VDPBF16PS adds both products to an f32 lane; without
 * it the even element is the lane shifted up by 16, the odd one the lane with the low half
 * cleared, and two FMA do the same. Six rows and all 64 panel rows take 24 accumulators, whose chains
 * cover the latency of either instruction.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_BF16X512_H
#define KT_KERNELS_BF16X512_H

#include "kernels/simd/tile512.h"

KT_INLINE __m512 kt_bf16_even512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
}
/* By a mask register: a vector of ones would be one register too many for the largest tile. */
KT_INLINE __m512 kt_bf16_odd512(__m512i pair) {
    return _mm512_castsi512_ps(_mm512_maskz_mov_epi16(0xaaaaaaaau, pair));
}

KT_INLINE void kt_tile_store(const kt_tile *t, const int rows, __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (r, rows) {
        KT_EACH (c, 4) _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * c, sum[r][c]);
    }
}

#if defined(__AVX512BF16__)
KT_INLINE __m512 kt_dpbf16_512(__m512 sum, __m512i a, __m512i b) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return sum;
}

KT_INLINE void kt_tile_dpbf16(kt_tile *t, const int rows) {
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < t->k; i += KT_TILE_STEP) {
        kt_tile_fetch(t);
        /* A stream: lines ascend, one load instruction for each column (one row, Zen 4: 0.98 of the read
         * stream becomes 1.0). Accumulators that fill the registers want longer runs. */
        if (rows <= 3) {
            KT_ROLLED for (int64_t j = i; j < i + KT_TILE_STEP; j += 2, w += 256) {
                __m512i u[4];
                KT_EACH (c, 4) {
                    KT_IN_ORDER();
                    u[c] = _mm512_load_si512(w + 64 * c);
                }
                KT_EACH (r, rows) {
                    __m512i x = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * j));
                    KT_EACH (c, 4) sum[r][c] = kt_dpbf16_512(sum[r][c], u[c], x);
                }
            }
            continue;
        }
        for (int64_t j = i; j < i + KT_TILE_STEP; j += 8, w += 1024) {
            KT_EACH (p, 4) {
                __m512i u[4];
                KT_IN_ORDER();
                KT_EACH (c, 4) u[c] = _mm512_load_si512(w + 256 * p + 64 * c);
                KT_EACH (r, rows) {
                    __m512i x = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * j + 4 * p));
                    KT_EACH (c, 4) sum[r][c] = kt_dpbf16_512(sum[r][c], u[c], x);
                }
            }
        }
    }
    kt_tile_store(t, rows, sum);
}

static inline void kt_tile_dpbf16_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_dpbf16(t, 1); return;
    case 2: kt_tile_dpbf16(t, 2); return;
    case 3: kt_tile_dpbf16(t, 3); return;
    case 4: kt_tile_dpbf16(t, 4); return;
    case 5: kt_tile_dpbf16(t, 5); return;
    default: kt_tile_dpbf16(t, 6); return;
    }
}
#endif

/* The even product is added before the odd one. */
KT_INLINE void kt_tile_fmabf16(kt_tile *t, const int rows) {
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < t->k; i += KT_TILE_STEP) {
        kt_tile_fetch(t);
        for (int64_t j = i; j < i + KT_TILE_STEP; j += 2, w += 256) {
            __m512 x, u[4];
            KT_IN_ORDER();
            KT_EACH (c, 4) u[c] = kt_bf16_even512(_mm512_load_si512(w + 64 * c));
            KT_EACH (r, rows) {
                x = kt_bf16_even512(_mm512_set1_epi32(kt_load_i32(a[r] + 2 * j)));
                KT_EACH (c, 4) sum[r][c] = _mm512_fmadd_ps(u[c], x, sum[r][c]);
            }
            KT_IN_ORDER();
            KT_EACH (c, 4) u[c] = kt_bf16_odd512(_mm512_load_si512(w + 64 * c));
            KT_EACH (r, rows) {
                x = kt_bf16_odd512(_mm512_set1_epi32(kt_load_i32(a[r] + 2 * j)));
                KT_EACH (c, 4) sum[r][c] = _mm512_fmadd_ps(u[c], x, sum[r][c]);
            }
        }
    }
    kt_tile_store(t, rows, sum);
}

static inline void kt_tile_fmabf16_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_fmabf16(t, 1); return;
    case 2: kt_tile_fmabf16(t, 2); return;
    case 3: kt_tile_fmabf16(t, 3); return;
    case 4: kt_tile_fmabf16(t, 4); return;
    case 5: kt_tile_fmabf16(t, 5); return;
    default: kt_tile_fmabf16(t, 6); return;
    }
}

#endif
