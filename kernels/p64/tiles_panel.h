/* What opening a p64 panel needs beside its codes: halves of scales, and a factor per row for sums.
 *
 * The terms of a row (scale * code and minimum) are brought below 2^15 by a power of two of the
 * row's own, `range`, so that they are halves; the finished sum is multiplied by factor = 2^16 /
 * range. A row whose terms are not all finite, or reach 2^126, has the factor NaN, and with it all
 * of its outputs.
 *
 * A row's largest term is found from the integer maximum of its scales' bits, in which infinity and
 * NaN are on top: one pass over scales, a few hundred operations a panel.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_TILES_PANEL_H
#define KT_P64_TILES_PANEL_H

#include <string.h>

#include "kernels/formats/iq1.h"
#include "kernels/formats/p64.h"
#include "kernels/p64/tiles_lines.h"

/* A panel's numbers per row. */
typedef struct kt_open_rows64 {
    _Alignas(64) float range[64], factor[64];
    _Alignas(64) uint16_t less[64];    /* bfloat16 scales: what their bits lose to be halves' */
    _Alignas(64) uint8_t worst[4][64]; /* kt_opening.worst of the four columns of tiles */
} kt_open_rows64;

/* Of formats with a grid: columns of 16 rows [first, end) of a unit of 32 inputs as bytes, weight +
 * 64, [quads][64 rows][4]. more: bits of its indices beyond eight. */
typedef void kt_open_points(const uint8_t *unit, const uint8_t *more, int first, int end,
                            uint8_t *out);

/* A format of blocks, and where in its block the parts of each unit of 32 inputs begin: found once
 * a call, since formats are no constants here and a block's parts take divisions to find. */
typedef struct kt_open_where {
    kt_p64_spec spec;
    int shift; /* a block has 2^shift units */
    size_t block_bytes;
    struct {
        uint32_t planes, scales, minima, more;
    } unit[8];
} kt_open_where;

/* Prepare steps [0, steps) of a slice from unit u on. */
typedef struct kt_open_panel kt_open_panel;
typedef void kt_open_slices(const kt_open_panel *p, int64_t u, int64_t steps, int row, int tiles,
                            kt_opening *o);

/* A panel that is being opened, in slices. */
struct kt_open_panel {
    const uint8_t *at;
    kt_weight_format format;
    const kt_open_where *where;
    int64_t k;
    kt_open_rows64 *rows;
    kt_open_points *points; /* NULL: the format has no grid */
    kt_open_slices *slices;
};

_Alignas(64) static const uint8_t kt_open_zeros[4096]; /* codes of inputs behind the last */

/* --- where things are --- */

/* A unit of a block format: its planes, and where scales and minima of its groups begin. */
typedef struct kt_open_run {
    const uint8_t *head, *planes, *scales, *minima, *more;
} kt_open_run;

static inline kt_open_where kt_open_where_of(kt_weight_format format) {
    const kt_p64_spec s = kt_p64_spec_of(format);
    kt_open_where w = {.spec = s};

    if (!s.low) return w;
    w.shift = __builtin_ctz((unsigned)s.span / 32);
    w.block_bytes = kt_p64_block_bytes(s);
    for (int u = 0; u < s.span / 32; u++) {
        const int inputs = kt_p64_run_inputs(s);
        const size_t scales = kt_p64_scales_at(s, 32 * u), plane = kt_p64_plane_bytes(s);

        w.unit[u].planes =
            (uint32_t)(kt_p64_run_at(s, 32 * u) + (size_t)(32 * u % inputs / 32) * plane);
        w.unit[u].scales = (uint32_t)scales;
        w.unit[u].minima = (uint32_t)(scales + (size_t)(inputs / s.group) * kt_p64_scale_bytes(s));
        w.unit[u].more = kt_p64_has_front(s) ? (uint32_t)kt_p64_more_at(s, 32 * u) : 0;
    }
    return w;
}

/* Unit u of a panel. */
KT_INLINE kt_open_run kt_open_run_of(const kt_open_where *w, const uint8_t *panel, int64_t u) {
    const uint8_t *head = panel + (size_t)(u >> w->shift) * w->block_bytes;
    const int64_t i = u & ((1 << w->shift) - 1);

    return (kt_open_run){head, head + w->unit[i].planes, head + w->unit[i].scales,
                         head + w->unit[i].minima, head + w->unit[i].more};
}

