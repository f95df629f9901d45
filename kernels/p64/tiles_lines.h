/* Opening weights: from the codes and scales of a p64 panel to bfloat16 tiles, line by line.
 *
 * A tile is 32 inputs (a step) of 16 panel rows: [16 pairs of inputs][16 rows][2]. A *line* is what
 * fills four of its 16 rows. Codes become halves, exactly, and then
 *
 *     half        code * scale, or code * scale + minimum        AVX512-FP16, one rounding
 *     bfloat16    h >> 3, and the exponent's field e becomes e + 96
 *
 * which is the half times 2^-16 with 7 bits of fraction: two operations, where a conversion by way
 * of f32 takes six. Halves below 2^-14 and zeros become numbers of 2^-31 to 2^-30, 2^-26 of a
 * row's largest or less. Infinity and NaN do not survive: scales and codes that hold them are found
 * beside this, and make the row's factor NaN (tiles_panel.h). Cutting off 3 bits loses half of a
 * bfloat16 step on average. Where a code has one scale and a table, the table holds 1.0029 times
 * the values; elsewhere half a step is added first.
 *
 * Order of inputs. Where one line holds bytes of four inputs, its even bytes make one row of the
 * tile and its odd bytes the next: the inputs of four go 0 2 1 3. Floats keep their order.
 *
 * The instructions of FP16 are written out: compilers must not use others of that set here, which
 * tests would have to emulate.
 *
 * Sources: measurements of tile code on Granite Rapids (NOTES.md).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_TILES_LINES_H
#define KT_P64_TILES_LINES_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/simd/unroll.h"

#define KT_OPEN_TILE 1024 /* bytes of a tile: 16 rows of 64 */
#define KT_OPEN_TILES 16  /* of a slice: 8 steps of 2 tiles, or 4 of 4 */
#define KT_OPEN_LINES 64  /* of a slice */

/* What happens to the half of a code. */
typedef enum kt_open_terms {
    KT_OPEN_AS_IS,  /* nothing: the scale is the row's alone and waits for the sum */
    KT_OPEN_SCALE,  /* times a scale of the step */
    KT_OPEN_ZERO,   /* less a zero point, times a scale of the step */
    KT_OPEN_MINIMUM /* times a scale, plus a minimum, of the step's half */
} kt_open_terms;

/* How codes are stored and opened; a constant in all inlined code. low, high: bits of the planes
 * (formats/p64_spec.h); low = 8 with KT_OPEN_AS_IS is w8c; KT_OPEN_E4M3 and KT_OPEN_BF16 are no
 * codes. fetch: cache lines of the panel per 8 opened lines, rounded up. */
enum { KT_OPEN_E4M3 = 9, KT_OPEN_BF16 = 16 };
typedef struct kt_open_how {
    int low, high;
    kt_open_terms terms;
    int rounds; /* half a step is added */
    int fetch;
} kt_open_how;

/* A slice that is being opened. Pointers are per step, at the slice's first panel row. */
typedef struct kt_opening {
    _Alignas(64) uint16_t table[32]; /* halves by code, repeated */
    uint16_t keep[32],
        exponent[32]; /* constants of kt_half_open: bits kept, bits put on, rounding */
    uint16_t half_step[32];
    uint16_t low_byte[32], ones[32], bias[32]; /* of wide codes: 0x00ff, half 1024, 1024 + offset */
    _Alignas(64) uint16_t scale[2][KT_OPEN_TILES][32]; /* halves, each twice; by half of the step */
    _Alignas(64) uint16_t minimum[2][KT_OPEN_TILES][32];
    const uint8_t *low[8], *high[8];      /* the planes */
    _Alignas(64) uint8_t points[8][2048]; /* of formats with a grid instead: steps, as bytes */
    uint8_t *to;                          /* the slice: tile after tile */
    const uint8_t *fetch;                 /* what to prefetch meanwhile, line after line */
    uint8_t *worst; /* E4M3: largest code seen, twice its value, per byte of a tile's line */
    int halves;     /* of a step that have terms of their own: 2 with minima */
    _Alignas(64) uint8_t digits[8][4][256]; /* IQ1: its steps as planes of four bits */
} kt_opening;

/* --- halves --- */

/* The four rows of a line at once: h[i] * b[i], h[i] - b, and h[i] * b[i] + c[i] rounded once. */
KT_INLINE void kt_half_mul(__m512i h[4], __m512i first, __m512i second) {
    __asm__("vmulph %4, %0, %0\n\tvmulph %4, %1, %1\n\tvmulph %5, %2, %2\n\tvmulph %5, %3, %3"
            : "+v"(h[0]), "+v"(h[1]), "+v"(h[2]), "+v"(h[3])
            : "v"(first), "v"(second));
}

