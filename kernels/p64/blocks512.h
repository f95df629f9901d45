/* Tiles of integer multiply-adds on AVX-512 VNNI for every block format (kernels/formats/p64_spec.h).
 *
 * k goes in chunks of up to 256 inputs: a block of a K-quant, a group of 64 or 128, or eight groups of 32.
 * In a chunk, per 32 inputs (a unit) and per column of 16 panel rows:
 *
 *   operand   quad o of the planes as bytes: a line shifted down and masked; a second plane is shifted
 *             to its place and merged by one VPTERNLOGD; tables (IQ4, E2M1) by one VPSHUFB, + 128.
 *   start     the accumulator starts at -offset * sum q, from the stored compensation -8 sum q; sums of
 *             half a group are taken from the codes, once per chunk (kt_blocks_rows).
 *   zero      sum code q - zero * sum q: VPDPWSSD of the zero point and -sum q, in 16 bits each
 *             (|sum q| <= 32 * 127), still exact.
 *   end       scale and activation scale, in the order that leaves the multiply-add ports least to do:
 *
 *     K-quants      part += a_scale * float(scale code * dot); the product of integers is exact, VPMULLD
 *                   has a port of its own, and halves of a unit join before they become floats;
 *                   at the end of the block  sum += d * part
 *     wide groups   part += a_scale * dot; at the end of the group  sum += scale * part
 *     others        sum += (scale * a_scale) * dot
 *     float halves  groups of 16 with f32 or E4M3 scales: as `others`, each half, with its minimum
 *     minima        their sums run beside and join likewise: with dmin at the block's end, or at once
 *
 * No sum wraps: |dot| <= 32 * 255 * 127 < 2^21; |scale code * dot| of a unit <= 2^24 for each
 * K-quant (Q6_K: 2 * 128 * 16 * 32 * 127, IQ4_XS: 32 * 32 * 127 * 127) and grid
 * (31 * 32 * 62 * 127), so all of them are exact in f32 too.
 *
 * The planes are read as they come, in one ascending stream. Q6_K and Q3_K, whose codes take longest to put
 * together, are opened into L1 once for many rows: codes as bytes, scales as int32. Both ways do the same
 * operations on the same numbers in the same order, so a row's bits do not depend on m. The other
 * formats lose by it: every row tile reads the opened codes again, and unpacking runs on ports
 * that products do not use.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_BLOCKS512_H
#define KT_SIMD_BLOCKS512_H

#include "kernels/formats/iq1.h"
#include "kernels/formats/p64_spec.h"
#include "kernels/p64/kinds512.h"
#include "kernels/p64/vnni512.h"

#define KT_CHUNK_UNITS 8 /* units of 32 inputs in a chunk, at most */

/* --- kinds ------------------------------------------------------------------------------------ */

/* The scale of a group is an integer times the block's d. */
KT_INLINE int kt_blocks_is_integer(const kt_p64_spec s) {
    return s.scale == KT_P64_S8 || s.scale == KT_P64_NIBBLES || s.scale == KT_P64_ODD ||
           s.scale == KT_P64_IQ1;
}
KT_INLINE int kt_blocks_is_wide(const kt_p64_spec s) {
    return s.group > 32;
}
/* Sums of a chunk are parts, to be multiplied at its end. */
KT_INLINE int kt_blocks_has_factor(const kt_p64_spec s) {
    return kt_blocks_is_integer(s) || kt_blocks_is_wide(s);
}
KT_INLINE int kt_blocks_halves(const kt_p64_spec s) {
    return s.group == 16 ? 2 : 1;
}
/* Halves that do not join before they become floats. */
KT_INLINE int kt_blocks_is_apart(const kt_p64_spec s) {
#ifdef KT_BLOCKS_SPLIT
    (void)s;
    return 0;
#else
    return s.group == 16 && !kt_blocks_is_integer(s);
#endif
}
KT_INLINE int kt_blocks_has_minimum(const kt_p64_spec s) {
    return s.minimum != KT_P64_MIN_NONE && s.minimum != KT_P64_MIN_ZERO;
}
KT_INLINE int kt_blocks_offset(const kt_p64_spec s) {
    return s.values == KT_P64_LINEAR ? s.offset : 128;
}
KT_INLINE int kt_blocks_units(const kt_p64_spec s) {
    return kt_blocks_is_wide(s) ? s.group / 32 : KT_CHUNK_UNITS;
}

