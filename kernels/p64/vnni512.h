/* Tiles of integer multiply-adds on AVX-512 VNNI: p64 panels of w4g32 and w8c with a8 activations.
 *
 * VPDPBUSD multiplies unsigned by signed bytes and adds four products to each int32 lane. Weights are
 * stored unsigned (code + 8, code + 128), activations are the signed operand, broadcast to all lanes.
 * The surplus 8 * sum q or 128 * sum q of a group is the same for every weight row, so the
 * accumulators start at its negative, the group's stored compensation, and it costs nothing.
 * No sum saturates or wraps: |sum| <= 32 * 255 * 127 < 2^21, which is also exact in f32.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_VNNI512_H
#define KT_KERNELS_VNNI512_H

#include "kernels/simd/tile512.h"

/* gcc 12 copies each accumulator around its intrinsic once a tile holds 16 or more of them, which
 * halves the speed; the constraint "+v" says what is meant. */
KT_INLINE __m512i kt_dpbusd512(__m512i sum, __m512i u8, __m512i s8) {
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u8), "v"(s8));
    return sum;
}

/* 16 bfloat16 -> f32 */
KT_INLINE __m512 kt_load_bf16x16(const uint8_t *p) {
    __m256i h = _mm256_loadu_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* f32 sums of `rows` rows and 16 * cols panel rows from `col` on, for each group of 32 inputs
 *   sum += (weight scale * activation scale) * exact integer dot product.
 * One 64-byte line holds two operands: inputs 4t.. in the low nibbles, 16 + 4t.. in the high ones. */
KT_INLINE void kt_tile_w4g32(kt_tile *t, const int rows, const int cols, const int col) {
    const __m512i low = _mm512_set1_epi8(15);
    const uint8_t *w = t->panel + 64 * col, *scales = t->panel + 1024 + 32 * col;
    const int64_t k = t->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += 32, w += 1152, scales += 1152) {
        kt_tile_fetch(t);
        KT_EACH (r, rows) {
            __m512i start = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
            KT_EACH (c, cols) dot[r][c] = start;
        }
        KT_EACH (j, 4) {
            __m512i both[4], u[4];
            KT_IN_ORDER();
            KT_EACH (c, cols) {
                both[c] = _mm512_load_si512(w + 256 * j + 64 * c);
                u[c] = _mm512_and_si512(both[c], low);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
            KT_EACH (c, cols) {
                if (rows * cols > 8) KT_IN_ORDER(); /* no register is left to keep the line in */
                if (rows * cols > 8) both[c] = _mm512_load_si512(w + 256 * j + 64 * c);
                u[c] = _mm512_and_si512(_mm512_srli_epi32(both[c], 4), low);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 16 + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
        }
        KT_EACH (c, cols) {
            KT_IN_ORDER(); /* nor for the activation scales of all rows */
            __m512 ws = kt_load_bf16x16(scales + 32 * c);
            KT_EACH (r, rows) {
                __m512 s = _mm512_mul_ps(ws, _mm512_set1_ps(kt_load_f32(a[r] + k + i / 8)));
                sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), s, sum[r][c]);
                KT_SETTLE(sum[r][c]);
            }
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
        }
    }
}

/* As above with the weight scale applied once at the end: sum += activation scale * dot. */
KT_INLINE void kt_tile_w8c(kt_tile *t, const int rows, const int cols, const int col) {
    const uint8_t *w = t->panel + 64 * col;
    const int64_t k = t->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; i += 32, w += 2048) {
        kt_tile_fetch(t);
        KT_EACH (r, rows) {
            __m512i comp = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
            comp = _mm512_slli_epi32(comp, 4); /* stored for code + 8 */
            KT_EACH (c, cols) dot[r][c] = comp;
        }
        KT_ROLLED for (int j = 0; j < 8; j++) {
            __m512i u[4];
            KT_IN_ORDER();
            KT_EACH (c, cols) {
                if (cols == 4) KT_IN_ORDER(); /* lines ascend */
                u[c] = _mm512_load_si512(w + 256 * j + 64 * c);
            }
            KT_EACH (r, rows) {
                __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
            }
        }
        KT_IN_ORDER();
        KT_EACH (r, rows) {
            __m512 s = _mm512_set1_ps(kt_load_f32(a[r] + k + i / 8));
            KT_EACH (c, cols) {
                sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), s, sum[r][c]);
            }
        }
    }
    KT_EACH (c, cols) {
        __m512 ws =
            _mm512_load_ps((const float *)(const void *)(t->panel + 64 * k) + 16 * (col + c));
        KT_EACH (r, rows) {
            _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * (col + c),
                            _mm512_mul_ps(sum[r][c], ws));
        }
    }
}

/* Up to three rows take the panel in one pass of full lines; more rows hold 32 panel rows at a time,
 * since both integer and f32 sums must fit the 32 registers. */
static inline void kt_tile_w4g32_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_w4g32(t, 1, 4, 0); return;
    case 2: kt_tile_w4g32(t, 2, 4, 0); return;
    case 3: kt_tile_w4g32(t, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_w4g32(t, 4, 2, col);
        if (t->rows == 5) kt_tile_w4g32(t, 5, 2, col);
        if (t->rows == 6) kt_tile_w4g32(t, 6, 2, col);
    }
}

static inline void kt_tile_w8c_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_w8c(t, 1, 4, 0); return;
    case 2: kt_tile_w8c(t, 2, 4, 0); return;
    case 3: kt_tile_w8c(t, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_w8c(t, 4, 2, col);
        if (t->rows == 5) kt_tile_w8c(t, 5, 2, col);
        if (t->rows == 6) kt_tile_w8c(t, 6, 2, col);
    }
}

#endif
