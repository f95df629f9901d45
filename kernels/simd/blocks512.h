/* Tiles of integer multiply-adds on AVX-512 VNNI for every block format (kernels/formats/p64_spec.h).
 *
 * One tile, compiled once per format: the spec is a constant, so what a format does not have leaves no
 * code. Per 32 inputs, or per 16 where scales are that fine, and per column of 16 panel rows:
 *
 *   operand   quad o of the planes as bytes: a line shifted down and masked; a second plane is shifted
 *             to its place and merged by one VPTERNLOGD; tables (IQ4, E2M1) by one VPSHUFB, + 128.
 *   start     the accumulator starts at -offset * sum q, from the stored compensation -8 sum q. Sums of
 *             half a group are not stored: four VPDPBUSD lanes of them, added across.
 *   zero      sum code q - zero * sum q: VPDPWSSD of the zero point and -sum q, both in 16 bits
 *             (|sum q| <= 32 * 127), still exact.
 *   end       sum += (weight scale * activation scale) * dot, and + minimum * (activation scale * sum q).
 *
 * No sum wraps: |sum| <= 32 * 255 * 127 < 2^21, exact in f32 too. Products d * byte are exact in f32
 * (11 + 7 bits).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_BLOCKS512_H
#define KT_SIMD_BLOCKS512_H

#include "kernels/formats/p64_spec.h"
#include "kernels/simd/kinds512.h"
#include "kernels/simd/vnni512.h"

/* The part of the tile that stays the same: which rows and columns. */
typedef struct kt_blocks_tile {
    const uint8_t *a[KT_TILE_ROWS];
    int64_t k;
    int col;
} kt_blocks_tile;

/* Where the fields of the current run are, for this tile's first column. */
typedef struct kt_blocks_fields {
    const uint8_t *head, *planes, *scales, *minima;
} kt_blocks_fields;

KT_INLINE int kt_blocks_offset(const kt_p64_spec s) {
    return s.values == KT_P64_LINEAR ? s.offset : 128;
}

/* Quad o of 16 rows as unsigned bytes. */
KT_INLINE __m512i kt_blocks_operand(const kt_p64_spec s, const uint8_t *planes, const int o,
                                    const __m512i table) {
    const int shift = o - o % s.low;
    __m512i v = _mm512_load_si512(planes + 256 * (o % s.low));

    if (shift) v = _mm512_srli_epi32(v, (unsigned)shift);
    if (s.low < 8) v = _mm512_and_si512(v, _mm512_set1_epi8((char)((1 << s.low) - 1)));
    if (s.high) {
        const int high = s.high ? s.high : 1, up = s.low - (o - o % high);
        const __m512i mask = _mm512_set1_epi8((char)(((1 << s.high) - 1) << s.low));
        __m512i h = _mm512_load_si512(planes + 256 * s.low + 256 * (o % high));
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

/* factor * sum of 16 codes, in every lane; 0 < factor < 128. */
KT_INLINE __m512i kt_blocks_half_sum(const uint8_t *q, const int factor) {
    __m512i v = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)q));
    v = kt_dpbusd512(_mm512_setzero_si512(), _mm512_set1_epi8((char)factor), v);
    v = _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0x4e));
    return _mm512_add_epi32(v, _mm512_shuffle_epi32(v, 0xb1));
}

/* -offset * sum q of the group, all lanes. */
KT_INLINE __m512i kt_blocks_start(const kt_p64_spec s, const uint8_t *q, int32_t comp) {
    const int offset = kt_blocks_offset(s);
    __m512i v = _mm512_set1_epi32(comp);

    if (offset == 0) return _mm512_setzero_si512();
    if (s.group == 16)
        return _mm512_sub_epi32(_mm512_setzero_si512(), kt_blocks_half_sum(q, offset));
    if (offset == 4) return _mm512_srai_epi32(v, 1);
    if (offset == 16) return _mm512_slli_epi32(v, 1);
    if (offset == 128) return _mm512_slli_epi32(v, 4);
    return v;
}

KT_INLINE __m512 kt_load_f16x16(const uint8_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}

KT_INLINE __m512i kt_load_u8x16(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}

