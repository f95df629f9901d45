/* Tiles of FP8 E4M3 weights (wf8c, wf8b128, wmxfp8) and half weights (wf16) with abf16 activations
 * on AVX-512.
 *
 * With VBMI and BF16: 64 codes become pairs of bfloat16 by table (fp8_table512.h).
 *
 * Without: the code moved up by 7 is a half with 2^-8 of its value, subnormals included: bytes to the
 * top of words, an arithmetic shift by 1, the doubled sign bit masked out, the NaN codes set apart. VCVTPH2PS widens 16 of them,
 * eight rows with two inputs each, which meet the activations' pair; even and odd inputs are summed
 * apart and joined at the end of a block. A half weight takes the same way from VCVTPH2PS on.
 *
 * A block's scale multiplies the f32 sum over its 128 inputs (wmxfp8: 32, a scale per row) once;
 * sums over blocks live in the result tile, so that all registers are accumulators.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FP8X512_H
#define KT_SIMD_FP8X512_H

#include "kernels/simd/fp8_table512.h"
#include "kernels/p64/kinds512.h"

/* Inputs that share a scale. */
KT_INLINE int64_t kt_fp8_block(kt_weight_format format, int64_t k) {
    return format == KT_W_MXFP8 ? 32 : format == KT_W_FP8_B128 ? 128 : k;
}

/* Scales of panel rows 16c .. 16c + 15 for block b. */
KT_INLINE __m512 kt_fp8_scale(kt_weight_format format, const uint8_t *scales, int64_t b, int c) {
    if (format == KT_W_F16) return _mm512_set1_ps(1.0f);
    if (format == KT_W_FP8_CHANNEL)
        return _mm512_load_ps((const float *)(const void *)scales + 16 * c);
    if (format == KT_W_MXFP8) return kt_fp8_powers(scales + 64 * b + 16 * c);
    return _mm512_set1_ps(kt_load_f32(scales + 8 * b + c / 2 * 4));
}

/* result (+)= scale * sum; the first block adds to zero. */
KT_INLINE void kt_fp8_join(float *c, __m512 sum, __m512 scale, int64_t block) {
    const __m512 before = block == 0 ? _mm512_setzero_ps() : _mm512_load_ps(c);
    _mm512_store_ps(c, _mm512_fmadd_ps(sum, scale, before));
}

#if defined(__AVX512VBMI__)

/* Needs BF16 besides what the file is compiled for: the variant's isa mask says so. */
KT_INLINE __m512 kt_fp8_dpbf16(__m512 sum, __m512i w, __m512i a) {
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(sum) : "v"(w), "v"(a));
    return sum;
}

/* Four inputs (one line per column) of `rows` rows. Activations row by row: clang 14 would load those of five rows
 * early, and spill. */
KT_INLINE void kt_fp8_quad(const uint8_t *w, const uint8_t *const a[], int64_t i, const int rows,
                           const __m512i tables[4], __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (c, 4) {
        __m512i pair[2];
        KT_IN_ORDER();
        kt_fp8_widen(w + 64 * c, tables, pair);
        KT_EACH (r, rows) {
            KT_IN_ORDER();
            sum[r][c] =
                kt_fp8_dpbf16(sum[r][c], pair[0], _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i)));
            sum[r][c] =
                kt_fp8_dpbf16(sum[r][c], pair[1], _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i + 4)));
        }
    }
}

#define KT_FP8_AHEAD 8 /* lines of exponents, each of 2 KiB of codes, that are asked for before */