/* Where unit u of a chunk lies: its planes, and scales and minima of its groups. */
KT_INLINE size_t kt_blocks_planes_at(const kt_p64_spec s, int u) {
    const size_t step = kt_blocks_is_wide(s) ? kt_p64_plane_bytes(s) : kt_p64_run_bytes(s);
    return kt_p64_front_bytes(s) + (size_t)u * step;
}
KT_INLINE size_t kt_blocks_scales_at(const kt_p64_spec s, int u) {
    if (kt_blocks_is_wide(s)) return kt_blocks_planes_at(s, kt_blocks_units(s));
    if (kt_p64_has_front(s)) return kt_p64_scales_at(s, 32 * u);
    return kt_blocks_planes_at(s, u) + kt_p64_plane_bytes(s);
}
KT_INLINE size_t kt_blocks_minima_at(const kt_p64_spec s, int u) {
    return kt_blocks_scales_at(s, u) + (size_t)kt_blocks_halves(s) * kt_p64_scale_bytes(s);
}
KT_INLINE size_t kt_blocks_chunk_bytes(const kt_p64_spec s, int units) {
    return kt_blocks_has_factor(s) ? kt_p64_block_bytes(s) : kt_p64_run_bytes(s) * (size_t)units;
}

/* --- fields ----------------------------------------------------------------------------------- */

/* Quad o of 16 rows as unsigned bytes: from its line of the low plane; high: the high plane. */
KT_INLINE __m512i kt_blocks_codes(const kt_p64_spec s, __m512i v, const uint8_t *high, const int o,
                                  const __m512i table) {
    const int shift = o - o % s.low;

    if (shift) v = _mm512_srli_epi32(v, (unsigned)shift);
    if (s.low < 8) v = _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << s.low) - 1)));
    if (s.high) {
        const int bits = s.high ? s.high : 1, up = s.low - (o - o % bits);
        const __m512i mask = _mm512_set1_epi8((char)(((1 << s.high) - 1) << s.low));
        __m512i h = _mm512_load_si512(high + 256 * (o % bits));
        if (up > 0) h = _mm512_slli_epi32(h, (unsigned)(up > 0 ? up : 0));
        if (up < 0) h = _mm512_srli_epi32(h, (unsigned)(up < 0 ? -up : 0));
        v = _mm512_ternarylogic_epi32(v, h, mask, 0xf8); /* v | (h & mask) */
    }
    return s.values == KT_P64_LINEAR ? v : _mm512_shuffle_epi8(table, v);
}

/* Values + 128 of all 16 codes in each 128-bit lane. */
KT_INLINE __m512i kt_blocks_table(const kt_p64_spec s) {
    const int8_t *values = s.values == KT_P64_IQ4 ? kt_iq4_values : kt_e2m1_values;
    __m128i v = _mm_loadu_si128((const __m128i *)(const void *)values);
    if (s.values == KT_P64_LINEAR) return _mm512_setzero_si512();
    return _mm512_broadcast_i32x4(_mm_xor_si128(v, _mm_set1_epi8(-128)));
}