KT_INLINE __m512 kt_open_halves(const uint8_t *at) {
    return _mm512_cvtph_ps(_mm256_load_si256((const __m256i *)(const void *)at));
}
KT_INLINE __m128i kt_open_bytes(const uint8_t *at) {
    return _mm_load_si128((const __m128i *)(const void *)at);
}
KT_INLINE __m512 kt_open_floats(const uint8_t *at) {
    return _mm512_load_ps((const float *)(const void *)at);
}

/* 2^(e - 127); of 0 the subnormal number. */
static inline __m512 kt_open_powers(__m128i exponents) {
    const __m512i x = _mm512_slli_epi32(_mm512_cvtepu8_epi32(exponents), 23);
    return _mm512_castsi512_ps(_mm512_max_epi32(x, _mm512_set1_epi32(0x00400000)));
}

/* Scales of 16 panel rows from row r on, of half `half` of the run's unit. */
static inline __m512 kt_open_scales(kt_p64_spec s, const kt_open_run *run, int half, int r) {
    const uint8_t *at = run->scales + (s.group == 16 ? (size_t)half * kt_p64_scale_bytes(s) : 0);
    __m512i x;

    switch (s.scale) {
    case KT_P64_BF16:
        x = _mm512_cvtepu16_epi32(_mm256_load_si256((const __m256i *)(const void *)(at + 2 * r)));
        return _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    case KT_P64_F16: return kt_open_halves(at + 2 * r);
    case KT_P64_F32: return kt_open_floats(at + 4 * r);
    case KT_P64_E8M0: /* e - 1 is the exponent's field of 2^(e - 128); of e = 0 a subnormal */
        x = _mm512_cvtepu8_epi32(kt_open_bytes(at + r));
        x = _mm512_mask_mov_epi32(_mm512_slli_epi32(_mm512_sub_epi32(x, _mm512_set1_epi32(1)), 23),
                                  _mm512_testn_epi32_mask(x, x), _mm512_set1_epi32(1 << 21));
        return _mm512_castsi512_ps(x);
    case KT_P64_IQ1:
    case KT_P64_ODD: /* 2 s + 1 */
        x = _mm512_srli_epi32(_mm512_cvtepu8_epi32(kt_open_bytes(at + r % 32)),
                              (unsigned)(r / 32 * 4));
        x = _mm512_slli_epi32(_mm512_and_si512(x, _mm512_set1_epi32(s.grid ? 15 : 7)), 1);
        x = _mm512_add_epi32(x, _mm512_set1_epi32(1));
        return _mm512_mul_ps(
            _mm512_mul_ps(kt_open_halves(run->head + 2 * r), _mm512_set1_ps(kt_grid_unit(s.grid))),
            _mm512_cvtepi32_ps(x));
    case KT_P64_E4M3: { /* as halves: 2^-8 times the numbers */
        const __m256i h = _mm256_slli_epi16(_mm256_cvtepu8_epi16(kt_open_bytes(at + r)), 7);
        return _mm512_mul_ps(_mm512_cvtph_ps(h), _mm512_set1_ps(0x1p7f));
    }
    case KT_P64_S8: x = _mm512_cvtepi8_epi32(kt_open_bytes(at + r)); break;
    default:
        x = _mm512_and_si512(_mm512_cvtepu8_epi32(kt_open_bytes(at + r)), _mm512_set1_epi32(15));
        break;
    }
    return _mm512_mul_ps(kt_open_halves(run->head + 2 * r), _mm512_cvtepi32_ps(x));
}

/* Minima likewise, as they are added; of formats with zero points these. */
static inline __m512 kt_open_minima(kt_p64_spec s, const kt_open_run *run, int half, int r) {
    const size_t group = s.group == 16 ? (size_t)half : 0;
    const uint8_t *at = run->minima + group * kt_p64_minimum_bytes(s);
    __m512i x;

    switch (s.minimum) {
    case KT_P64_MIN_F16: return kt_open_halves(at + 2 * r);
    case KT_P64_MIN_F32: return kt_open_floats(at + 4 * r);
    case KT_P64_MIN_ZERO: return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(kt_open_bytes(at + r)));
    case KT_P64_MIN_U8: x = _mm512_cvtepu8_epi32(kt_open_bytes(at + r)); break;
    case KT_P64_MIN_NIBBLE:
        at = run->scales + group * kt_p64_scale_bytes(s);
        x = _mm512_srli_epi32(_mm512_cvtepu8_epi32(kt_open_bytes(at + r)), 4);
        break;
    default: return _mm512_setzero_ps();
    }
    return _mm512_mul_ps(kt_open_halves(run->head + 128 + 2 * r),
                         _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_setzero_si512(), x)));
}