KT_INLINE void kt_tile_fp8_bf16(kt_tile *t, const kt_weight_format format, const int rows) {
    const int64_t k = t->k, block = kt_fp8_block(format, k);
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512i tables[4];

    kt_fp8_tables(tables);
    KT_EACH (r, rows) a[r] = t->a[r];
    /* Scales of blocks lie behind the codes: the first block takes as long as their way here. */
    for (int64_t at = 0; rows <= 3 && format == KT_W_FP8_B128 && at < k / 16; at += KT_TILE_LINE)
        _mm_prefetch((const char *)w + 64 * k + at, _MM_HINT_T0);
    for (int64_t b = 0; b * block < k; b++) {
        const int64_t end = (b + 1) * block < k ? (b + 1) * block : k;
        if (rows <= 3 && format == KT_W_MXFP8) /* a second stream beside that of codes */
            _mm_prefetch((const char *)t->panel + 64 * (k + b + KT_FP8_AHEAD), _MM_HINT_T0);
        __m512 sum[KT_TILE_ROWS][4];
        KT_EACH (r, rows) {
            KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
        }
        for (int64_t i = b * block; i < end; i += KT_TILE_STEP) {
            kt_tile_lines next = kt_tile_fetch_slowly(t, 64 * KT_TILE_STEP);
            if (!next.at) {
                KT_ROLLED for (int64_t j = i; j < i + KT_TILE_STEP; j += 4, w += 256)
                    kt_fp8_quad(w, a, j, rows, tables, sum);
                continue;
            }
            KT_ROLLED for (int64_t j = i; j < i + KT_TILE_STEP; j += 4, w += 256) {
                kt_tile_fetch_lines(&next, 4);
                kt_fp8_quad(w, a, j, rows, tables, sum);
            }
            kt_tile_fetch_rest(&next);
        }
        KT_EACH (c, 4) {
            const __m512 scale = kt_fp8_scale(format, t->panel + 64 * k, b, c);
            KT_EACH (r, rows) {
                kt_fp8_join(t->c + KT_TILE_WIDTH * r + 16 * c, sum[r][c], scale, b);
            }
        }
    }
}

/* Up to five rows: beside the sums of six there is no register for the tables. */
KT_INLINE void kt_tile_fp8_bf16_run(kt_tile *t, const kt_weight_format format) {
    switch (t->rows) {
    case 1: kt_tile_fp8_bf16(t, format, 1); return;
    case 2: kt_tile_fp8_bf16(t, format, 2); return;
    case 3: kt_tile_fp8_bf16(t, format, 3); return;
    case 4: kt_tile_fp8_bf16(t, format, 4); return;
    default: kt_tile_fp8_bf16(t, format, 5); return;
    }
}

/* Many rows: a chunk is widened to bfloat16 once, into L1, while row tiles pass over the chunk before it:
 * widening works on ports that products leave free (all at once, before the tiles, it cost 11 % at 32 rows). Sums
 * start and are joined as above: between chunks they lie in the result tile. */
#define KT_FP8_CHUNK 128 /* inputs: a block's, and twice 16 KiB of pairs is what L1 holds */

/* [inputs / 4][column of 16 rows][pairs of inputs][16 rows][2] */
typedef struct kt_fp8_open {
    _Alignas(64) uint8_t pairs[KT_FP8_CHUNK / 4][4][2][64];
} kt_fp8_open;

/* Lines of codes yet to be widened: two before the products of inputs i .. i + 7 for which i & mask is 0. */
typedef struct kt_fp8_opening {
    const uint8_t *from, *end;
    uint8_t *to;
    int mask;
} kt_fp8_opening;

/* One chunk of the panel: from input i on; is_last of the row's. */
typedef struct kt_fp8_chunk {
    const uint8_t *pairs, *scales;
    int64_t i;
    int inputs, is_last;
    kt_fp8_opening next;
} kt_fp8_chunk;

static const uint32_t kt_fp8_sign = 0x80808080u;

/* One line. Sums have the registers: constants are read where they lie, which the compiler, not knowing
 * their addresses, cannot do beforehand. */
KT_INLINE void kt_fp8_open_line(kt_fp8_opening *x) {
    const uint8_t *high = kt_fp8_high, *low = kt_fp8_low;
    const uint32_t *sign = &kt_fp8_sign;
    __m512i tables[4], pair[2];

    __asm__("" : "+r"(high), "+r"(low), "+r"(sign));
    KT_EACH (i, 2) {
        tables[i] = _mm512_load_si512(high + 64 * i);
        tables[2 + i] = _mm512_load_si512(low + 64 * i);
    }
    kt_fp8_widen_by(_mm512_load_si512(x->from), tables, _mm512_set1_epi32((int)*sign), pair);
    _mm512_store_si512(x->to, pair[0]);
    _mm512_store_si512(x->to + 64, pair[1]);
    x->from += KT_TILE_LINE;
    x->to += 128;
}

