/* Panel kernels on AMX-INT8 with sums that stay in tiles for up to 256 inputs, for many rows.
 *
 * Activations have a scale per 32 or 16 inputs, so a product of their codes goes no deeper: half of a
 * tile or less (p64_amx.h). Here a row is put on one scale per block of 256 inputs first, finely
 * enough to lose nothing that counts: 16-bit numbers X = 256 hi + lo, both signed bytes,
 * |X| < 127 * 256. Products of the two planes are sums of their own,
 *
 *     sum X w = 256 * (sum hi w) + sum lo w,    |sum X w| < 127 * 256 * 128 * 256 < 2^31,
 *
 * so int32 arithmetic that wraps on the way ends exact. That is two products of full depth in place of
 * two (or four) of half depth, and one scaling in place of eight (or sixteen). Codes are signed bytes, so
 * that nothing needs compensation.
 *
 * w8c and formats with a scale per 64 or 128 inputs keep their codes, a sum for each scale: nothing but X
 * is rounded (KT_NUM_ACTS16). Smaller groups and zero points are requantised, once for all rows of
 * activations, as formats/requant8.h defines and bounds it (KT_NUM_REQUANT).
 *
 * While tiles multiply one block of the panel, AVX-512 opens the next, a share of it per step.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_AMX_PLANES_H
#define KT_SIMD_AMX_PLANES_H

#include "kernels/formats/requant8.h"
#include "kernels/p64/amx_units.h"

#define KT_PLANE_INPUTS 256 /* a block: KT_R8_BLOCK, 32 * KT_UNITS */
#define KT_PLANE_DEPTH 64   /* inputs of a product */

/* How a format's panel is opened. */
typedef struct kt_plane_kind {
    int is_w8c;     /* codes as they are, but for the sign; one scale per row */
    int requantise; /* to one scale per block */
    int inputs;     /* per sum: 64, 128 or 256 */
} kt_plane_kind;

KT_INLINE kt_plane_kind kt_plane_kind_of(kt_weight_format format) {
    const kt_p64_spec s = kt_p64_spec_of(format);
    const kt_plane_kind w8c = {1, 0, KT_PLANE_INPUTS}, again = {0, 1, KT_PLANE_INPUTS};
    const kt_plane_kind exact = {0, 0, s.group};

    if (format == KT_W_INT8_CHANNEL) return w8c;
    return s.group >= KT_PLANE_DEPTH && s.minimum == KT_P64_MIN_NONE ? exact : again;
}

/* --- activations ------------------------------------------------------------------------------- */

/* Rows on one scale per block, prepared once per block of rows in the variant's scratch: planes
 * [rows][hi, lo][depth] and scales [rows][blocks]. A row's planes take an odd number of lines, so that a
 * tile's rows fall into different cache sets. */
typedef struct kt_plane_rows {
    uint8_t *planes;
    float *scales;
    int64_t depth, blocks;
    ptrdiff_t stride;
} kt_plane_rows;

KT_INLINE kt_plane_rows kt_plane_rows_at(void *context, int64_t k) {
    kt_plane_rows x;

    x.depth = (k + KT_PLANE_DEPTH - 1) / KT_PLANE_DEPTH * KT_PLANE_DEPTH;
    x.blocks = (k + KT_PLANE_INPUTS - 1) / KT_PLANE_INPUTS;
    x.stride = (ptrdiff_t)(2 * x.depth + 64);
    x.planes = context;
    x.scales = (float *)(void *)(x.planes + KT_AMX_BLOCK * x.stride);
    return x;
}

static inline size_t kt_plane_bytes(const kt_problem *q, const kt_config *config) {
    const int64_t k = q->op == KT_OP_MOE_FFN && q->n > q->k ? q->n : q->k;
    const size_t depth = (size_t)(k + KT_PLANE_DEPTH - 1) / KT_PLANE_DEPTH * KT_PLANE_DEPTH;
    const size_t blocks = (size_t)(k + KT_PLANE_INPUTS - 1) / KT_PLANE_INPUTS;
    (void)config;
    return KT_AMX_BLOCK * (2 * depth + 64 + 4 * blocks);
}

KT_INLINE __m512i kt_plane_magnitude(__m512 x) {
    return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
}

