/* What kernels share that round panels once more to 8 bits (kernels/formats/requant8.h): steps of
 * the blocks, carrying sums from one block to the next, scratch.
 *
 * A panel is widened once per call into scratch that stays in L2: 64 bytes an input, quads of 64
 * rows as in w8c, then for each block and 64 rows two floats: the factor of its scales, and what
 * sums are multiplied with at its end.
 *
 * Row sums stay in registers through all blocks of 256 inputs, in units of the present block's
 * step: between two blocks they are multiplied by the ratio of their steps, at the end by the last
 * step. That is as many roundings as adding scaled blocks to memory, without the memory (Zen 4,
 * panel in L2: 0.93 of the peak with it, 0.97 without). Ratios are kept below 2^32 by the larger
 * step that requant8.h allows: a sum overflows only where sum |a| is over 2^88, and a block of
 * zeros costs nothing. In the order of k, so that a row's bits do not depend on the rows beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_REQUANT512_H
#define KT_P64_REQUANT512_H

#include "kernels/formats/requant8.h"
#include "kernels/p64/kinds512.h"

#define KT_R8_STEP_BYTES 512 /* of a block and 64 rows */

/* --- widening -------------------------------------------------------------------------------- */

/* Of 16 panel rows: `at` holds the largest weight of each block and gets its factor and multiplier.
 * `row` is the largest of all blocks. Maxima keep NaN: their second operand. */
KT_INLINE void kt_r8_steps(uint8_t *out, int64_t blocks, __m512 row) {
    __m512 least = _mm512_set1_ps(0x1p-119f), before = least;

    row = _mm512_mul_ps(row, _mm512_set1_ps(KT_R8_RANGE));
    least = _mm512_max_ps(_mm512_mul_ps(least, _mm512_set1_ps(127.0f)), row);
    for (uint8_t *at = out; at < out + KT_R8_STEP_BYTES * blocks; at += KT_R8_STEP_BYTES) {
        const __m512 largest = _mm512_max_ps(least, _mm512_load_ps(at));
        const __m512 step = _mm512_div_ps(largest, _mm512_set1_ps(127.0f));
        _mm512_store_ps(at, _mm512_div_ps(_mm512_set1_ps(32512.0f), largest));
        if (at > out) _mm512_store_ps(at - 256, _mm512_div_ps(before, step));
        _mm512_store_ps(at + 256, step);
        before = step;
    }
}

/* 16 numbers, each in both words of its lane. */
KT_INLINE __m512i kt_r8_words(__m512 x) {
    const __m512i twice = _mm512_set4_epi32(0x0d0c0d0c, 0x09080908, 0x05040504, 0x01000100);
    return _mm512_shuffle_epi8(_mm512_cvtps_epi32(x), twice);
}

/* The high bytes of words of even and of odd inputs, in the order of the inputs. */
KT_INLINE __m512i kt_r8_bytes(__m512i even, __m512i odd) {
    const __m512i take = /* the high byte of each word, to its low byte */
        _mm512_set4_epi32(0x0f0f0d0d, 0x0b0b0909, 0x07070505, 0x03030101);
    return _mm512_mask_shuffle_epi8(odd, 0x5555555555555555u, even, take);
}

/* --- the tile -------------------------------------------------------------------------------- */

/* At a block's end; `steps` are its multipliers. */
KT_INLINE void kt_r8_next_block(const uint8_t *steps, const int rows, const int cols,
                                __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (c, cols) {
        KT_EACH (r, rows) {
            KT_IN_ORDER(); /* from memory each time: gcc 12 spills a register that holds it */
            sum[r][c] = _mm512_mul_ps(sum[r][c], _mm512_load_ps(steps + 64 * c));
        }
    }
}

/* --- variants -------------------------------------------------------------------------------- */

/* A tile of one format, which widens each panel when it first meets it: KT_R8_TILE(INT4_G32, w4g32)
 * defines run_w4g32 from functions `widen` and `multiply`. All tiles share the multiplying part. */
#define KT_R8_TILE(id, word)                                                                     \
    static void run_##word(kt_tile *t) {                                                         \
        if (t->opened != t->panel) widen(kt_p64_spec_of(KT_W_##id), t->panel, t->k, t->scratch); \
        t->opened = t->panel;                                                                    \
        multiply(t);                                                                             \
    }
/* Two passes for every block of rows, few as they may be. */
#define KT_R8_KIND(id, word) \
    { run_##word, KT_W_##id, 0, NULL, 0, 0 }

/* `multiply` of all rows and columns by KT_INLINE void tile(kt_tile *t, const int rows, const int
 * cols, const int col); one copy of its loops for all formats. */
#define KT_R8_MULTIPLY(tile)                                     \
    static __attribute__((noinline)) void multiply(kt_tile *t) { \
        for (int col = 0; col < 4; col += 2) {                   \
            switch (t->rows) {                                   \
            case 1: tile(t, 1, 2, col); break;                   \
            case 2: tile(t, 2, 2, col); break;                   \
            case 3: tile(t, 3, 2, col); break;                   \
            case 4: tile(t, 4, 2, col); break;                   \
            case 5: tile(t, 5, 2, col); break;                   \
            default: tile(t, 6, 2, col); break;                  \
            }                                                    \
        }                                                        \
    }

/* One widened panel, of an expert's longer half. */
static inline size_t kt_r8_workspace_bytes(const kt_problem *problem, const kt_config *config) {
    const bool is_expert = problem->op == KT_OP_MOE_FFN;
    const int64_t k = is_expert && problem->n > problem->k ? problem->n : problem->k;

    (void)config;
    return 64 * (size_t)k + KT_R8_STEP_BYTES * (size_t)kt_r8_blocks(k);
}

#endif