/* Rows [row, row + rows) of t, the inputs [begin, end) of the chunk: of one scale. */
KT_INLINE void kt_fp8_micro_block(const kt_fp8_chunk *x, kt_fp8_opening *next,
                                  const kt_weight_format format, const uint8_t *const a[],
                                  float *to, int begin, int end, const int rows) {
    const int is_channel = format == KT_W_FP8_CHANNEL;
    const int64_t block = kt_fp8_block(format, KT_FP8_CHUNK);
    const uint8_t *w = x->pairs + 128 * begin;
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        KT_EACH (c, 4)
            sum[r][c] =
                is_channel ? _mm512_load_ps(to + KT_TILE_WIDTH * r + 16 * c) : _mm512_setzero_ps();
    }
    KT_ROLLED for (int i = begin; i < end; i += 8, w += 1024) {
        KT_EACH (p, 4) {
            __m512i u[4];
            KT_IN_ORDER();
            KT_EACH (c, 4) u[c] = _mm512_load_si512(w + 512 * (p / 2) + 128 * c + 64 * (p % 2));
            KT_EACH (r, rows) {
                const __m512i v = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i + 4 * p));
                KT_EACH (c, 4) sum[r][c] = kt_fp8_dpbf16(sum[r][c], u[c], v);
            }
        }
        if ((i & next->mask) == 0 && next->from != next->end) {
            KT_EACH (l, 2) {
                KT_IN_ORDER();
                kt_fp8_open_line(next);
            }
        }
    }
    KT_EACH (c, 4) {
        const __m512 scale = kt_fp8_scale(format, x->scales, (x->i + begin) / block, c);
        KT_EACH (r, rows) {
            float *c_r = to + KT_TILE_WIDTH * r + 16 * c;
            if (is_channel)
                _mm512_store_ps(c_r, sum[r][c]);
            else
                kt_fp8_join(c_r, sum[r][c], scale, x->i + begin);
        }
    }
}

/* Rows [row, row + rows) of t. */
KT_INLINE void kt_fp8_micro(const kt_tile *t, kt_fp8_chunk *x, const kt_weight_format format,
                            int row, const int rows) {
    const uint8_t *a[KT_TILE_ROWS];
    kt_fp8_opening next = x->next;
    float *to = t->c + KT_TILE_WIDTH * row;

    KT_EACH (r, rows) a[r] = t->a[row + r] + 2 * x->i;
    if (format == KT_W_MXFP8) {
        KT_ROLLED for (int i = 0; i < x->inputs; i += 32)
            kt_fp8_micro_block(x, &next, format, a, to, i, i + 32, rows);
    } else {
        kt_fp8_micro_block(x, &next, format, a, to, 0, x->inputs, rows);
    }
    x->next = next;
}

/* `count` tiles of `rows` rows from `row` on. */
KT_INLINE void kt_fp8_tiles(kt_tile *t, kt_fp8_chunk *x, const kt_weight_format format, int row,
                            int count, const int rows) {
    KT_ROLLED for (int end = row + rows * count; row < end; row += rows) {
        kt_tile_fetch_far(t);
        if (x->is_last) kt_tile_fetch_out(t, row, rows);
        kt_fp8_micro(t, x, format, row, rows);
    }
}

/* To be called from a function of its own for each format. */
KT_INLINE void kt_fp8_tiles_any(kt_tile *t, kt_fp8_chunk *x, const kt_weight_format format, int row,
                                int count, int rows) {
    switch (rows) {
    case 1: kt_fp8_tiles(t, x, format, row, count, 1); return;
    case 2: kt_fp8_tiles(t, x, format, row, count, 2); return;
    case 3: kt_fp8_tiles(t, x, format, row, count, 3); return;
    case 4: kt_fp8_tiles(t, x, format, row, count, 4); return;
    case 5: kt_fp8_tiles(t, x, format, row, count, 5); return;
    default: kt_fp8_tiles(t, x, format, row, count, 6); return;
    }
}

typedef void kt_fp8_tiles_run(kt_tile *t, kt_fp8_chunk *x, int row, int count, int rows);

/* Inputs of the chunk from i on. */
KT_INLINE int kt_fp8_chunk_inputs(const kt_tile *t, int64_t i) {
    return t->k - i < KT_FP8_CHUNK ? (int)(t->k - i) : KT_FP8_CHUNK;
}

/* The chunk from i on is to be widened into open, evenly while `steps` times eight inputs are multiplied. */
KT_INLINE kt_fp8_opening kt_fp8_opening_of(const kt_tile *t, int64_t i, int steps,
                                           kt_fp8_open *open) {
    const int lines = kt_fp8_chunk_inputs(t, i);
    return (kt_fp8_opening){.from = t->panel + 64 * i,
                            .end = t->panel + 64 * (i + lines),
                            .to = open->pairs[0][0][0],
                            .mask = steps >= 2 * lines ? 24
                                    : steps >= lines   ? 8
                                                       : 0};
}