KT_INLINE __m512 kt_load_f16x16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
KT_INLINE __m512i kt_load_u8x16(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Half bytes of 16 rows, for look-ups, which take the low four bits. */
KT_INLINE __m512i kt_blocks_nibbles(const uint8_t *scales, int c) {
    const __m512i v = kt_load_u8x16(scales + c % 2 * 16);
    return c / 2 ? _mm512_srli_epi32(v, 4) : v;
}

/* Integer scales of 16 rows; `scales` is their group's field. */
KT_INLINE __m512i kt_blocks_integer_scale(const kt_p64_spec s, const uint8_t *scales, int c) {
    if (s.scale == KT_P64_S8)
        return _mm512_cvtepi8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)(scales + 16 * c)));
    if (s.scale == KT_P64_IQ1) {
        const __m512i odd = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_permutexvar_epi32(kt_blocks_nibbles(scales, c), odd);
    }
    if (s.scale == KT_P64_ODD) {
        const __m512i odd =
            _mm512_set_epi32(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
        return _mm512_permutexvar_epi32(kt_blocks_nibbles(scales, c), odd);
    }
    return _mm512_and_si512(kt_load_u8x16(scales + 16 * c), _mm512_set1_epi32(15));
}

KT_INLINE __m512 kt_load_f32x16(const uint8_t *p) {
    return _mm512_load_ps((const float *)(const void *)p);
}

/* f32 scales of 16 rows. */
KT_INLINE __m512 kt_blocks_float_scale(const kt_p64_spec s, const uint8_t *scales, int c) {
    __m512i e;

    if (s.scale == KT_P64_BF16) return kt_load_bf16x16(scales + 32 * c);
    if (s.scale == KT_P64_F16) return kt_load_f16x16(scales + 32 * c);
    if (s.scale == KT_P64_F32) return kt_load_f32x16(scales + 64 * c);
    if (s.scale == KT_P64_E4M3) { /* halved; as a half the byte is 2^-8 times the number */
        e = _mm512_castsi256_si512(_mm256_slli_epi16(
            _mm256_cvtepu8_epi16(_mm_load_si128((const __m128i *)(const void *)(scales + 16 * c))),
            7));
        return _mm512_mul_ps(_mm512_cvtph_ps(_mm512_castsi512_si256(e)), _mm512_set1_ps(0x1p7f));
    }
    /* E8M0: 2^(e - 127) / 2; e = 0 has no f32 exponent, e = 255 is NaN */
    e = kt_load_u8x16(scales + 16 * c);
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
    e = _mm512_max_epu32(_mm512_slli_epi32(e, 23), _mm512_set1_epi32(0x00400000));
    e = _mm512_mask_mov_epi32(e, nan, _mm512_set1_epi32(0x7fc00000));
    return _mm512_mul_ps(_mm512_castsi512_ps(e), _mm512_set1_ps(0.5f));
}

/* Minima of 16 rows: to be multiplied by minus dmin unless they are f16 or f32. */
KT_INLINE __m512 kt_blocks_minimum(const kt_p64_spec s, const uint8_t *scales,
                                   const uint8_t *minima, int c) {
    if (s.minimum == KT_P64_MIN_F16) return kt_load_f16x16(minima + 32 * c);
    if (s.minimum == KT_P64_MIN_F32) return kt_load_f32x16(minima + 64 * c);
    if (s.minimum == KT_P64_MIN_U8) return _mm512_cvtepi32_ps(kt_load_u8x16(minima + 16 * c));
    return _mm512_cvtepi32_ps(_mm512_srli_epi32(kt_load_u8x16(scales + 16 * c), 4));
}

/* --- rows ------------------------------------------------------------------------------------- */

/* What the groups of a chunk need of the rows of a tile. */
typedef struct kt_blocks_rows {
    int32_t start[KT_TILE_ROWS][2 * KT_CHUNK_UNITS]; /* -offset * sum q; -sum q for zero points */
    float sum[KT_TILE_ROWS][2 * KT_CHUNK_UNITS];     /* a_scale * sum q, for minima */
} kt_blocks_rows;

/* Sums of the 16 times 16 codes at q, of which only the first `units` times 32 are there; a row
 * is padded to whole lines, and what is beyond the codes yields sums that nobody reads. */