/* Scales of 16 rows. */
KT_INLINE __m512 kt_blocks_scale(const kt_p64_spec s, const uint8_t *head, const uint8_t *scales,
                                 const int c) {
    __m512i e;

    if (s.scale == KT_P64_BF16) return kt_load_bf16x16(scales + 32 * c);
    if (s.scale == KT_P64_F16) return kt_load_f16x16(scales + 32 * c);
    e = kt_load_u8x16(scales + 16 * c);
    if (s.scale == KT_P64_E8M0) { /* 2^(e - 127) / 2; e = 0 has no f32 exponent, e = 255 is NaN */
        const __mmask16 nan = _mm512_cmpeq_epi32_mask(e, _mm512_set1_epi32(255));
        __m512i bits = _mm512_slli_epi32(e, 23);
        bits = _mm512_max_epu32(bits, _mm512_set1_epi32(0x00400000));
        bits = _mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000));
        return _mm512_mul_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0.5f));
    }
    if (s.scale == KT_P64_S8)
        e = _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(scales + 16 * c)));
    else
        e = _mm512_and_si512(e, _mm512_set1_epi32(15));
    return _mm512_mul_ps(kt_load_f16x16(head + 32 * c), _mm512_cvtepi32_ps(e));
}

/* Minus the minima of 16 rows. */
KT_INLINE __m512 kt_blocks_minus_minimum(const kt_p64_spec s, const kt_blocks_fields *f,
                                         const uint8_t *scales, const uint8_t *minima,
                                         const int c) {
    __m512i m;

    if (s.minimum == KT_P64_MIN_F16)
        return _mm512_xor_ps(kt_load_f16x16(minima + 32 * c), _mm512_set1_ps(-0.0f));
    if (s.minimum == KT_P64_MIN_U8)
        m = kt_load_u8x16(minima + 16 * c);
    else
        m = _mm512_srli_epi32(kt_load_u8x16(scales + 16 * c), 4);
    return _mm512_mul_ps(kt_load_f16x16(f->head + 128 + 32 * c), _mm512_cvtepi32_ps(m));
}

/* One group of at most 32 inputs: quads [first, first + quads) of the planes; `i` is the input where
 * the 32 begin. */
KT_INLINE void kt_blocks_group(const kt_p64_spec s, const kt_blocks_tile *t,
                               const kt_blocks_fields *f, int64_t i, const int first,
                               const int rows, const int cols, const __m512i table,
                               __m512 sum[KT_TILE_ROWS][4]) {
    const int quads = s.group == 16 ? 4 : 8, half = first / 4;
    const int has_minimum = s.minimum != KT_P64_MIN_NONE && s.minimum != KT_P64_MIN_ZERO;
    const uint8_t *scales = f->scales + (size_t)half * kt_p64_scale_bytes(s);
    const uint8_t *minima = f->minima + (size_t)half * kt_p64_minimum_bytes(s);
    const int64_t group = t->k + i / 8; /* scale of the activation group; its comp k / 8 further */
    __m512i dot[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        const int32_t comp = kt_load_i32(t->a[r] + group + t->k / 8);
        const __m512i start = kt_blocks_start(s, t->a[r] + i + 4 * first, comp);
        KT_EACH (c, cols) dot[r][c] = start;
    }
    KT_EACH (j, quads) {
        /* Quads of one line after each other. */
        const int o = s.low == 4 && quads == 8 ? j % 2 * 4 + j / 2 : first + j;
        __m512i u[4];
        KT_IN_ORDER();
        KT_EACH (c, cols) u[c] = kt_blocks_operand(s, f->planes + 64 * c, o, table);
        KT_EACH (r, rows) {
            const __m512i q = _mm512_set1_epi32(kt_load_i32(t->a[r] + i + 4 * o));
            KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
        }
    }
    KT_EACH (c, cols) {
        KT_IN_ORDER();
        const __m512 scale = kt_blocks_scale(s, f->head, scales, c);
        __m512i zero = _mm512_setzero_si512();
        if (s.minimum == KT_P64_MIN_ZERO) zero = kt_load_u8x16(minima + 16 * c);
        KT_EACH (r, rows) {
            const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(kt_load_f32(t->a[r] + group)));
            if (s.minimum == KT_P64_MIN_ZERO) {
                const int32_t minus_q = kt_load_i32(t->a[r] + group + t->k / 8) >> 3;
                dot[r][c] =
                    _mm512_dpwssd_epi32(dot[r][c], zero, _mm512_set1_epi32(minus_q & 0xffff));
            }
            sum[r][c] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r][c]), both, sum[r][c]);
        }
    }
    if (!has_minimum) return;
    KT_EACH (c, cols) {
        KT_IN_ORDER();
        const __m512 minimum = kt_blocks_minus_minimum(s, f, scales, minima, c);
        KT_EACH (r, rows) {
            const float scale = kt_load_f32(t->a[r] + group);
            __m512 minus_q;
            if (s.group == 16)
                minus_q = _mm512_mul_ps(
                    _mm512_cvtepi32_ps(kt_blocks_half_sum(t->a[r] + i + 4 * first, 1)),
                    _mm512_set1_ps(-scale));
            else
                minus_q = _mm512_set1_ps(scale *
                                         ((float)kt_load_i32(t->a[r] + group + t->k / 8) * 0.125f));
            sum[r][c] = _mm512_fmadd_ps(minimum, minus_q, sum[r][c]);
        }
    }
}