KT_INLINE void kt_half_sub(__m512i h[4], __m512i b) {
    __asm__("vsubph %4, %0, %0\n\tvsubph %4, %1, %1\n\tvsubph %4, %2, %2\n\tvsubph %4, %3, %3"
            : "+v"(h[0]), "+v"(h[1]), "+v"(h[2]), "+v"(h[3])
            : "v"(b));
}

KT_INLINE void kt_half_fma(__m512i h[4], const __m512i b[2], const __m512i c[2]) {
    __asm__("vfmadd213ph %6, %4, %0\n\tvfmadd213ph %6, %4, %1\n\t"
            "vfmadd213ph %7, %5, %2\n\tvfmadd213ph %7, %5, %3"
            : "+v"(h[0]), "+v"(h[1]), "+v"(h[2]), "+v"(h[3])
            : "v"(b[0]), "v"(b[1]), "v"(c[0]), "v"(c[1]));
}

/* Constants of opening as a block's code holds them: loaded once, since whatever is read between
 * tile instructions is read again behind each. */
typedef struct kt_open_values512 {
    __m512i table, keep, exponent, half_step, low_byte, ones, bias;
    const kt_opening *opening;
} kt_open_values512;

KT_INLINE kt_open_values512 kt_open_load(const kt_opening *o) {
    return (kt_open_values512){_mm512_load_si512(o->table),    _mm512_load_si512(o->keep),
                               _mm512_load_si512(o->exponent), _mm512_load_si512(o->half_step),
                               _mm512_load_si512(o->low_byte), _mm512_load_si512(o->ones),
                               _mm512_load_si512(o->bias),     o};
}

/* (a & b) | c */
KT_INLINE __m512i kt_and_or(__m512i a, int b, int c) {
    return _mm512_ternarylogic_epi32(a, _mm512_set1_epi16((short)b), _mm512_set1_epi16((short)c),
                                     0xea);
}

/* Half -> bfloat16 times 2^-16. */
KT_INLINE __m512i kt_half_open(const kt_open_values512 *v, __m512i h, const int rounds) {
    if (rounds) h = _mm512_add_epi16(h, v->half_step);
    return _mm512_ternarylogic_epi32(_mm512_srai_epi16(h, 3), v->keep, v->exponent, 0xea);
}

/* --- codes to halves --- */

KT_INLINE __m512i kt_words_down(__m512i x, const int bits) {
    if (bits > 0) return _mm512_srli_epi16(x, (unsigned)bits);
    return bits < 0 ? _mm512_slli_epi16(x, (unsigned)-bits) : x;
}

/* The codes of bytes j and j + 2 of quad `quad` (inputs 4 quad ..) as halves. Up to five bits index
 * the table, whose repetition stands for masking; wider ones are put below the exponent of 1024. */
KT_INLINE __m512i kt_open_codes(const kt_open_how how, const kt_open_values512 *v, __m512i low,
                                __m512i high, const int quad, const int j) {
    const int at = how.low < 8 ? how.low * (quad / how.low) : 0;
    __m512i x = kt_words_down(low, at + 8 * j);

    if (how.low == 8) {
        if (j) return _mm512_or_si512(x, v->ones);
        return _mm512_ternarylogic_epi32(x, v->low_byte, v->ones, 0xea);
    }
    if (how.high) {
        const int bit = how.high * (quad / how.high) + 8 * j;
        x = _mm512_ternarylogic_epi32(_mm512_set1_epi16((short)((1 << how.low) - 1)), x,
                                      kt_words_down(high, bit - how.low), 0xca);
    }
    if (how.low + how.high > 5) return kt_and_or(x, (1 << (how.low + how.high)) - 1, 0x6400);
    return _mm512_permutexvar_epi16(x, v->table);
}

/* Four rows of tile `tile`, of which the last two may be of the step's second 16 inputs. */
KT_INLINE void kt_open_rows(const kt_open_how how, const kt_open_values512 *v, int64_t tile,
                            __m512i h[4]) {
    const kt_opening *const o = v->opening;

    if (how.terms == KT_OPEN_MINIMUM) {
        const __m512i scale[2] = {_mm512_load_si512(o->scale[0][tile]),
                                  _mm512_load_si512(o->scale[1][tile])};
        const __m512i minimum[2] = {_mm512_load_si512(o->minimum[0][tile]),
                                    _mm512_load_si512(o->minimum[1][tile])};
        kt_half_fma(h, scale, minimum);
    } else if (how.terms != KT_OPEN_AS_IS) {
        const __m512i scale = _mm512_load_si512(o->scale[0][tile]);
        if (how.terms == KT_OPEN_ZERO) kt_half_sub(h, _mm512_load_si512(o->minimum[0][tile]));
        kt_half_mul(h, scale, scale);
    }
    KT_EACH (i, 4) h[i] = kt_half_open(v, h[i], how.rounds);
}

