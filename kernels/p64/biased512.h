/* Tiles of integer multiply-adds on AVX-512 VNNI for a8p activations (kernels/formats/acts.h): p64 panels
 * of w8c, and of block formats with one plane, linear codes and a bfloat16 scale per 32 inputs or more.
 *
 * An accumulator starts at the row's start word and adds 16 inputs by four VPDPBUSD; its bits are then
 * the float bias + n * scale. One subtraction of bias leaves the exact n * scale and one addition
 * joins it to the sum. Against a8, whose groups end with a conversion and an FMA:
 *
 *     per 32 inputs, row and vector      VPDPBUSD   FMA   VSUBPS, VADDPS, VCVTDQ2PS
 *     w8c     a8                         8          1     1
 *     w8c     a8p                        8          0     4
 *     w4g32   a8                         8          2     1        (one of the two scales two rows at once)
 *     w4g32   a8p                        8          1     3        (both halves joined, then scaled)
 *
 * Where VPDPBUSD and FMA share pipes and additions have others (Zen 4 and 5), that is all of the peak for
 * w8c and 8/9 of it for w4g32, instead of 8/9 and 8/10. Where they all share (Intel), it is even.
 *
 * Block formats keep three registers for each output: integer sum, float of the current weight group, and
 * row sum: eight vectors of outputs, so four rows at most. Keeping the row sums of six rows in memory
 * was tried: 66 instead of 84 % of the peak (Zen 4, w4g32, panel in L2).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_BIASED512_H
#define KT_SIMD_BIASED512_H

#include "kernels/formats/acts.h"
#include "kernels/formats/p64_spec.h"
#include "kernels/p64/kinds512.h"
#include "kernels/p64/vnni512.h"

/* Byte offsets in a row of k inputs of what belongs to the 16 inputs from i on. */
KT_INLINE int64_t kt_bias_at(int64_t k, int64_t i) {
    return k + i / 4;
}
KT_INLINE int64_t kt_start_at(int64_t k, int64_t i, const int offset) {
    return (offset == 8 ? k + k / 4 : k + k / 2) + i / 4;
}

/* Quad o (four inputs) of 16 panel rows as unsigned bytes, from a plane of 4 or 8 bits. */
KT_INLINE __m512i kt_biased_quad(const kt_p64_spec s, const uint8_t *plane, const int o) {
    __m512i v = _mm512_load_si512(plane + 256 * (o % s.low));
    if (s.low == 8) return v;
    if (o >= 4) v = _mm512_srli_epi32(v, 4);
    return _mm512_and_si512(v, _mm512_set1_epi8(15));
}

/* The exact float n * scale of a finished accumulator. The bias is read where it is wanted, by the instruction that
 * subtracts it: it takes no register and, at most rows, no instruction of its own. */
KT_INLINE __m512 kt_biased_part(__m512i dot, const uint8_t *bias) {
    typedef float word __attribute__((may_alias, aligned(1)));
    __m512 part;
    __asm__("vsubps %2%{1to16%}, %1, %0"
            : "=v"(part)
            : "v"(dot), "m"(*(const word *)(const void *)bias));
    return part;
}

/* The same with a bias in a register, where several outputs of a row share it and registers are
 * left: fewer loads, of which Zen 5 has two for every two products (w8c, six rows: 0.91 of its peak
 * with them from memory, 0.95 so). */
KT_INLINE __m512 kt_biased_part_by(__m512i dot, __m512i bias) {
    __m512 part;
    __asm__("vsubps %2, %1, %0" : "=v"(part) : "v"(dot), "v"(bias));
    return part;
}

/* sum + part, here and not before what precedes it: in program order products wait for their operands least. */
KT_INLINE __m512 kt_biased_join(__m512 sum, __m512 part) {
    __asm__ volatile("vaddps %1, %0, %0" : "+v"(sum) : "v"(part));
    return sum;
}

/* t = or += the floats that the sums of 16 inputs from i on stand for. */
KT_INLINE void kt_biased_end(const uint8_t *const a[KT_TILE_ROWS], int64_t k, int64_t i,
                             const int rows, const int cols, const int is_first,
                             __m512i dot[KT_TILE_ROWS][4], __m512 t[KT_TILE_ROWS][4]) {
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            const __m512 part = kt_biased_part(dot[r][c], a[r] + kt_bias_at(k, i));
            t[r][c] = is_first ? part : kt_biased_join(t[r][c], part);
            if (is_first) KT_SETTLE(t[r][c]); /* before the next group's sums claim registers */
        }
    }
}