KT_INLINE __m512i kt_blocks_half_sums(const uint8_t *q, int units) {
    const __m512i one = _mm512_set1_epi8(1), one16 = _mm512_set1_epi16(1);
    const __m512i in_order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    __m512i v[4], even, odd;

    /* Each lane of v[i] holds four codes, each 128 bits a group; transposed by 4 x 4 while
     * adding. */
    KT_EACH (i, 4) {
        __m512i codes = _mm512_setzero_si512();
        if (units > 2 * i) codes = _mm512_loadu_si512(q + 64 * i);
        v[i] = _mm512_madd_epi16(_mm512_maddubs_epi16(one, codes), one16);
    }
    even = _mm512_add_epi32(_mm512_unpacklo_epi32(v[0], v[1]), _mm512_unpackhi_epi32(v[0], v[1]));
    odd = _mm512_add_epi32(_mm512_unpacklo_epi32(v[2], v[3]), _mm512_unpackhi_epi32(v[2], v[3]));
    v[0] = _mm512_add_epi32(_mm512_unpacklo_epi64(even, odd), _mm512_unpackhi_epi64(even, odd));
    return _mm512_permutexvar_epi32(in_order, v[0]);
}

/* One row's part of it, for the chunk of `units` units from input i on. */
KT_INLINE void kt_blocks_row_open(const kt_p64_spec s, const uint8_t *a, int64_t k, int64_t i,
                                  int units, int32_t *start, float *sum) {
    const int offset = kt_blocks_offset(s);
    const __mmask8 in = (__mmask8)((1u << units) - 1);

    if (!offset && s.minimum == KT_P64_MIN_NONE) return;
    const __m256i comp = _mm256_maskz_loadu_epi32(in, a + k + k / 8 + i / 8);
    const __m256 scale = _mm256_maskz_loadu_ps(in, a + k + i / 8);
    if (s.group == 16) {
        const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        const __m512 scales = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(scale));
        const __m512i q = kt_blocks_half_sums(a + i, s.span == 256 ? KT_CHUNK_UNITS : units);
        _mm512_storeu_si512(start, _mm512_mullo_epi32(q, _mm512_set1_epi32(-offset)));
        if (kt_blocks_has_minimum(s))
            _mm512_storeu_ps(sum, _mm512_mul_ps(scales, _mm512_cvtepi32_ps(q)));
        return;
    }
    if (kt_blocks_has_minimum(s))
        _mm256_storeu_ps(sum, _mm256_mul_ps(scale, _mm256_mul_ps(_mm256_cvtepi32_ps(comp),
                                                                 _mm256_set1_ps(-0.125f))));
    const __m256i factor = _mm256_set1_epi32(s.minimum == KT_P64_MIN_ZERO ? 1 : offset);
    _mm256_storeu_si256((__m256i *)(void *)start,
                        _mm256_srai_epi32(_mm256_mullo_epi32(comp, factor), 3));
}

/* --- a chunk ---------------------------------------------------------------------------------- */

/* A chunk of a K-quant without minima, opened for many rows. */
typedef struct kt_blocks_open {
    _Alignas(64) uint8_t codes[KT_CHUNK_UNITS][8][256]; /* [quads][64 rows][4] */
    _Alignas(64) int32_t scale[2 * KT_CHUNK_UNITS][64];
} kt_blocks_open;

typedef struct kt_blocks_chunk {
    const uint8_t *w;           /* of the panel, from column 0 on */
    const kt_blocks_open *open; /* the same, opened, or NULL */
    const uint8_t *a[KT_TILE_ROWS];
    int64_t k, i; /* first input of the chunk */
    int units;
    kt_blocks_rows rows;
    float *c; /* sums, KT_TILE_WIDTH floats from row to row */
} kt_blocks_chunk;

typedef __m512i kt_blocks_dots[2][KT_TILE_ROWS][4];

/* The line is read here: a step of the ascending stream. */
KT_INLINE void kt_blocks_touch(const uint8_t *line) {
    const __m512i v = _mm512_load_si512(line);
    __asm__ volatile("" ::"v"(v) : "memory");
}

/* Many rows: one activation at a time, of which the compiler would load all early and spill
 * sums. */