/* --- lines --- */

/* Quads l and l + 4: rows 2 l, 2 l + 1, 2 l + 8 and 2 l + 9 of the tile. */
KT_INLINE void kt_open_line_codes(const kt_open_how how, const kt_open_values512 *v, int64_t s,
                                  const int tiles, const int c, const int l) {
    const kt_opening *const o = v->opening;
    const int64_t tile = s * tiles + c;
    const uint8_t *low = o->low[s] + 64 * c, *high = o->high[s] + 64 * c;
    uint8_t *to = v->opening->to + KT_OPEN_TILE * tile + 128 * l;
    __m512i bits = _mm512_load_si512(low + 256 * (l % how.low)), more = bits, h[4];

    if (how.high) more = _mm512_load_si512(high + 256 * (l % how.high));
    h[0] = kt_open_codes(how, v, bits, more, l, 0);
    h[1] = kt_open_codes(how, v, bits, more, l, 1);
    if (how.low == 8) bits = _mm512_load_si512(low + 256 * (l + 4));
    h[2] = kt_open_codes(how, v, bits, more, l + 4, 0);
    h[3] = kt_open_codes(how, v, bits, more, l + 4, 1);
    if (how.low + how.high > 5) kt_half_sub(h, v->bias);
    kt_open_rows(how, v, tile, h);
    _mm512_store_si512(to, h[0]);
    _mm512_store_si512(to + 64, h[1]);
    _mm512_store_si512(to + 512, h[2]);
    _mm512_store_si512(to + 576, h[3]);
}

/* Quads 2 l and 2 l + 1. With the byte above and zero below, an arithmetic shift by one and the
 * sign's copy taken out, E4M3 is the half of 2^-8 times its value, subnormal codes included. */
KT_INLINE void kt_open_line_e4m3(const kt_open_how how, const kt_open_values512 *v, int64_t s,
                                 const int tiles, const int c, const int l) {
    const kt_opening *const o = v->opening;
    const int64_t tile = s * tiles + c;
    uint8_t *to = v->opening->to + KT_OPEN_TILE * tile + 256 * l;
    const __m512i zero = _mm512_setzero_si512(), clear = _mm512_set1_epi16((short)0xbfff);
    __m512i worst = _mm512_load_si512(o->worst + 64 * c), h[4];

    KT_EACH (q, 2) {
        const __m512i x = _mm512_load_si512(o->low[s] + 256 * (2 * l + q) + 64 * c);
        const __m512i first = _mm512_srai_epi16(_mm512_unpacklo_epi8(zero, x), 1);
        const __m512i second = _mm512_srai_epi16(_mm512_unpackhi_epi8(zero, x), 1);
        worst = _mm512_max_epu8(worst, _mm512_add_epi8(x, x));
        h[2 * q] = _mm512_and_si512(first, clear);
        h[2 * q + 1] = _mm512_and_si512(second, clear);
    }
    kt_open_rows(how, v, tile, h);
    KT_EACH (i, 4) _mm512_store_si512(to + 64 * i, h[i]);
    _mm512_store_si512(o->worst + 64 * c, worst);
}

KT_INLINE void kt_open_line_bf16(const kt_open_values512 *v, int64_t s, const int tiles,
                                 const int c, const int l) {
    uint8_t *to = v->opening->to + KT_OPEN_TILE * (s * tiles + c);
    KT_EACH (r, 4) {
        const int row = 4 * l + r;
        _mm512_store_si512(to + 64 * row,
                           _mm512_load_si512(v->opening->low[s] + 256 * row + 64 * c));
    }
}

/* Line i (a constant) behind step s of a slice that has `tiles` tiles a step, and its share of
 * fetching. */
KT_INLINE_UNROLLED void kt_open_line(const kt_open_how how, const kt_open_values512 *v, int64_t s,
                                     const int tiles, const int i) {
    const int a_step = 4 * tiles, c = i % a_step / 4, l = i % 4;
    const uint8_t *fetch = v->opening->fetch + 64 * how.fetch * (a_step / 8) * s;

    if (how.low == KT_OPEN_BF16)
        kt_open_line_bf16(v, s + i / a_step, tiles, c, l);
    else if (how.low == KT_OPEN_E4M3)
        kt_open_line_e4m3(how, v, s + i / a_step, tiles, c, l);
    else
        kt_open_line_codes(how, v, s + i / a_step, tiles, c, l);
    KT_UNROLL for (int n = i * how.fetch / 8; n < (i + 1) * how.fetch / 8; n++)
        _mm_prefetch((const char *)fetch + 64 * n, _MM_HINT_T1);
}

#endif