/* Fetching spread over a step of 32 inputs of a 4-bit plane: a line with each of its eight quads and one with its
 * scales. A lone block of three or four rows fetches that much, the next panel during two passes over this one,
 * and lines that are asked for all at once are partly lost: nine at the step's beginning had 0.75 of the
 * read stream where this has 0.80 (w4g32, Zen 4). Into L1 instead of L2: 0.39. */
#define KT_BIASED_SPREAD_LINES 9

KT_INLINE void kt_biased_fetch(const char *spread, const int line) {
    _mm_prefetch(spread + KT_TILE_LINE * line, _MM_HINT_T1);
}

KT_INLINE int kt_biased_is_spread(const kt_tile *t) {
    const uintptr_t most = KT_BIASED_SPREAD_LINES * KT_TILE_LINE;
    return t->ahead.pace <= most && t->ahead.pace > most - KT_TILE_LINE;
}

/* Quad o of 16 inputs that start at i, its j-th. */
KT_INLINE void kt_biased_step(const kt_p64_spec s, const uint8_t *const a[KT_TILE_ROWS], int64_t i,
                              const int j, const int o, const uint8_t *planes, const int rows,
                              const int cols, const int is_spread, const char *spread,
                              __m512i dot[KT_TILE_ROWS][4]) {
    __m512i u[4];

    KT_IN_ORDER();
    KT_EACH (c, cols) {
        if (cols == 4 && s.low == 8) KT_IN_ORDER(); /* lines ascend */
        u[c] = kt_biased_quad(s, planes + 64 * c, o);
    }
    if (is_spread) kt_biased_fetch(spread, o);
    KT_EACH (r, rows) {
        const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
        KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
    }
}

/* 16 inputs: quads [4 * half, 4 * half + 4) of the planes; i is the input where the 32 begin. A stream of
 * full lines is left rolled: one load instruction for each column. */
KT_INLINE void kt_biased_half(const kt_p64_spec s, const uint8_t *const a[KT_TILE_ROWS], int64_t k,
                              int64_t i, const int half, const uint8_t *planes, const int rows,
                              const int cols, const int is_spread, const char *spread,
                              const int is_first, __m512 t[KT_TILE_ROWS][4]) {
    __m512i dot[KT_TILE_ROWS][4];

    i += 16 * half;
    KT_EACH (r, rows) {
        const int64_t at = kt_start_at(k, i, s.offset);
        const __m512i start = _mm512_set1_epi32(kt_load_i32(a[r] + at));
        KT_EACH (c, cols) dot[r][c] = start;
    }
    if (cols == 4 && s.low == 8) {
        KT_ROLLED for (int j = 0; j < 4; j++) {
            kt_biased_step(s, a, i, j, 4 * half + j, planes, rows, cols, is_spread, spread, dot);
        }
    } else {
        KT_EACH (o, 4)
            kt_biased_step(s, a, i, o, 4 * half + o, planes, rows, cols, is_spread, spread, dot);
    }
    KT_IN_ORDER();
    kt_biased_end(a, k, i, rows, cols, is_first, dot, t);
}

/* 32 inputs of a 4-bit plane whose lines are read once, for few rows: two accumulators per output. */
KT_INLINE void kt_biased_both(const kt_p64_spec s, const uint8_t *const a[KT_TILE_ROWS], int64_t k,
                              int64_t i, const uint8_t *planes, const int rows, const int cols,
                              const int is_first, __m512 t[KT_TILE_ROWS][4]) {
    __m512i dot[2][KT_TILE_ROWS][4];

    KT_EACH (h, 2) {
        KT_EACH (r, rows) {
            const int64_t at = kt_start_at(k, i + 16 * h, s.offset);
            const __m512i start = _mm512_set1_epi32(kt_load_i32(a[r] + at));
            KT_EACH (c, cols) dot[h][r][c] = start;
        }
    }
    KT_EACH (j, 4) {
        KT_IN_ORDER();
        KT_EACH (h, 2) {
            __m512i u[4];
            KT_EACH (c, cols) u[c] = kt_biased_quad(s, planes + 64 * c, 4 * h + j);
            KT_EACH (r, rows) {
                const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 16 * h + 4 * j));
                KT_EACH (c, cols) dot[h][r][c] = kt_dpbusd512(dot[h][r][c], u[c], q);
            }
        }
    }
    KT_IN_ORDER();
    kt_biased_end(a, k, i, rows, cols, is_first, dot[0], t);
    kt_biased_end(a, k, i + 16, rows, cols, 0, dot[1], t);
}