KT_INLINE void kt_blocks_multiply(const uint8_t *const a[], int64_t input, const int half,
                                  const int rows, const int cols, const __m512i u[4],
                                  kt_blocks_dots dot) {
    KT_EACH (r, rows) {
        if (rows >= 3) KT_IN_ORDER();
        const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + input));
        KT_EACH (c, cols) dot[half][r][c] = kt_dpbusd512(dot[half][r][c], u[c], q);
    }
}

/* Integer sums of unit u, straight from the planes. */
KT_INLINE void kt_blocks_dot_planes(const kt_p64_spec s, const kt_blocks_chunk *x,
                                    const uint8_t *const a[], int unit, const int rows,
                                    const int cols, const int col, const __m512i table,
                                    kt_tile_lines *next, kt_blocks_dots dot) {
    const int halves = kt_blocks_halves(s);
    const uint8_t *high = x->w + kt_blocks_planes_at(s, unit) + 64 * col;
    const uint8_t *low = high + 256 * s.high;
    __m512i u[4];

    for (int l = 0; l < s.high; l++)
        for (int c = 0; c < cols; c++) kt_blocks_touch(high + 256 * l + 64 * c);
    if (s.low == 8) {
        KT_ROLLED for (int j = 0; j < 8; j++) {
            KT_IN_ORDER();
            KT_EACH (c, cols) u[c] = _mm512_load_si512(low + 256 * j + 64 * c);
            kt_blocks_multiply(a, 32 * unit + 4 * j, 0, rows, cols, u, dot);
        }
        return;
    }
    /* A line is kept for its other quads; from three rows on sums have the registers, and L1 has
     * the line. */
    KT_EACH (j, s.low) {
        __m512i line[4];
        if (next->at) kt_tile_fetch_lines(next, 4 * (s.low + s.high) / s.low);
        KT_EACH (t, 8 / s.low) {
            const int o = j + s.low * t;
            if (t == 0 || rows >= 3) {
                KT_IN_ORDER();
                KT_EACH (c, cols) line[c] = _mm512_load_si512(low + 256 * j + 64 * c);
            }
            KT_EACH (c, cols) u[c] = kt_blocks_codes(s, line[c], high + 64 * c, o, table);
            kt_blocks_multiply(a, 32 * unit + 4 * o, halves == 2 && o >= 4, rows, cols, u, dot);
        }
    }
}

/* Half h of unit u of an opened chunk; the same codes. */
KT_INLINE void kt_blocks_dot_codes(const kt_p64_spec s, const kt_blocks_chunk *x,
                                   const uint8_t *const a[], int unit, const int half,
                                   const int rows, const int cols, const int col,
                                   kt_blocks_dots dot) {
    const int quads = 8 / kt_blocks_halves(s);
    const uint8_t *codes = x->open->codes[unit][0] + 64 * col;
    __m512i u[4];

    KT_EACH (j, quads) {
        const int o = quads * half + j;
        KT_IN_ORDER();
        KT_EACH (c, cols) u[c] = _mm512_load_si512(codes + 256 * o + 64 * c);
        kt_blocks_multiply(a, 32 * unit + 4 * o, half, rows, cols, u, dot);
    }
}

KT_INLINE void kt_blocks_begin(const kt_p64_spec s, const kt_blocks_chunk *x, int unit,
                               const int half, const int rows, const int cols, kt_blocks_dots dot) {
    const int g = kt_blocks_halves(s) * unit + half;
    KT_EACH (r, rows) {
        __m512i start = _mm512_setzero_si512();
        if (kt_blocks_offset(s)) start = _mm512_set1_epi32(x->rows.start[r][g]);
        KT_EACH (c, cols) dot[half][r][c] = start;
    }
}

