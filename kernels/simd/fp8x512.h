/* Tiles of FP8 E4M3 weights (wf8c, wf8b128) and half weights (wf16) with abf16 activations on AVX-512.
 *
 * With VBMI and BF16: 64 codes become pairs of bfloat16 by table (fp8_table512.h).
 *
 * Without: the code moved up by 7 is a half with 2^-8 of its value, subnormals included: bytes to the
 * top of words, an arithmetic shift by 1, the doubled sign bit masked out, the NaN codes set apart. VCVTPH2PS widens 16 of them,
 * eight rows with two inputs each, which meet the activations' pair; even and odd inputs are summed
 * apart and joined at the end of a block. A half weight takes the same way from VCVTPH2PS on.
 *
 * A block's scale multiplies the f32 sum over its 128 inputs once; sums over blocks live in the result
 * tile, so that all registers are accumulators.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_FP8X512_H
#define KT_SIMD_FP8X512_H

#include "kernels/simd/fp8_table512.h"
#include "kernels/simd/kinds512.h"

/* Inputs that share a scale. */
KT_INLINE int64_t kt_fp8_block(kt_weight_format format, int64_t k) {
    return format == KT_W_FP8_B128 ? 128 : k;
}

/* Scales of panel rows 16c .. 16c + 15 for block b. */
KT_INLINE __m512 kt_fp8_scale(kt_weight_format format, const uint8_t *scales, int64_t b, int c) {
    if (format == KT_W_F16) return _mm512_set1_ps(1.0f);
    if (format == KT_W_FP8_CHANNEL)
        return _mm512_load_ps((const float *)(const void *)scales + 16 * c);
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

/* Four inputs (one line per column) of `rows` rows. */
KT_INLINE void kt_fp8_quad(const uint8_t *w, const uint8_t *const a[], int64_t i, const int rows,
                           const __m512i tables[4], __m512 sum[KT_TILE_ROWS][4]) {
    KT_EACH (c, 4) {
        __m512i pair[2];
        KT_IN_ORDER();
        kt_fp8_widen(w + 64 * c, tables, pair);
        KT_EACH (r, rows) {
            sum[r][c] =
                kt_fp8_dpbf16(sum[r][c], pair[0], _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i)));
            sum[r][c] =
                kt_fp8_dpbf16(sum[r][c], pair[1], _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i + 4)));
        }
    }
}