KT_INLINE void kt_biased_32(const kt_p64_spec s, const uint8_t *const a[KT_TILE_ROWS], int64_t k,
                            int64_t i, const uint8_t *planes, const int rows, const int cols,
                            const int is_spread, const char *spread, const int is_first,
                            __m512 t[KT_TILE_ROWS][4]) {
    if (s.low == 4 && rows * cols <= 4) {
        kt_biased_both(s, a, k, i, planes, rows, cols, is_first, t);
        return;
    }
    if (cols == 4 && s.low == 8 && !is_first) {
        KT_ROLLED for (int half = 0; half < 2; half++) {
            kt_biased_half(s, a, k, i, half, planes, rows, cols, 0, NULL, 0, t);
        }
        return;
    }
    kt_biased_half(s, a, k, i, 0, planes, rows, cols, is_spread, spread, is_first, t);
    kt_biased_half(s, a, k, i, 1, planes, rows, cols, is_spread, spread, 0, t);
}

/* --- codes of 8 bits ------------------------------------------------------------------------- */

/* sum += inputs [i, end) of 32 panel rows, of which the lines at w are the first. A row's finished
 * group joins its sums not behind its last product but when the row's next group begins, a quad of
 * all other rows later: subtractions that wait for their operands take room in the schedulers from
 * the products behind them. With all of a core's room that costs nothing on Zen 4; when its other
 * thread is busy, which halves it, waiting until the end of the group cost 10 to 13 %, and on Zen 5
 * 19 % of w4groups_a8p_r8. is_far: as in kt_tile_fetch_far. */
KT_INLINE void kt_biased_columns(kt_tile *tile, const uint8_t *const a[KT_TILE_ROWS],
                                 const uint8_t *w, int64_t i, const int64_t end, const int is_far,
                                 const int rows, const int cols, __m512 sum[KT_TILE_ROWS][4]) {
    const kt_p64_spec s = {.low = 8, .values = KT_P64_LINEAR, .offset = 128};
    const int64_t k = tile->k;
    int64_t start = kt_start_at(k, i, s.offset), bias = kt_bias_at(k, i), before = bias;
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) { /* a group that adds nothing */
        const __m512i none = _mm512_set1_epi32(kt_load_i32(a[r] + bias));
        KT_EACH (c, cols) dot[r][c] = none;
    }
    for (; i < end; i += 32, w += KT_P64_CODES8_BYTES, start += 8) {
        if (is_far)
            kt_tile_fetch_far(tile);
        else
            kt_tile_fetch(tile);
        KT_EACH (j, 8) {
            __m512i u[4];
            if (j % 4) {
                kt_biased_step(s, a, i, j, j, w, rows, cols, 0, NULL, dot);
                continue;
            }
            KT_IN_ORDER();
            KT_EACH (c, cols) u[c] = kt_biased_quad(s, w + 64 * c, j);
            KT_EACH (r, rows) {
                const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
                const __m512i first = _mm512_set1_epi32(kt_load_i32(a[r] + start + j));
                const __m512i less = _mm512_set1_epi32(kt_load_i32(a[r] + (j ? bias : before)));
                __m512 part[4];
                KT_EACH (c, cols) part[c] = kt_biased_part_by(dot[r][c], less);
                KT_EACH (c, cols) sum[r][c] = kt_biased_join(sum[r][c], part[c]);
                KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(first, u[c], q);
                KT_IN_ORDER();
            }
        }
        before = bias + 4;
        bias += 8;
    }
    kt_biased_end(a, k, end - 16, rows, cols, 0, dot, sum);
}

/* The weight scale joins once, at the end. */
KT_INLINE void kt_tile_w8c_biased(kt_tile *tile, const int rows, const int cols, const int col) {
    const kt_p64_spec s = {.low = 8, .values = KT_P64_LINEAR, .offset = 128};
    const uint8_t *w = tile->panel + 64 * col;
    const int64_t k = tile->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = tile->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    /* Full lines are a stream that one load instruction for each column walks: two of them in turn, one for
     * each half of 32 inputs, had 0.87 of the read stream instead of 0.95 (one row, Zen 4). */
    for (int64_t i = 0; cols == 4 && i < k; i += 16, w += 1024) {
        if (i % KT_TILE_STEP == 0) kt_tile_fetch(tile);
        kt_biased_half(s, a, k, i, 0, w, rows, cols, 0, NULL, 0, sum);
    }
    if (cols < 4) kt_biased_columns(tile, a, w, 0, k, 0, rows, cols, sum);
    KT_EACH (c, cols) {
        const float *scales = (const float *)(const void *)(tile->panel + 64 * k);
        const __m512 scale = _mm512_load_ps(scales + 16 * (col + c));
        KT_EACH (r, rows) {
            _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c),
                            _mm512_mul_ps(sum[r][c], scale));
        }
    }
}