/* The sums of unit u, scaled, join part, and its minima join low. */
KT_INLINE void kt_blocks_scale_unit(const kt_p64_spec s, const kt_blocks_chunk *x,
                                    const uint8_t *const a[], int unit, const int rows,
                                    const int cols, const int col, const int is_open,
                                    kt_blocks_dots dot, __m512 part[KT_TILE_ROWS][4],
                                    __m512 low[KT_TILE_ROWS][4]) {
    const int halves = kt_blocks_halves(s);
    const uint8_t *scales = x->w + kt_blocks_scales_at(s, unit);
    const uint8_t *minima = x->w + kt_blocks_minima_at(s, unit);
    const int64_t a_scales = x->k - x->i + x->i / 8 + 4 * unit;

    KT_EACH (c, cols) {
        KT_IN_ORDER();
        __m512 scale = _mm512_setzero_ps();
        __m512i factor[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (s.minimum == KT_P64_MIN_ZERO) factor[0] = kt_load_u8x16(minima + 16 * (col + c));
        if (kt_blocks_is_integer(s)) {
            KT_EACH (h, halves) {
                factor[h] =
                    is_open
                        ? _mm512_load_si512(x->open->scale[halves * unit + h] + 16 * (col + c))
                        : kt_blocks_integer_scale(s, scales + h * kt_p64_scale_bytes(s), col + c);
            }
        } else if (!kt_blocks_is_wide(s)) {
            scale = kt_blocks_float_scale(s, scales, col + c);
        }
        KT_EACH (r, rows) {
            const __m512 a_scale = _mm512_set1_ps(kt_load_f32(a[r] + a_scales));
            __m512i d = dot[0][r][c];
            if (kt_blocks_is_integer(s)) d = _mm512_mullo_epi32(d, factor[0]);
            if (halves == 2) d = _mm512_add_epi32(d, _mm512_mullo_epi32(dot[1][r][c], factor[1]));
            if (s.minimum == KT_P64_MIN_ZERO)
                d = _mm512_dpwssd_epi32(d, factor[0], _mm512_set1_epi32(x->rows.start[r][unit]));
            if (kt_blocks_has_factor(s))
                part[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), a_scale, part[r][c]);
            else
                part[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(d), _mm512_mul_ps(scale, a_scale),
                                             part[r][c]);
            if (!is_open) KT_SETTLE(part[r][c]);
        }
    }
    if (!kt_blocks_has_minimum(s)) return;
    KT_EACH (h, halves) {
        const int g = halves * unit + h;
        KT_EACH (c, cols) {
            KT_IN_ORDER();
            const __m512 minimum = kt_blocks_minimum(s, scales + h * kt_p64_scale_bytes(s),
                                                     minima + h * kt_p64_minimum_bytes(s), col + c);
            KT_EACH (r, rows) {
                low[r][c] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(x->rows.sum[r][g]), low[r][c]);
                KT_SETTLE(low[r][c]);
            }
        }
    }
}

#ifdef KT_BLOCKS_SPLIT
/* The sums of both halves of unit u, each with a float scale, join part. */
KT_INLINE void kt_blocks_scale_split(const kt_blocks_chunk *x, const uint8_t *const a[], int unit,
                                     const int rows, const int cols, const int col,
                                     kt_blocks_dots dot, __m512 part[KT_TILE_ROWS][4]) {
    const kt_p64_spec s = kt_p64_spec_of(KT_W_NVFP4);
    const uint8_t *scales = x->w + kt_blocks_scales_at(s, unit);
    const int64_t a_scales = x->k - x->i + x->i / 8 + 4 * unit;

    KT_EACH (c, cols) {
        KT_EACH (h, 2) {
            KT_IN_ORDER();
            const __m512 scale =
                kt_blocks_float_scale(s, scales + h * kt_p64_scale_bytes(s), col + c);
            KT_EACH (r, rows) {
                const __m512 a_scale = _mm512_set1_ps(kt_load_f32(a[r] + a_scales));
                part[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[h][r][c]),
                                             _mm512_mul_ps(scale, a_scale), part[r][c]);
                KT_SETTLE(part[r][c]);
            }
        }
    }
}
#endif

/* --- float halves --- */