KT_INLINE void kt_tile_blocks(kt_tile *tile, const kt_p64_spec s, const int rows, const int cols,
                              const int col) {
    const int inputs = kt_p64_run_inputs(s);
    const size_t plane_bytes = kt_p64_plane_bytes(s), run_bytes = kt_p64_run_bytes(s);
    const size_t scales_at = (size_t)(inputs / 32) * plane_bytes;
    const size_t minima_at = scales_at + (size_t)(inputs / s.group) * kt_p64_scale_bytes(s);
    const int scale_step = (int)(kt_p64_scale_bytes(s) / 4);     /* of 16 rows */
    const int minimum_step = (int)(kt_p64_minimum_bytes(s) / 4); /* likewise */
    const __m512i table = kt_blocks_table(s);
    const uint8_t *w = tile->panel;
    kt_blocks_tile t = {.k = tile->k, .col = col};
    __m512 sum[KT_TILE_ROWS][4];

    KT_EACH (r, rows) {
        t.a[r] = tile->a[r];
        KT_EACH (c, cols) sum[r][c] = _mm512_setzero_ps();
    }
    for (int64_t i = 0; i < tile->k;) {
        kt_blocks_fields f = {.head = w + 32 * col};
        w += kt_p64_head_bytes(s);
        for (int run = 0; run < s.span / inputs; run++, w += run_bytes) {
            f.scales = w + scales_at + scale_step * col;
            f.minima = w + minima_at + minimum_step * col;
            f.planes = w + 64 * col;
            for (int part = 0; part < inputs / 32; part++, i += 32, f.planes += plane_bytes) {
                kt_tile_fetch(tile);
                /* Two planes are read in turns, which hardware prefetchers do not follow: ask for the
                 * next 32 inputs in the order of their lines. */
                if (s.high && cols == 4)
                    for (size_t line = 0; line < run_bytes; line += KT_TILE_LINE)
                        _mm_prefetch((const char *)w + run_bytes + line, _MM_HINT_T0);
                kt_blocks_group(s, &t, &f, i, 0, rows, cols, table, sum);
                if (s.group == 16) kt_blocks_group(s, &t, &f, i, 4, rows, cols, table, sum);
            }
        }
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) {
            _mm512_store_ps(tile->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
        }
    }
}

/* Up to three rows take the panel in one pass of full lines; more rows hold 32 panel rows at a time. */
KT_INLINE void kt_tile_blocks_run(kt_tile *t, const kt_p64_spec s) {
    switch (t->rows) {
    case 1: kt_tile_blocks(t, s, 1, 4, 0); return;
    case 2: kt_tile_blocks(t, s, 2, 4, 0); return;
    case 3: kt_tile_blocks(t, s, 3, 4, 0); return;
    default: break;
    }
    for (int col = 0; col < 4; col += 2) {
        if (t->rows == 4) kt_tile_blocks(t, s, 4, 2, col);
        if (t->rows == 5) kt_tile_blocks(t, s, 5, 2, col);
        if (t->rows == 6) kt_tile_blocks(t, s, 6, 2, col);
    }
}

#define KT_BLOCKS_FULL_ROWS 3

/* A tile of one format: KT_BLOCKS_TILE(Q4_K, q4_k) defines run_q4_k. */
#define KT_BLOCKS_TILE(id, word)                          \
    static void run_##word(kt_tile *t) {                  \
        kt_tile_blocks_run(t, kt_p64_spec_of(KT_W_##id)); \
    }
#define KT_BLOCKS_KIND(id, word) \
    { run_##word, KT_W_##id, KT_BLOCKS_FULL_ROWS }

#endif