/* --- the largest term of each row --- */

/* top[r] = max(top[r], |x[r]|), as integers. */
static inline void kt_open_raise(float *top, __m512 x) {
    const __m512i bits = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
    _mm512_store_si512(top, _mm512_max_epi32(_mm512_load_si512(top), bits));
}

/* Largest |code - offset|, or value of a table. */
static inline float kt_open_reach(kt_p64_spec s) {
    const int codes = 1 << (s.low + s.high);
    if (s.grid) return 62;
    if (s.values == KT_P64_IQ4) return 127;
    if (s.values == KT_P64_E2M1) return 12;
    if (s.scale == KT_P64_IQ1) return 9;
    if (s.minimum == KT_P64_MIN_ZERO) return 15;
    return (float)(s.offset > codes - 1 - s.offset ? s.offset : codes - 1 - s.offset);
}

/* bfloat16 scales of a whole panel: 32 rows at a time, sign cleared. */
static inline void kt_open_largest_bf16(const kt_open_where *w, const uint8_t *panel, int64_t k,
                                        float top[64]) {
    const __m512i magnitude = _mm512_set1_epi16(0x7fff);
    __m512i most[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};

    for (int64_t u = 0; u < k / 32; u += w->spec.group / 32) {
        const uint8_t *at = kt_open_run_of(w, panel, u).scales;
        KT_EACH (i, 2) {
            const __m512i x = _mm512_load_si512(at + 64 * i);
            most[i] = _mm512_max_epu16(most[i], _mm512_and_si512(x, magnitude));
        }
    }
    KT_EACH (i, 4) {
        const __m256i x = _mm512_extracti64x4_epi64(most[i / 2], 0);
        const __m256i y = _mm512_extracti64x4_epi64(most[i / 2], 1);
        const __m512i wide = _mm512_cvtepu16_epi32(i % 2 ? y : x);
        _mm512_store_si512(top + 16 * i, _mm512_slli_epi32(wide, 16));
    }
}

/* The largest term of each row of a block format, or more. Scales of a block of 256 are products
 * with d and dmin, whose largest factors stand for them. */
static inline void kt_open_largest(const kt_open_where *w, const uint8_t *panel, int64_t k,
                                   float top[64]) {
    const kt_p64_spec s = w->spec;
    const int has_head = kt_p64_head_bytes(s) > 0;
    const float scale_most = s.grid                  ? 31 * kt_grid_unit(s.grid)
                             : s.scale == KT_P64_S8  ? 128
                             : s.scale == KT_P64_IQ1 ? 15.0f / 8
                                                     : 15;
    const float minimum_most = s.minimum == KT_P64_MIN_U8 ? 255 : 15;
    _Alignas(64) float scale[64] = {0}, minimum[64] = {0};

    for (int64_t u = 0; u < k / 32; u += has_head ? s.span / 32 : kt_p64_run_inputs(s) / 32) {
        const kt_open_run run = kt_open_run_of(w, panel, u);
        for (int r = 0; r < 64; r += 16) {
            if (has_head) kt_open_raise(scale + r, kt_open_halves(run.head + 2 * r));
            if (kt_p64_head_bytes(s) > 128)
                kt_open_raise(minimum + r, kt_open_halves(run.head + 128 + 2 * r));
            for (int half = 0; half < (s.group == 16 ? 2 : 1) && !has_head; half++) {
                kt_open_raise(scale + r, kt_open_scales(s, &run, half, r));
                if (s.minimum == KT_P64_MIN_F16 || s.minimum == KT_P64_MIN_F32)
                    kt_open_raise(minimum + r, kt_open_minima(s, &run, half, r));
            }
        }
    }
    for (int r = 0; r < 64; r++) {
        const float reach = kt_open_reach(s) * (has_head ? scale_most : 1);
        top[r] = scale[r] * reach + minimum[r] * (has_head ? minimum_most : 1);
    }
}