/* What is left of it. */
KT_INLINE void kt_fp8_open_rest(kt_fp8_opening *x) {
    while (x->from != x->end) kt_fp8_open_line(x);
}

/* Tiles of one size, then those of one row less: sizes in turn cost a mispredicted branch at every tile. */
KT_INLINE void kt_tile_fp8_many(kt_tile *t, const kt_weight_format format, kt_fp8_tiles_run *run) {
    const int tiles = (t->rows + KT_TILE_ROWS - 1) / KT_TILE_ROWS;
    const int rows = t->rows / tiles, more = t->rows % tiles;
    const uintptr_t rows_pace = t->rows_ahead.pace;
    kt_fp8_open open[2];
    kt_fp8_chunk x = {.scales = t->panel + 64 * t->k};
    kt_fp8_opening first = kt_fp8_opening_of(t, 0, 0, &open[0]);

    kt_tile_set_part(t, KT_FP8_CHUNK / KT_TILE_STEP, tiles, t->ahead.pace, rows_pace);
    kt_fp8_open_rest(&first);
    if (format == KT_W_FP8_CHANNEL)
        memset(t->c, 0, sizeof(float) * KT_TILE_WIDTH * (size_t)t->rows);
    for (int at = 0; x.i < t->k; x.i += x.inputs, at ^= 1) {
        x.inputs = kt_fp8_chunk_inputs(t, x.i);
        x.is_last = x.i + x.inputs == t->k;
        x.pairs = open[at].pairs[0][0][0];
        x.next = kt_fp8_opening_of(t, x.i + x.inputs, tiles * x.inputs / 8, &open[at ^ 1]);
        if (more) run(t, &x, 0, more, rows + 1);
        run(t, &x, more * (rows + 1), tiles - more, rows);
        kt_fp8_open_rest(&x.next);
    }
    for (int r = 0; r < t->rows && format == KT_W_FP8_CHANNEL; r++)
        KT_EACH (c, 4) {
            float *c_r = t->c + KT_TILE_WIDTH * r + 16 * c;
            kt_fp8_join(c_r, _mm512_load_ps(c_r), kt_fp8_scale(format, x.scales, 0, c), 0);
        }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

#endif

/* --- halves and FMA -------------------------------------------------------------------------- */

/* Two activations as f32 in every 64-bit lane. */
KT_INLINE __m512 kt_half_acts(const uint8_t *a) {
    const __m512i to_upper_halves = _mm512_set1_epi64(0x0302808001008080); /* 80: zero */
    const __m512i x = _mm512_set1_epi32(kt_load_i32(a));
    return _mm512_castsi512_ps(_mm512_shuffle_epi8(x, to_upper_halves));
}

/* Eight rows x two inputs. */
KT_INLINE __m512 kt_half_widen(__m512i words, const int upper) {
    return _mm512_cvtph_ps(upper ? _mm512_extracti64x4_epi64(words, 1)
                                 : _mm512_castsi512_si256(words));
}

/* E4M3 bytes in the upper halves of words -> halves of 2^-8 the value. One step up from the NaN codes bit 14
 * comes on: it is set for them, and makes halves that are NaN. */
KT_INLINE __m512i kt_half_of_fp8(__m512i words) {
    const __m512i half =
        _mm512_and_si512(_mm512_srai_epi16(words, 1), _mm512_set1_epi16((short)0xbf80));
    const __m512i above = _mm512_add_epi16(half, _mm512_set1_epi16(0x80));
    return _mm512_ternarylogic_epi32(half, above, _mm512_set1_epi16(0x4000), 0xf8);
}

/* The pairs of 16 rows' sums -> 16 sums. */
KT_INLINE __m512 kt_half_join(__m512 first, __m512 second) {
    const __m512i even =
        _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return _mm512_add_ps(_mm512_permutex2var_ps(first, even, second),
                         _mm512_permutex2var_ps(first, odd, second));
}

/* A pair of inputs of 16 rows from column c: sum[r][2c], sum[r][2c + 1]. */
KT_INLINE void kt_half_pair(__m512i words, const uint8_t *const a[], int64_t i, const int rows,
                            const int c, __m512 sum[KT_TILE_ROWS][8]) {
    const __m512 first = kt_half_widen(words, 0), second = kt_half_widen(words, 1);
    KT_EACH (r, rows) {
        const __m512 x = kt_half_acts(a[r] + 2 * i);
        sum[r][2 * c] = _mm512_fmadd_ps(first, x, sum[r][2 * c]);
        sum[r][2 * c + 1] = _mm512_fmadd_ps(second, x, sum[r][2 * c + 1]);
    }
}

/* Four inputs of the columns [col, col + cols): a line of 16 rows each for E4M3, two for halves. */
KT_INLINE void kt_half_quad(const kt_weight_format format, const uint8_t *w,
                            const uint8_t *const a[], int64_t i, const int rows, const int cols,
                            __m512 sum[KT_TILE_ROWS][8]) {
    KT_EACH (c, cols) {
        KT_IN_ORDER();
        const __m512i x = _mm512_load_si512(w + 64 * c);
        if (format == KT_W_F16) {
            kt_half_pair(x, a, i, rows, c, sum);
            continue;
        }
        const __m512i zero = _mm512_setzero_si512();
        kt_half_pair(kt_half_of_fp8(_mm512_unpacklo_epi8(zero, x)), a, i, rows, c, sum);
        kt_half_pair(kt_half_of_fp8(_mm512_unpackhi_epi8(zero, x)), a, i + 2, rows, c, sum);
    }
    if (format != KT_W_F16) return;
    KT_EACH (c, cols) {
        KT_IN_ORDER();
        kt_half_pair(_mm512_load_si512(w + 256 + 64 * c), a, i + 2, rows, c, sum);
    }
}

KT_INLINE void kt_tile_half(kt_tile *t, const kt_weight_format format, const int rows,
                            const int cols, const int col) {
    const int64_t k = t->k, block = kt_fp8_block(format, k);
    const int quad_bytes = format == KT_W_F16 ? 512 : 256;
    const __m512 power = _mm512_set1_ps(format == KT_W_F16 ? 1.0f : 256.0f);
    const uint8_t *w = t->panel + 64 * col, *a[KT_TILE_ROWS];

    KT_EACH (r, rows) a[r] = t->a[r];
    for (int64_t b = 0; b * block < k; b++) {
        const int64_t end = (b + 1) * block < k ? (b + 1) * block : k;
        __m512 sum[KT_TILE_ROWS][8];
        KT_EACH (r, rows) {
            KT_EACH (c, 2 * cols) sum[r][c] = _mm512_setzero_ps();
        }
        for (int64_t i = b * block; i < end; i += KT_TILE_STEP) {
            kt_tile_lines next = {0, 0, 0};
            if (rows <= 3)
                next = kt_tile_fetch_slowly(t, (uintptr_t)(8 * quad_bytes));
            else
                kt_tile_fetch_far(t);
            for (int64_t j = i; j < i + KT_TILE_STEP; j += 4, w += quad_bytes) {
                if (next.at) kt_tile_fetch_lines(&next, quad_bytes / 64);
                kt_half_quad(format, w, a, j, rows, cols, sum);
            }
            if (next.at) kt_tile_fetch_rest(&next);
        }
        KT_EACH (c, cols) {
            const __m512 scale = kt_fp8_scale(format, t->panel + 64 * k, b, col + c);
            KT_EACH (r, rows) {
                __m512 joined = kt_half_join(sum[r][2 * c], sum[r][2 * c + 1]);
                kt_fp8_join(t->c + KT_TILE_WIDTH * r + 16 * (col + c), _mm512_mul_ps(joined, power),
                            scale, b);
            }
        }
    }
}

/* Up to three rows read whole lines of the panel; more hold 32 panel rows at a time. */
KT_INLINE void kt_tile_half_run(kt_tile *t, const kt_weight_format format) {
    switch (t->rows) {
    case 1: kt_tile_half(t, format, 1, 4, 0); return;
    case 2: kt_tile_half(t, format, 2, 4, 0); return;
    case 3: kt_tile_half(t, format, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_half(t, format, 4, 2, col);
        if (t->rows == 5) kt_tile_half(t, format, 5, 2, col);
        if (t->rows == 6) kt_tile_half(t, format, 6, 2, col);
    }
}

#endif