/* Integer sums of half h of unit u, 8-bit codes, into sum. */
KT_INLINE void kt_blocks_dot_half(const kt_p64_spec s, const kt_blocks_chunk *x,
                                  const uint8_t *const a[], int unit, const int half,
                                  const int rows, const int cols, const int col, kt_blocks_dots dot,
                                  const int to) {
    const uint8_t *w = x->w + kt_blocks_planes_at(s, unit) + 1024 * half + 64 * col;

    KT_EACH (r, rows) {
        const __m512i start = _mm512_set1_epi32(x->rows.start[r][2 * unit + half]);
        KT_EACH (c, cols) dot[to][r][c] = start;
    }
    KT_ROLLED for (int j = 0; j < 4; j++) {
        __m512i u[4];
        KT_IN_ORDER();
        KT_EACH (c, cols) {
            if (cols == 4) KT_IN_ORDER(); /* lines ascend */
            u[c] = _mm512_load_si512(w + 256 * j + 64 * c);
        }
        kt_blocks_multiply(a, 32 * unit + 16 * half + 4 * j, to, rows, cols, u, dot);
    }
}

/* They join part, scaled, and their minimum does. */
KT_INLINE void kt_blocks_scale_half(const kt_p64_spec s, const kt_blocks_chunk *x,
                                    const uint8_t *const a[], int unit, const int half,
                                    const int rows, const int cols, const int col,
                                    kt_blocks_dots dot, const int from,
                                    __m512 part[KT_TILE_ROWS][4]) {
    const uint8_t *scales = x->w + kt_blocks_scales_at(s, unit) + half * kt_p64_scale_bytes(s);
    const uint8_t *minima = x->w + kt_blocks_minima_at(s, unit) + half * kt_p64_minimum_bytes(s);
    const int64_t a_scales = x->k - x->i + x->i / 8 + 4 * unit;

    KT_EACH (c, cols) {
        KT_IN_ORDER();
        const __m512 scale = kt_blocks_float_scale(s, scales, col + c);
        const __m512 minimum = kt_blocks_minimum(s, scales, minima, col + c);
        KT_EACH (r, rows) {
            const __m512 a_scale = _mm512_set1_ps(kt_load_f32(a[r] + a_scales));
            const __m512 sum = _mm512_set1_ps(x->rows.sum[r][2 * unit + half]);
            part[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[from][r][c]),
                                         _mm512_mul_ps(scale, a_scale), part[r][c]);
            part[r][c] = _mm512_fmadd_ps(minimum, sum, part[r][c]);
            KT_SETTLE(part[r][c]);
        }
    }
}

/* Unit u. A few rows have registers for the sums of both halves and read the unit as one
 * ascending stream; for more rows it is in L2, and one half is finished before the other begins. */
KT_INLINE void kt_blocks_add_halves(const kt_p64_spec s, const kt_blocks_chunk *x,
                                    const uint8_t *const a[], int unit, const int rows,
                                    const int cols, const int col, __m512 part[KT_TILE_ROWS][4]) {
    const int is_stream = cols == 4;
    const uint8_t *fields = x->w + kt_blocks_scales_at(s, unit);
    kt_blocks_dots dot;

    if (!is_stream) {
        KT_EACH (h, 2) {
            kt_blocks_dot_half(s, x, a, unit, h, rows, cols, col, dot, 0);
            kt_blocks_scale_half(s, x, a, unit, h, rows, cols, col, dot, 0, part);
        }
        return;
    }
    KT_EACH (h, 2) kt_blocks_dot_half(s, x, a, unit, h, rows, cols, col, dot, h);
    KT_ROLLED for (size_t at = 0; at < 2 * (kt_p64_scale_bytes(s) + kt_p64_minimum_bytes(s));
                   at += 64) kt_blocks_touch(fields + at);
    KT_EACH (h, 2) kt_blocks_scale_half(s, x, a, unit, h, rows, cols, col, dot, h, part);
}