/* E4M3 in blocks: the largest scale of 32 rows times the largest code, which is 1.75 as a half. */
static inline void kt_open_largest_b128(const uint8_t *scales, int64_t k, float top[64]) {
    const float *at = (const float *)(const void *)scales;

    for (int half = 0; half < 2; half++) {
        uint32_t most = 0;
        float largest;
        for (int64_t b = 0; b < (k + 127) / 128; b++) {
            uint32_t bits;
            memcpy(&bits, &at[2 * b + half], sizeof bits);
            bits &= 0x7fffffffu;
            most = bits > most ? bits : most;
        }
        memcpy(&largest, &most, sizeof largest);
        for (int r = 0; r < 32; r++) top[32 * half + r] = 1.75f * largest;
    }
}

/* wmxfp8: likewise, by row. */
static inline void kt_open_largest_mxfp8(const uint8_t *exponents, int64_t k, float top[64]) {
    for (int r = 0; r < 64; r += 16) {
        __m128i most = _mm_setzero_si128();
        for (int64_t u = 0; u < k / 32; u++)
            most = _mm_max_epu8(most, kt_open_bytes(exponents + 64 * u + r));
        _mm512_store_ps(top + r, _mm512_mul_ps(kt_open_powers(most), _mm512_set1_ps(1.75f)));
    }
}

/* range = 2^(15 - e) for top in [2^(e-1), 2^e), but 2^112 at most, and factor = 2^(16 + more) /
 * range, as exponents' fields: the field of top is e + 126. */
static inline void kt_open_ranges(kt_open_rows64 *rows, const float top[64], int more) {
    for (int r = 0; r < 64; r += 16) {
        const __m512i nan = _mm512_set1_epi32(0x7fc00000);
        __m512i e = _mm512_srli_epi32(_mm512_load_si512(top + r), 23), factor;
        const __mmask16 out = _mm512_cmpgt_epi32_mask(e, _mm512_set1_epi32(252 - more));

        e = _mm512_max_epi32(e, _mm512_set1_epi32(29));
        factor = _mm512_slli_epi32(_mm512_add_epi32(e, _mm512_set1_epi32(2 + more)), 23);
        e = _mm512_slli_epi32(_mm512_sub_epi32(_mm512_set1_epi32(268), e), 23);
        _mm512_store_si512(rows->range + r, e);
        _mm512_store_si512(rows->factor + r, _mm512_mask_mov_epi32(factor, out, nan));
    }
}

static inline int kt_open_is_e4m3(kt_weight_format format) {
    return format == KT_W_FP8_B128 || format == KT_W_FP8_CHANNEL || format == KT_W_MXFP8;
}

/* Factors of the rows, which lie behind the blocks. */
static inline void kt_open_tail(kt_p64_spec s, const kt_open_panel *p) {
    const uint8_t *tail = p->at + (size_t)(p->k / s.span) * kt_p64_block_bytes(s);

    for (int r = 0; r < 64; r += 16) {
        float *factor = p->rows->factor + r;
        _mm512_store_ps(factor,
                        _mm512_mul_ps(_mm512_load_ps(factor), kt_open_floats(tail + 4 * r)));
    }
}

/* What kt_open_two_scales takes off: (112 - (field of range - 127)) << 7. */
static inline void kt_open_less(kt_open_rows64 *rows) {
    for (int r = 0; r < 64; r += 16) {
        const __m512i range = _mm512_srli_epi32(_mm512_load_si512(rows->range + r), 16);
        const __m512i less = _mm512_sub_epi32(_mm512_set1_epi32(239 << 7), range);
        _mm256_store_si256((__m256i *)(void *)(rows->less + r), _mm512_cvtepi32_epi16(less));
    }
}