/* The scales of a block's groups of 16 inputs, times a power of two and perhaps 1.5; zero past `inputs`. */
KT_INLINE __m512 kt_plane_groups(const void *row, kt_act_format acts, int64_t k, int64_t begin,
                                 int inputs) {
    const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    const __mmask16 some = (__mmask16)((1u << inputs / 16) - 1);

    if (acts == KT_A_INT8_G16P2)
        return _mm512_maskz_loadu_ps(some, kt_a8p_biases(row, k) + begin / 16);
    return _mm512_maskz_permutexvar_ps(some, twice,
                                       _mm512_maskz_loadu_ps((__mmask16)((1u << inputs / 32) - 1),
                                                             kt_a8_scales(row, k) + begin / 32));
}

/* Block `begin / 256` of row r. With s the largest scale among its groups, X = q * 256 * (scale / s), the
 * quotient a fraction of 32767: VPMULHRSW multiplies by it over 32768, which the scale of X makes good.
 * The quotient is off by half of 1/32767 and X is rounded: together one unit, s / 256. A scale of NaN is
 * the largest, as an integer, and makes the block NaN. */
KT_INLINE void kt_plane_block(const kt_p64_tile *t, const kt_plane_rows *x, int r, int64_t begin,
                              int inputs) {
    const __m512i upper = _mm512_set1_epi16((short)0xff00), half = _mm512_set1_epi16(128);
    const __m512 group = kt_plane_groups(t->a[r], t->acts, t->k, begin, inputs);
    const uint32_t most = _mm512_reduce_max_epu32(_mm512_castps_si512(group));
    const __mmask16 some = most ? 0xffff : 0;
    uint8_t *hi = x->planes + r * x->stride + begin, *lo = hi + x->depth;
    __m512i parts, at;
    float largest;

    memcpy(&largest, &most, sizeof largest);
    parts = _mm512_cvtps_epi32(_mm512_mul_ps(
        _mm512_maskz_div_ps(some, group, _mm512_set1_ps(largest)), _mm512_set1_ps(32767.0f)));
    if (t->acts == KT_A_INT8_G16P2) largest = kt_a8p_scale(largest);
    x->scales[r * x->blocks + begin / KT_PLANE_INPUTS] = largest * (32768.0f / 32767.0f / 256.0f);
    /* words 8 g .. 8 g + 7 of a line belong to its group g */
    at = _mm512_set_epi64(0x0006000600060006, 0x0006000600060006, 0x0004000400040004,
                          0x0004000400040004, 0x0002000200020002, 0x0002000200020002, 0, 0);
    for (int i = 0; i < inputs; i += KT_PLANE_DEPTH) {
        const __mmask16 whole = inputs - i < KT_PLANE_DEPTH ? 0x00ff : 0xffff;
        const __m512i q = _mm512_maskz_loadu_epi32(whole, (const uint8_t *)t->a[r] + begin + i);
        const __m512i part = _mm512_permutexvar_epi16(at, parts);
        const __m512i even = _mm512_mulhrs_epi16(_mm512_slli_epi16(q, 8), part);
        const __m512i odd = _mm512_mulhrs_epi16(_mm512_and_si512(q, upper), part);
        const __m512i even_hi = _mm512_srli_epi16(_mm512_add_epi16(even, half), 8);
        const __m512i odd_hi = _mm512_add_epi16(odd, half);
        /* a | (b & upper), and (a & ~upper) | b */
        _mm512_store_si512(hi + i, _mm512_ternarylogic_epi32(even_hi, odd_hi, upper, 0xf8));
        _mm512_store_si512(lo + i,
                           _mm512_ternarylogic_epi32(even, _mm512_slli_epi16(odd, 8), upper, 0xdc));
        at = _mm512_add_epi16(at, _mm512_set1_epi16(8));
    }
}

KT_INLINE void kt_plane_rows_open(const kt_p64_tile *t, const kt_plane_rows *x) {
    for (int r = 0; r < t->rows && t->new_rows; r++)
        for (int64_t i = 0; i < t->k; i += KT_PLANE_INPUTS)
            kt_plane_block(t, x, r, i,
                           t->k - i < KT_PLANE_INPUTS ? (int)(t->k - i) : KT_PLANE_INPUTS);
}

/* --- weights ----------------------------------------------------------------------------------- */

/* A block of the panel. */
typedef struct kt_plane_panel {
    kt_unit_slice slice;               /* codes, at last signed as tiles want them */
    _Alignas(64) float scale[4][64];   /* per sum */
    _Alignas(64) uint32_t largest[64]; /* bits of requant8's `largest` */
} kt_plane_panel;