/* Factors of a chunk's parts: d or the scale of a wide group; dmin. */
KT_INLINE __m512 kt_blocks_factor(const kt_p64_spec s, const uint8_t *w, int c) {
    if (kt_blocks_is_wide(s)) return kt_blocks_float_scale(s, w + kt_blocks_scales_at(s, 0), c);
    if (kt_p64_has_front(s) && kt_grid_unit(s.grid) != 1)
        return _mm512_mul_ps(kt_load_f16x16(w + 32 * c), _mm512_set1_ps(kt_grid_unit(s.grid)));
    return kt_load_f16x16(w + 32 * c);
}
KT_INLINE __m512 kt_blocks_minimum_factor(const uint8_t *w, int c) {
    return kt_load_f16x16(w + 128 + 32 * c);
}

/* Add a chunk's products to the sums; `ahead` is what to fetch meanwhile, NULL if is_open. */
KT_INLINE_UNROLLED void kt_blocks_micro(const kt_p64_spec s, const kt_blocks_chunk *x,
                                        kt_tile *ahead, const int rows, const int cols,
                                        const int col, const int is_open) {
    const int has_factor = kt_blocks_has_factor(s), is_integer = kt_blocks_is_integer(s);
    const int halves = kt_blocks_halves(s);
    const __m512i table = kt_blocks_table(s);
    __m512 part[KT_TILE_ROWS][4], low[KT_TILE_ROWS][4];
    const uint8_t *a[KT_TILE_ROWS]; /* here: copies that no store can change */
    kt_blocks_dots dot;

    KT_EACH (r, rows) a[r] = x->a[r] + x->i;
    if (!is_open)
        for (size_t at = 0; at < kt_p64_head_bytes(s); at += 64) kt_blocks_touch(x->w + at);
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            part[r][c] = has_factor ? _mm512_setzero_ps()
                                    : _mm512_load_ps(x->c + KT_TILE_WIDTH * r + 16 * (col + c));
            low[r][c] = _mm512_setzero_ps();
        }
    }
    KT_ROLLED for (int u = 0; u < x->units; u++) {
        kt_tile_lines next = {0, 0, 0};
        if (!is_open && rows <= 3 && s.low < 8)
            next = kt_tile_fetch_slowly(ahead, 256u * (unsigned)(s.low + s.high));
        else if (!is_open)
            kt_tile_fetch_far(ahead);
        if (kt_blocks_is_apart(s)) {
            kt_blocks_add_halves(s, x, a, u, rows, cols, col, part);
            continue;
        }
        KT_EACH (h, 2) { /* not to `halves`: after a single turn clang 14 takes h for a variable */
            if (h == halves) continue;
            kt_blocks_begin(s, x, u, h, rows, cols, dot);
            if (is_open) kt_blocks_dot_codes(s, x, a, u, h, rows, cols, col, dot);
        }
        if (!is_open) kt_blocks_dot_planes(s, x, a, u, rows, cols, col, table, &next, dot);
        if (next.at) kt_tile_fetch_rest(&next);
#ifdef KT_BLOCKS_SPLIT /* here for the formats that have such alone: clang unrolls less beside it */
        kt_blocks_scale_split(x, a, u, rows, cols, col, dot, part);
        (void)is_integer, (void)low;
#else
        kt_blocks_scale_unit(s, x, a, u, rows, cols, col, is_open, dot, part,
                             is_integer ? low : part);
#endif
    }
    KT_EACH (c, cols) {
        __m512 factor = _mm512_setzero_ps(), minimum_factor = _mm512_setzero_ps();
        if (has_factor) factor = kt_blocks_factor(s, x->w, col + c);
        if (is_integer && kt_blocks_has_minimum(s))
            minimum_factor = kt_blocks_minimum_factor(x->w, col + c);
        KT_EACH (r, rows) {
            float *to = x->c + KT_TILE_WIDTH * r + 16 * (col + c);
            __m512 sum = part[r][c];
            if (has_factor) sum = _mm512_fmadd_ps(sum, factor, _mm512_load_ps(to));
            if (is_integer && kt_blocks_has_minimum(s))
                sum = _mm512_fnmadd_ps(low[r][c], minimum_factor, sum);
            _mm512_store_ps(to, sum);
        }
    }
}

#endif