/* Begin a panel: its numbers per row. */
static inline void kt_open_begin(const kt_open_panel *p) {
    const kt_p64_spec s = p->where->spec;
    const uint8_t *behind = p->at + 64 * p->k; /* the codes of a format of bytes */
    _Alignas(64) float top[64];

    memset(p->rows->worst, 0, sizeof p->rows->worst);
    if (s.low) {
        if (s.scale == KT_P64_BF16) {
            kt_open_largest_bf16(p->where, p->at, p->k, top);
            for (int r = 0; r < 64; r++) top[r] *= kt_open_reach(s);
        } else {
            kt_open_largest(p->where, p->at, p->k, top);
        }
        kt_open_ranges(p->rows, top, 0);
        kt_open_less(p->rows);
        if (kt_p64_tail_bytes(s)) kt_open_tail(s, p);
        return;
    }
    if (p->format == KT_W_FP8_B128) {
        kt_open_largest_b128(behind, p->k, top);
        kt_open_ranges(p->rows, top, 8);
        return;
    }
    if (p->format == KT_W_MXFP8) {
        kt_open_largest_mxfp8(behind, p->k, top);
        kt_open_ranges(p->rows, top, 8);
        return;
    }
    for (int r = 0; r < 64; r += 16) {
        __m512 factor = _mm512_set1_ps(1); /* bfloat16 */
        if (p->format == KT_W_INT8_CHANNEL)
            factor = _mm512_mul_ps(kt_open_floats(behind + 4 * r), _mm512_set1_ps(0x1p16f));
        if (p->format == KT_W_FP8_CHANNEL) /* codes are opened times 2^-8 * 2^13 */
            factor = _mm512_mul_ps(kt_open_floats(behind + 4 * r), _mm512_set1_ps(0x1p11f));
        _mm512_store_ps(p->rows->factor + r, factor);
    }
}

/* Once all of an E4M3 panel was opened: a row that has held the code of NaN. Bytes of a line are
 * those of four rows, twice (formats/p64.h). */
static inline void kt_open_end(const kt_open_panel *p) {
    if (!kt_open_is_e4m3(p->format)) return;
    for (int i = 0; i < 256; i++) {
        const int row = i / 16 * 4 + i % 8 / 2;
        if (p->rows->worst[i / 64][i % 64] == 0xfe) p->rows->factor[row] = (float)__builtin_nan("");
    }
}

/* --- a slice --- */

/* 16 halves, each in both words of a lane. */
KT_INLINE void kt_open_store_halves(uint16_t *to, __m512 x) {
    const __m512i h = _mm512_cvtepu16_epi32(_mm512_cvtps_ph(x, 0));
    _mm512_store_si512(to, _mm512_or_si512(h, _mm512_slli_epi32(h, 16)));
}

/* Words 0 to 15 and 16 to 31, each twice. */
_Alignas(64) static const uint16_t kt_open_twice[2][32] = {
    {0, 0, 1, 1, 2,  2,  3,  3,  4,  4,  5,  5,  6,  6,  7,  7,
     8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, 15, 15},
    {16, 16, 17, 17, 18, 18, 19, 19, 20, 20, 21, 21, 22, 22, 23, 23,
     24, 24, 25, 25, 26, 26, 27, 27, 28, 28, 29, 29, 30, 30, 31, 31}};

/* bfloat16 scales of two tiles at once, without rounding: the exponent's field less 112 of what it
 * would be times `range` leaves a half's, and what is below becomes zero or loses its leading bit
 * (2^-26 of the row's largest). */
KT_INLINE __m512i kt_open_two_scales(const uint8_t *scales, __m512i less) {
    const __m512i sign = _mm512_set1_epi16((short)0x8000);
    const __m512i x = _mm512_loadu_si512(scales);
    __m512i h = _mm512_subs_epu16(_mm512_andnot_si512(sign, x), less);

    return _mm512_ternarylogic_epi32(_mm512_slli_epi16(h, 3), x, sign, 0xf8); /* h | (x & sign) */
}

/* Scales, and minima, of step s of a slice whose first panel row is `row`. */
KT_INLINE void kt_open_terms_of(const kt_p64_spec spec, const kt_open_panel *p,
                                const kt_open_run *run, int64_t s, int row, int tiles,
                                kt_opening *o) {
    const int own = spec.group == 16 ? o->halves : 1; /* halves that differ */

    for (int c = 0; c < tiles; c++) {
        const int r = row + 16 * c;
        const int64_t tile = s * tiles + c;
        const __m512 range = _mm512_load_ps(p->rows->range + r);
        for (int half = 0; half < own; half++) {
            const __m512 scale = _mm512_mul_ps(kt_open_scales(spec, run, half, r), range);
            __m512 minimum = kt_open_minima(spec, run, half, r);
            if (spec.minimum != KT_P64_MIN_ZERO) minimum = _mm512_mul_ps(minimum, range);
            for (int i = half; i < (own == 1 ? o->halves : half + 1); i++) {
                kt_open_store_halves(o->scale[i][tile], scale);
                kt_open_store_halves(o->minimum[i][tile], minimum);
            }
        }
    }
}