/* |scale| times the largest |code - offset| of 16 panel rows of unit u: bits that order as numbers do, NaN on
 * top. */
KT_INLINE __m512i kt_plane_reach(const kt_p64_spec s, const kt_plane_panel *p, int u, int c) {
    const __m512 scale = _mm512_load_ps(p->slice.scale[u][0] + 16 * c);
    __m512i reach = _mm512_set1_epi32(kt_r8_reach(s.offset));

    if (s.minimum == KT_P64_MIN_ZERO) {
        reach = _mm512_load_si512(p->slice.zero[u][0] + 16 * c);
        reach = _mm512_max_epi32(reach, _mm512_sub_epi32(_mm512_set1_epi32(15), reach));
    }
    return kt_plane_magnitude(_mm512_mul_ps(scale, _mm512_cvtepi32_ps(reach)));
}

KT_INLINE void kt_plane_largest(const kt_p64_spec s, kt_plane_panel *p, int u) {
    for (int c = 0; c < 4; c++) {
        __m512i bits = kt_plane_reach(s, p, u, c);
        if (u > 0) bits = _mm512_max_epu32(bits, _mm512_load_si512(p->largest + 16 * c));
        _mm512_store_si512(p->largest + 16 * c, bits);
    }
}

/* The lower word of every lane in both of its words. */
KT_INLINE __m512i kt_plane_words(__m512i x) {
    return _mm512_or_si512(_mm512_and_si512(x, _mm512_set1_epi32(0xffff)),
                           _mm512_slli_epi32(x, 16));
}

/* kt_r8_ratio */
KT_INLINE __m512i kt_plane_ratio(__m512 scale, __m512 factor) {
    const __m512 r = _mm512_mul_ps(scale, factor), most = _mm512_set1_ps(32512.0f);
    const __mmask16 fits = _mm512_cmp_ps_mask(_mm512_abs_ps(r), most, _CMP_LE_OQ);
    return _mm512_maskz_cvtps_epi32(fits, r);
}

/* Codes of unit u of 16 panel rows -> codes of the block's step: kt_r8_byte - 128. */
KT_INLINE void kt_plane_convert(const kt_p64_spec s, kt_plane_panel *p, int u, int c) {
    const __m512 largest = _mm512_load_ps((const float *)(const void *)(p->largest + 16 * c));
    const __m512 factor =
        _mm512_min_ps(_mm512_div_ps(_mm512_set1_ps(32512.0f), largest), _mm512_set1_ps(0x1p127f));
    const __m512i even = _mm512_set1_epi16(255), upper = _mm512_set1_epi16((short)0xff00);
    uint8_t *lines = p->slice.codes + KT_P64_CODES8_BYTES * u + 64 * c;
    __m512i ratio = kt_plane_ratio(_mm512_load_ps(p->slice.scale[u][0] + 16 * c), factor);
    __m512i start = _mm512_set1_epi32(s.offset);

    if (s.minimum == KT_P64_MIN_ZERO) start = _mm512_load_si512(p->slice.zero[u][0] + 16 * c);
    start = _mm512_sub_epi32(_mm512_set1_epi32(128), _mm512_mullo_epi32(ratio, start));
    ratio = kt_plane_words(ratio);
    start = kt_plane_words(start);
    for (int o = 0; o < 8; o++) {
        const __m512i x = _mm512_load_si512(lines + 256 * o);
        __m512i first = _mm512_mullo_epi16(_mm512_and_si512(x, even), ratio);
        __m512i second = _mm512_mullo_epi16(_mm512_srli_epi16(x, 8), ratio);
        first = _mm512_srli_epi16(_mm512_add_epi16(first, start), 8);
        second = _mm512_add_epi16(second, start);
        /* first | (second & upper) */
        _mm512_store_si512(lines + 256 * o, _mm512_ternarylogic_epi32(first, second, upper, 0xf8));
    }
}

/* Codes of 32 inputs stored with an offset -> signed. */
KT_INLINE void kt_plane_sign(const uint8_t *from, int offset, uint8_t *to) {
    for (int i = 0; i < KT_P64_CODES8_BYTES; i += 64)
        _mm512_store_si512(
            to + i, _mm512_sub_epi8(_mm512_load_si512(from + i), _mm512_set1_epi8((char)offset)));
}