/* --- block formats --------------------------------------------------------------------------- */

/* is_spread: kt_biased_is_spread. */
KT_INLINE void kt_tile_biased(kt_tile *tile, const kt_p64_spec s, const int rows, const int cols,
                              const int col, const int is_spread) {
    const int inputs = kt_p64_run_inputs(s);
    const size_t plane_bytes = kt_p64_plane_bytes(s), run_bytes = kt_p64_run_bytes(s);
    const size_t scales_at = (size_t)(inputs / 32) * plane_bytes;
    const uint8_t *w = tile->panel;
    const char *spread = (const char *)tile->ahead.at;
    const int64_t k = tile->k;
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4], t[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        a[r] = tile->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < k; w += run_bytes) {
        KT_EACH (part, inputs / 32) {
            const uint8_t *planes = w + 64 * col + part * plane_bytes;
            if (is_spread)
                kt_tile_move(&tile->rows_ahead, 0);
            else
                kt_tile_fetch(tile);
            kt_biased_32(s, a, k, i, planes, rows, cols, is_spread, spread, part == 0, t);
            if (is_spread) {
                kt_biased_fetch(spread, KT_BIASED_SPREAD_LINES - 1);
                spread += tile->ahead.pace;
            }
            i += 32;
        }
        KT_EACH (c, cols) {
            KT_IN_ORDER();
            const __m512 scale = kt_load_bf16x16(w + scales_at + 32 * (col + c));
            KT_EACH (r, rows) {
                sum[r][c] = _mm512_fmadd_ps(t[r][c], scale, sum[r][c]);
                KT_SETTLE(sum[r][c]);
            }
        }
    }
    if (is_spread) tile->ahead.at = (uintptr_t)spread;
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
        }
    }
}

/* Rows that one pass of full lines serves; more rows hold 32 panel rows at a time. */
#define KT_BIASED_W8C_FULL_ROWS 3
#define KT_BIASED_FULL_ROWS 2
#define KT_BIASED_ROWS 4 /* most rows of a tile of a block format */

static inline void kt_tile_w8c_biased_run(kt_tile *t) {
    switch (t->rows) {
    case 1: kt_tile_w8c_biased(t, 1, 4, 0); return;
    case 2: kt_tile_w8c_biased(t, 2, 4, 0); return;
    case 3: kt_tile_w8c_biased(t, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_w8c_biased(t, 4, 2, col);
        if (t->rows == 5) kt_tile_w8c_biased(t, 5, 2, col);
        if (t->rows == 6) kt_tile_w8c_biased(t, 6, 2, col);
    }
}

KT_INLINE void kt_tile_biased_run(kt_tile *t, const kt_p64_spec s) {
    switch (t->rows) {
    case 1: kt_tile_biased(t, s, 1, 4, 0, 0); return;
    case 2: kt_tile_biased(t, s, 2, 4, 0, 0); return;
    default: break;
    }
    const int is_spread = kt_biased_is_spread(t);
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 3 && !is_spread) kt_tile_biased(t, s, 3, 2, col, 0);
        if (t->rows == 4 && !is_spread) kt_tile_biased(t, s, 4, 2, col, 0);
        if (t->rows == 3 && is_spread) kt_tile_biased(t, s, 3, 2, col, 1);
        if (t->rows == 4 && is_spread) kt_tile_biased(t, s, 4, 2, col, 1);
    }
}

/* A tile of one format: KT_BIASED_TILE(INT4_G32, w4g32) defines run_w4g32. */
#define KT_BIASED_TILE(id, word)                          \
    static void run_##word(kt_tile *t) {                  \
        kt_tile_biased_run(t, kt_p64_spec_of(KT_W_##id)); \
    }
#define KT_BIASED_KIND(id, word) \
    { run_##word, KT_W_##id, KT_BIASED_FULL_ROWS, NULL, 0, 0 }

#endif