/* Scales of E4M3 in blocks of 128 or 32, or 2^13. */
static inline void kt_open_terms_e4m3(const kt_open_panel *p, int64_t u, int64_t s, int row,
                                      int tiles, kt_opening *o) {
    const float *scales = (const float *)(const void *)(p->at + 64 * p->k);

    for (int c = 0; c < tiles; c++) {
        const int r = row + 16 * c;
        __m512 scale = _mm512_set1_ps(0x1p13f);
        if (p->format == KT_W_FP8_B128)
            scale = _mm512_set1_ps(scales[2 * (u / 4) + r / 32] * p->rows->range[r]);
        if (p->format == KT_W_MXFP8)
            scale = _mm512_mul_ps(kt_open_powers(kt_open_bytes(p->at + 64 * p->k + 64 * u + r)),
                                  _mm512_load_ps(p->rows->range + r));
        kt_open_store_halves(o->scale[0][s * tiles + c], scale);
    }
}

/* A unit of IQ1, rows [row, row + 16 * tiles), as a plane of four bits: code 2 * digit, + 1
 * above. */
static inline void kt_open_digits(kt_p64_spec s, const kt_open_run *run, int row, int tiles,
                                  uint8_t plane[4][256]) {
    const kt_iq1_unit unit = {run->planes, run->scales, run->more};
    uint32_t quad[8][64];

    for (int p = 0; p < 4; p++)
        kt_iq1_quads(s, &unit, p, row, 16 * tiles, quad[2 * p], quad[2 * p + 1]);
    for (int l = 0; l < 4; l++)
        for (int r = 0; r < 16 * tiles; r++) {
            const uint32_t first = quad[l][r], last = quad[l + 4][r];
            const uint32_t low = (first >> 2 & 0x06060606) | (first >> 1 & 0x01010101);
            const uint32_t high = (last << 2 & 0x60606060) | (last << 3 & 0x10101010);
            const uint32_t both = low | high;
            memcpy(plane[l] + 4 * r, &both, sizeof both);
        }
}

/* Steps [from, steps) of a slice lie behind the last input: zeros. */
static inline void kt_open_nothing(int64_t from, int steps, int tiles, kt_opening *o) {
    for (int64_t s = from; s < steps; s++) {
        o->low[s] = o->high[s] = kt_open_zeros;
        for (int64_t t = s * tiles; t < (s + 1) * tiles; t++)
            for (int half = 0; half < 2; half++) {
                memset(o->scale[half][t], 0, sizeof o->scale[half][t]);
                memset(o->minimum[half][t], 0, sizeof o->minimum[half][t]);
            }
    }
}

/* Steps [0, steps) of codes with one bfloat16 scale a step, which is most of INT4: two tiles at a
 * time. */
static inline void kt_open_slice_bf16(const kt_open_panel *p, int64_t u, int64_t steps, int row,
                                      int tiles, kt_opening *o) {
    const kt_open_where *w = p->where;
    const int high = 256 * w->spec.high;

    for (int c = 0; c < tiles; c += 2) {
        const __m512i less = _mm512_loadu_si512(p->rows->less + row + 16 * c);
        const __m512i twice[2] = {_mm512_load_si512(kt_open_twice[0]),
                                  _mm512_load_si512(kt_open_twice[1])};
        for (int64_t s = 0; s < steps; s++) {
            const kt_open_run run = kt_open_run_of(w, p->at, u + s);
            const __m512i h = kt_open_two_scales(run.scales + 2 * (row + 16 * c), less);
            uint16_t *to = o->scale[0][s * tiles + c];

            o->high[s] = run.planes + 4 * row;
            o->low[s] = o->high[s] + high;
            KT_EACH (i, 2) _mm512_store_si512(to + 32 * i, _mm512_permutexvar_epi16(twice[i], h));
        }
    }
}