/* Open unit u of the block that begins at unit `first`. */
KT_INLINE void kt_plane_open_unit(const kt_weight_format format, const kt_p64_tile *t,
                                  int64_t first, int u, kt_plane_panel *p) {
    const kt_p64_spec s = kt_p64_spec_of(format);
    const kt_plane_kind plane = kt_plane_kind_of(format);
    uint8_t *codes = p->slice.codes + KT_P64_CODES8_BYTES * u;

    if (plane.is_w8c) {
        kt_plane_sign(t->panel + KT_P64_CODES8_BYTES * (first + u), 128, codes);
        if (u == 0) memcpy(p->scale[0], t->panel + 64 * t->k, sizeof p->scale[0]);
        return;
    }
    kt_unit_open(s, t->panel, first + u, 0, &p->slice, u);
    if (plane.requantise) {
        kt_plane_largest(s, p, u);
        return;
    }
    kt_plane_sign(codes, kt_unit_offset(s), codes);
    if (32 * u % plane.inputs == 0)
        memcpy(p->scale[32 * u / plane.inputs], p->slice.scale[u][0], sizeof p->scale[0]);
}

KT_INLINE void kt_plane_convert_unit(const kt_weight_format format, int u, kt_plane_panel *p) {
    for (int c = 0; c < 4; c++) kt_plane_convert(kt_p64_spec_of(format), p, u, c);
    for (int c = 0; c < 64 && u == 0; c += 16) {
        const __m512 largest = _mm512_load_ps((const float *)(const void *)(p->largest + c));
        const __m512 step = _mm512_div_ps(largest, _mm512_set1_ps(127.0f));
        _mm512_store_ps(p->scale[0] + c, _mm512_max_ps(_mm512_set1_ps(0x1p-119f), step));
    }
}

/* Share `part` of `parts` of opening block i: all units before the first is converted. */
KT_INLINE void kt_plane_open(const kt_weight_format format, const kt_p64_tile *t, int64_t i,
                             int part, int parts, kt_plane_panel *p) {
    const int64_t first = KT_UNITS * i, left = t->k / 32 - first;
    const int units = left < KT_UNITS ? (int)left : KT_UNITS;
    const int steps = kt_plane_kind_of(format).requantise ? 2 * units : units;

    for (int at = steps * part / parts; at < steps * (part + 1) / parts; at++) {
        if (at < units)
            kt_plane_open_unit(format, t, first, at, p);
        else
            kt_plane_convert_unit(format, at - units, p);
    }
}

/* --- products ---------------------------------------------------------------------------------- */

/* Behind the last inputs of an odd number of units activations are zero and codes whatever was there. */

/* Block i, tile row b, quarters c and c + 1 of the panel, sum j of the block. */
typedef struct kt_plane_step {
    int64_t i;
    int b, c, j;
} kt_plane_step;

typedef struct kt_plane_work {
    const kt_p64_tile *t;
    kt_amx_rows x; /* of the prepared rows */
    kt_plane_rows rows;
    kt_plane_panel panel[2];
    _Alignas(64) kt_amx_sums sums[2]; /* value: hi and lo of quarter c, of quarter c + 1 */
} kt_plane_work;

/* Inputs of block i. */
KT_INLINE int kt_plane_inputs(const kt_p64_tile *t, int64_t i) {
    const int64_t left = t->k - KT_PLANE_INPUTS * i;
    return left < KT_PLANE_INPUTS ? (int)left : KT_PLANE_INPUTS;
}

KT_INLINE void kt_plane_products(const kt_plane_work *x, const kt_plane_kind kind,
                                 const kt_plane_step *s, kt_amx_sums *sums) {
    const kt_plane_panel *p = &x->panel[s->i & 1];
    const int inputs = kt_plane_inputs(x->t, s->i), begin = kind.inputs * s->j;
    const int end = begin + kind.inputs < inputs ? begin + kind.inputs : inputs;
    const uint8_t *a = x->x.base + kt_amx_first(&x->x, s->b) * x->x.stride + KT_PLANE_INPUTS * s->i;

    KT_AMX_ZERO(0);
    KT_AMX_ZERO(1);
    KT_AMX_ZERO(2);
    KT_AMX_ZERO(3);
    for (int k = begin; k < end; k += KT_PLANE_DEPTH) {
        const uint8_t *w = p->slice.codes + 64 * k + 64 * s->c;
        KT_AMX_LOAD(4, a + k, x->x.stride);
        KT_AMX_LOAD(6, w, 256);
        KT_AMX_DOT_S8(0, 4, 6);
        KT_AMX_LOAD(5, a + x->rows.depth + k, x->x.stride);
        KT_AMX_DOT_S8(1, 5, 6);
        KT_AMX_LOAD(7, w + 64, 256);
        KT_AMX_DOT_S8(2, 4, 7);
        KT_AMX_DOT_S8(3, 5, 7);
    }
    KT_AMX_STORE(0, sums->value[0], 64);
    KT_AMX_STORE(1, sums->value[1], 64);
    KT_AMX_STORE(2, sums->value[2], 64);
    KT_AMX_STORE(3, sums->value[3], 64);
}