KT_INLINE void kt_tile_fp8_bf16(kt_tile *t, const kt_weight_format format, const int rows) {
    const int64_t k = t->k, block = kt_fp8_block(format, k);
    const uint8_t *w = t->panel, *a[KT_TILE_ROWS];
    __m512i tables[4];

    kt_fp8_tables(tables);
    KT_EACH (r, rows) a[r] = t->a[r];
    /* Scales of blocks lie behind the codes: asked for now, they are there at the end of the first block. */
    for (int64_t at = 0; rows <= 3 && format == KT_W_FP8_B128 && at < k / 16; at += KT_TILE_LINE)
        _mm_prefetch((const char *)w + 64 * k + at, _MM_HINT_T0);
    for (int64_t b = 0; b * block < k; b++) {
        const int64_t end = (b + 1) * block < k ? (b + 1) * block : k;
        __m512 sum[KT_TILE_ROWS][4];
        KT_EACH (r, rows) {
            KT_EACH (c, 4) sum[r][c] = _mm512_setzero_ps();
        }
        for (int64_t i = b * block; i < end; i += KT_TILE_STEP) {
            kt_tile_fetch(t);
            /* A stream wants sixteen lines unrolled (four in a loop: 0.78 of the read ceiling instead of 0.94,
             * k = 768), accumulators that fill the registers want a short loop. */
            if (rows > 3) {
                KT_ROLLED for (int64_t j = i; j < i + KT_TILE_STEP; j += 4, w += 256)
                    kt_fp8_quad(w, a, j, rows, tables, sum);
                continue;
            }
            for (int64_t j = i; j < i + KT_TILE_STEP; j += 16, w += 1024) {
                KT_EACH (q, 4) kt_fp8_quad(w + 256 * q, a, j + 4 * q, rows, tables, sum);
            }
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

/* Many rows: a chunk is widened to bfloat16 once, in two halves of 32 panel rows that stay in L2 while row
 * tiles pass over them. Six rows and 32 panel rows leave registers for the f32 sums over blocks beside those
 * within one. Sums start and are joined as above. */
#define KT_FP8_CHUNK 512 /* inputs: a multiple of a block's */

typedef struct kt_fp8_open {
    _Alignas(
        64) uint8_t pairs[2][KT_FP8_CHUNK / 2][128]; /* [halves][pairs of inputs][32 rows][2] */
} kt_fp8_open;

KT_INLINE void kt_fp8_open_chunk(const uint8_t *w, int inputs, kt_fp8_open *x) {
    __m512i tables[4];

    kt_fp8_tables(tables);
    KT_ROLLED for (int i = 0; i < inputs; i += 4, w += 256) {
        KT_EACH (c, 4) {
            uint8_t *to = x->pairs[c / 2][i / 2] + 64 * (c % 2);
            __m512i pair[2];
            kt_fp8_widen(w + 64 * c, tables, pair);
            _mm512_store_si512(to, pair[0]);
            _mm512_store_si512(to + 128, pair[1]);
        }
    }
}

/* One chunk of a tile's rows: from input i on; is_last of the row's. */
typedef struct kt_fp8_chunk {
    const kt_fp8_open *open;
    const uint8_t *a[KT_TILE_ROWS], *scales;
    int64_t i;
    int inputs, is_last;
    float *c;
} kt_fp8_chunk;

/* Inputs [begin, end) of the chunk join sum. */
KT_INLINE void kt_fp8_products(const uint8_t *w, const uint8_t *const a[], int64_t begin,
                               int64_t end, const int rows, __m512 sum[KT_TILE_ROWS][2]) {
    w += 64 * begin;
    for (int64_t i = begin; i < end; i += 8, w += 512) {
        KT_EACH (p, 4) {
            __m512i u[2];
            KT_IN_ORDER();
            KT_EACH (c, 2) u[c] = _mm512_load_si512(w + 128 * p + 64 * c);
            KT_EACH (r, rows) {
                const __m512i v = _mm512_set1_epi32(kt_load_i32(a[r] + 2 * i + 4 * p));
                KT_EACH (c, 2) sum[r][c] = kt_fp8_dpbf16(sum[r][c], u[c], v);
            }
        }
    }
}

/* Panel rows from 32 half on. */
KT_INLINE void kt_fp8_micro(const kt_fp8_chunk *x, const kt_weight_format format, const int rows,
                            const int half) {
    const uint8_t *a[KT_TILE_ROWS];
    float *to = x->c + 32 * half;
    __m512 sum[KT_TILE_ROWS][2];

    KT_EACH (r, rows) {
        a[r] = x->a[r] + 2 * x->i;
        KT_EACH (c, 2)
            sum[r][c] =
                x->i ? _mm512_load_ps(to + KT_TILE_WIDTH * r + 16 * c) : _mm512_setzero_ps();
    }
    if (format == KT_W_FP8_CHANNEL) {
        kt_fp8_products(x->open->pairs[half][0], a, 0, x->inputs, rows, sum);
        if (x->is_last) {
            KT_EACH (c, 2) {
                const __m512 scale = kt_fp8_scale(format, x->scales, 0, 2 * half + c);
                KT_EACH (r, rows)
                    sum[r][c] = _mm512_fmadd_ps(sum[r][c], scale, _mm512_setzero_ps());
            }
        }
    }
    for (int i = 0; i < x->inputs && format == KT_W_FP8_B128; i += 128) {
        const int end = i + 128 < x->inputs ? i + 128 : x->inputs;
        const __m512 scale = kt_fp8_scale(format, x->scales, (x->i + i) / 128, 2 * half);
        __m512 block[KT_TILE_ROWS][2];
        KT_EACH (r, rows) {
            KT_EACH (c, 2) block[r][c] = _mm512_setzero_ps();
        }
        kt_fp8_products(x->open->pairs[half][0], a, i, end, rows, block);
        KT_EACH (r, rows) {
            KT_EACH (c, 2) sum[r][c] = _mm512_fmadd_ps(block[r][c], scale, sum[r][c]);
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, 2) _mm512_store_ps(to + KT_TILE_WIDTH * r + 16 * c, sum[r][c]);
    }
}

/* To be called from a function that is not inlined below: the compiler would keep the tables of
 * kt_fp8_open_chunk in registers meanwhile. */
KT_INLINE void kt_fp8_micro_any(const kt_fp8_chunk *x, const kt_weight_format format, int rows) {
    KT_ROLLED for (int half = 0; half < 2; half++) {
        if (rows == 1) kt_fp8_micro(x, format, 1, half);
        if (rows == 2) kt_fp8_micro(x, format, 2, half);
        if (rows == 3) kt_fp8_micro(x, format, 3, half);
        if (rows == 4) kt_fp8_micro(x, format, 4, half);
        if (rows == 5) kt_fp8_micro(x, format, 5, half);
        if (rows == 6) kt_fp8_micro(x, format, 6, half);
    }
}

typedef void kt_fp8_micro_run(const kt_fp8_chunk *x, int rows);

KT_INLINE void kt_tile_fp8_many(kt_tile *t, kt_fp8_micro_run *micro) {
    const int tiles = (t->rows + KT_TILE_ROWS - 1) / KT_TILE_ROWS;
    const uintptr_t pace = t->ahead.pace, rows_pace = t->rows_ahead.pace;
    kt_fp8_open open;
    kt_fp8_chunk x = {.open = &open, .scales = t->panel + 64 * t->k};

    for (; x.i < t->k; x.i += x.inputs) {
        x.inputs = t->k - x.i < KT_FP8_CHUNK ? (int)(t->k - x.i) : KT_FP8_CHUNK;
        x.is_last = x.i + x.inputs == t->k;
        kt_fp8_open_chunk(t->panel + 64 * x.i, x.inputs, &open);
        for (int b = 0; b < tiles; b++) {
            const int row = t->rows * b / tiles, rows = t->rows * (b + 1) / tiles - row;
            kt_tile_fetch_part(t, x.inputs / KT_TILE_STEP, tiles, pace, rows_pace);
            if (x.is_last) kt_tile_fetch_out(t, row, rows);
            for (int r = 0; r < rows; r++) x.a[r] = t->a[row + r];
            x.c = t->c + KT_TILE_WIDTH * row;
            micro(&x, rows);
        }
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
            kt_tile_fetch(t);
            for (int64_t j = i; j < i + KT_TILE_STEP; j += 4, w += quad_bytes)
                kt_half_quad(format, w, a, j, rows, cols, sum);
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