/* Codes of any kind: planes, points or digits, scales and minima. */
KT_INLINE void kt_open_slice_spec(const kt_p64_spec spec, const kt_open_panel *p, int64_t u,
                                  int64_t steps, int row, int tiles, kt_opening *o) {
    for (int64_t s = 0; s < steps; s++) {
        const kt_open_run run = kt_open_run_of(p->where, p->at, u + s);
        o->high[s] = run.planes + 4 * row;
        o->low[s] = o->high[s] + 256 * spec.high;
        if (spec.grid) {
            p->points(run.planes, run.more, row / 16, row / 16 + tiles, o->points[s]);
            o->high[s] = o->low[s] = o->points[s] + 4 * row;
        }
        if (spec.scale == KT_P64_IQ1) {
            kt_open_digits(spec, &run, row, tiles, o->digits[s]);
            o->low[s] = o->digits[s][0];
        }
        kt_open_terms_of(spec, p, &run, s, row, tiles, o);
    }
}

static inline void kt_open_slice_codes(const kt_open_panel *p, int64_t u, int64_t steps, int row,
                                       int tiles, kt_opening *o) {
    kt_open_slice_spec(p->where->spec, p, u, steps, row, tiles, o);
}

/* The same by code that knows the spec of a format: kt_open_slice_<id>. */
#define KT_OPEN_SLICES(id)                                                                    \
    static void kt_open_slice_##id(const kt_open_panel *p, int64_t u, int64_t steps, int row, \
                                   int tiles, kt_opening *o) {                                \
        kt_open_slice_spec(kt_p64_spec_of(KT_W_##id), p, u, steps, row, tiles, o);            \
    }

static inline void kt_open_slice_bytes(const kt_open_panel *p, int64_t u, int64_t steps, int row,
                                       int tiles, kt_opening *o) {
    const int64_t bytes = p->format == KT_W_BF16 ? KT_P64_HALVES_BYTES : KT_P64_CODES8_BYTES;
    const int is_e4m3 = kt_open_is_e4m3(p->format);

    for (int64_t s = 0; s < steps; s++) {
        o->low[s] = o->high[s] = p->at + bytes * (u + s) + 4 * row;
        if (is_e4m3) kt_open_terms_e4m3(p, u + s, s, row, tiles, o);
    }
}

/* Prepare `steps` steps from unit u on, panel rows [row, row + 16 * tiles). */
static inline void kt_open_slice(const kt_open_panel *p, int64_t u, int steps, int row, int tiles,
                                 kt_opening *o) {
    const kt_p64_spec *s = &p->where->spec;
    const int64_t left = p->k / 32 - u, inside = left < 0 ? 0 : left < steps ? left : steps;

    o->worst = p->rows->worst[row / 16];
    if (!s->low)
        kt_open_slice_bytes(p, u, inside, row, tiles, o);
    else if (s->scale == KT_P64_BF16 && o->halves == 1 && s->minimum == KT_P64_MIN_NONE)
        kt_open_slice_bf16(p, u, inside, row, tiles, o);
    else
        p->slices(p, u, inside, row, tiles, o);
    if (inside < steps) kt_open_nothing(inside, steps, tiles, o);
}

/* The table of halves by code, with what truncation takes put on, or the bias of wide codes. */
static inline void kt_open_values(kt_weight_format format, const kt_open_how how, kt_opening *o) {
    const kt_p64_spec s = kt_p64_spec_of(format);
    const int is_iq1 = s.scale == KT_P64_IQ1;
    const int codes = is_iq1 ? 16 : 1 << (s.low + s.high);

    for (int i = 0; i < 32; i++) {
        o->keep[i] = 0x8fff;
        o->exponent[i] = 0x3000;
        o->half_step[i] = 4;
        o->low_byte[i] = 0x00ff;
        o->ones[i] = 0x6400;
        o->bias[i] = (uint16_t)_cvtss_sh((float)(1024 + (s.low ? s.offset : 128)), 0);
    }
    o->halves = how.terms == KT_OPEN_MINIMUM ? 2 : 1;
    for (int i = 0; i < 32 && s.low && codes <= 32; i++) {
        const int code = i % codes;
        const int value = is_iq1                    ? 8 * (code / 2) + 2 * (code % 2) - 9
                          : s.values == KT_P64_IQ4  ? kt_iq4_values[code]
                          : s.values == KT_P64_E2M1 ? kt_e2m1_values[code]
                                                    : code - s.offset;
        o->table[i] = (uint16_t)_cvtss_sh((float)value * (how.rounds ? 1.0f : 1.0029f), 0);
    }
}

#endif