/* Add a step's sums, scaled, to the f32 sums. */
KT_INLINE void kt_plane_add(const kt_plane_work *x, const kt_plane_step *s,
                            const kt_amx_sums *sums) {
    const int first = kt_amx_first(&x->x, s->b), begin = s->b * x->x.height;
    const int end = begin + x->x.height < x->x.rows ? begin + x->x.height : x->x.rows;
    const float *w_scale = x->panel[s->i & 1].scale[s->j] + 16 * s->c;

    for (int r = begin; r < end; r++) {
        const __m512 a_scale = _mm512_set1_ps(x->rows.scales[r * x->rows.blocks + s->i]);
        float *out = x->t->tile + 64 * r + 16 * s->c;
        for (int c = 0; c < 2; c++) {
            const __m512i hi = _mm512_load_si512(sums->value[2 * c][r - first]);
            const __m512i lo = _mm512_load_si512(sums->value[2 * c + 1][r - first]);
            const __m512i sum = _mm512_add_epi32(_mm512_slli_epi32(hi, 8), lo);
            const __m512 scale = _mm512_mul_ps(_mm512_load_ps(w_scale + 16 * c), a_scale);
            _mm512_store_ps(out + 16 * c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), scale,
                                                          _mm512_load_ps(out + 16 * c)));
        }
    }
}

KT_INLINE void kt_amx_tile_planes(const kt_p64_tile *t, const kt_weight_format format) {
    const kt_plane_kind kind = kt_plane_kind_of(format);
    kt_amx_config config = {.palette = 1};
    kt_plane_step last = {-1, 0, 0, 0};
    kt_plane_work x;
    kt_p64_tile rows = *t;
    int64_t step = 0;

    x.t = t;
    x.rows = kt_plane_rows_at(t->context, t->k);
    kt_plane_rows_open(t, &x.rows);
    for (int r = 0; r < t->rows; r++) rows.a[r] = x.rows.planes + r * x.rows.stride;
    x.x = kt_amx_rows_of(&rows);
    kt_amx_shape(&config, 0, 3, x.x.height, 64);
    kt_amx_shape(&config, 4, 5, x.x.height, 64);
    kt_amx_shape(&config, 6, 7, 16, 64);
    KT_AMX_CONFIGURE(&config);
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    kt_plane_open(format, t, 0, 0, 1, &x.panel[0]);
    for (int64_t i = 0; i < x.rows.blocks; i++) {
        const int sums = (kt_plane_inputs(t, i) + kind.inputs - 1) / kind.inputs;
        const int steps = 2 * sums * x.x.tiles;
        for (int at = 0; at < steps; at++, step++) {
            const kt_plane_step s = {i, at / (2 * sums), 2 * (at / sums % 2), at % sums};
            kt_plane_products(&x, kind, &s, &x.sums[step & 1]);
            if (step > 0) kt_plane_add(&x, &last, &x.sums[(step - 1) & 1]);
            if (i + 1 < x.rows.blocks)
                kt_plane_open(format, t, i + 1, at, steps, &x.panel[(i + 1) & 1]);
            last = s;
        }
    }
    kt_plane_add(&x, &last, &x.sums[(step - 1) & 1]);
}

#define KT_EXACT_FORMATS(each) each(INT8_CHANNEL) each(INT8_G128) each(INT4_G64) each(INT4_G128)
#define KT_REQUANT_FORMATS(each) \
    each(INT4_G32) each(INT4Z_G32) each(INT4Z_G64) each(INT4Z_G128) each(Q4_0)

#define KT_PLANE_TILE(id)                                                             \
    static __attribute__((noinline)) void kt_tile_planes_##id(const kt_p64_tile *t) { \
        kt_amx_tile_planes(t, KT_W_##id);                                             \
    }
#define KT_PLANE_CASE(id)       \
    case KT_W_##id:             \
        kt_tile_planes_##id(t); \
        return;
#define KT_PLANE_BIT(id) | KT_W_BIT(KT_W_##id)

#endif
