/* Panel kernels on AMX tiles: blocks of up to 64 activation rows times one p64 panel.
 *
 * A panel is read as it is: 16 of its 64 rows are a tile whose rows lie 256 bytes apart, with k in
 * the order tiles want (formats/p64.h). Activations are the other operand, one token per tile row.
 *
 * Rows are cut into tiles of equal height, at most 16. The last tile begins where it still ends
 * with the last row, so that it overlaps the one before rather than reach past the block: the
 * shared rows are computed twice and taken once. So one configuration serves a block and nothing is
 * padded. Fewer rows are no faster: a product takes 16 cycles whatever its rows and its depth
 * (measured: Granite Rapids).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_AMX_H
#define KT_SIMD_P64_AMX_H

#include <immintrin.h>
#include <string.h>

#include "kernels/simd/amx.h"
#include "kernels/p64/p64_glue.h"

#define KT_AMX_BLOCK 64 /* rows per call: the sums, 16 KiB, stay in L1 */

/* The bytes of a row that tiles read: bfloat16, or codes without their scales. */
static inline size_t kt_amx_row_bytes(kt_weight_format weights, int64_t k) {
    const uint64_t floats = 1u << KT_W_BF16 | 1u << KT_W_F16 | 1u << KT_W_FP8_CHANNEL |
                            1u << KT_W_FP8_B128 | 1u << KT_W_MXFP8;
    return floats >> weights & 1 ? 2 * (size_t)k : (size_t)k;
}

/* Scratch for rows that do not lie at equal distances. Only gate-and-up meets such rows. */
static inline size_t kt_amx_gather_bytes(const kt_problem *q, const kt_config *config) {
    (void)config;
    return q->op == KT_OP_MOE_FFN ? KT_AMX_BLOCK * kt_amx_row_bytes(q->weights, q->k) : 0;
}

/* A block of rows as tiles see it. */
typedef struct kt_amx_rows {
    const uint8_t *base;
    ptrdiff_t stride;
    int rows, height, tiles;
} kt_amx_rows;

/* First row of tile b. */
KT_INLINE int kt_amx_first(const kt_amx_rows *x, int b) {
    const int first = b * x->height, last = x->rows - x->height;
    return first < last ? first : last;
}

/* Equal distances are used in place; others are gathered once for all panels of the block. */
KT_INLINE kt_amx_rows kt_amx_rows_of(const kt_p64_tile *t) {
    const int tiles = (t->rows + 15) / 16;
    kt_amx_rows x = {.base = t->a[0],
                     .stride = 64,
                     .rows = t->rows,
                     .height = (t->rows + tiles - 1) / tiles,
                     .tiles = tiles};
    const size_t bytes = kt_amx_row_bytes(t->weights, t->k);
    int even = 1;

    if (t->rows > 1) x.stride = (const uint8_t *)t->a[1] - (const uint8_t *)t->a[0];
    for (int r = 2; r < t->rows; r++)
        even &= (const uint8_t *)t->a[r] - (const uint8_t *)t->a[r - 1] == x.stride;
    if (even) return x;
    for (int r = 0; r < t->rows && t->new_rows; r++)
        memcpy((uint8_t *)t->context + (size_t)r * bytes, t->a[r], bytes);
    x.base = t->context;
    x.stride = (ptrdiff_t)bytes;
    return x;
}

static inline void kt_amx_shape(kt_amx_config *c, int first, int last, int rows, int row_bytes) {
    for (int i = first; i <= last; i++) {
        c->rows[i] = (uint8_t)rows;
        c->row_bytes[i] = (uint16_t)row_bytes;
    }
}

/* --- integers: TDPBSUD, signed activations times unsigned codes -------------------------------- */

/* Activations have a scale per 32 inputs, so a product may go no deeper than 32: half of what a tile
 * holds. Its int32 sums go to memory, where AVX-512 adds the compensation, scales and accumulates them
 * in f32, in the order and so with the bits of the AVX-512 VNNI kernels. It does that for one tile row
 * while the tiles work on the next, and two buffers keep their stores and loads apart.
 *
 * Tiles 0 to 2 sums, 3 activations, 4 to 7 the panel's 64 rows, which stay for all rows of the block. */
typedef struct kt_amx_sums {
    int32_t value[4][16][16]; /* quarter of the panel, row of the tile, panel row */
} kt_amx_sums;

KT_INLINE void kt_amx_group(const kt_amx_rows *x, int b, int64_t at, kt_amx_sums *sums) {
    KT_AMX_LOAD(3, x->base + kt_amx_first(x, b) * x->stride + at, x->stride);
    KT_AMX_ZERO(0);
    KT_AMX_DOT_SU8(0, 3, 4);
    KT_AMX_ZERO(1);
    KT_AMX_DOT_SU8(1, 3, 5);
    KT_AMX_ZERO(2);
    KT_AMX_DOT_SU8(2, 3, 6);
    KT_AMX_STORE(0, sums->value[0], 64);
    KT_AMX_ZERO(0);
    KT_AMX_DOT_SU8(0, 3, 7);
    KT_AMX_STORE(1, sums->value[1], 64);
    KT_AMX_STORE(2, sums->value[2], 64);
    KT_AMX_STORE(0, sums->value[3], 64);
}

/* One unpacked group of a w4g32 panel, in the order of w8c: 8 lines of 4 inputs. */
KT_INLINE void kt_amx_unpack(const uint8_t *group, uint8_t *out) {
    const __m512i low = _mm512_set1_epi8(15);
    for (int i = 0; i < KT_P64_CODES4_BYTES; i += 64) {
        const __m512i both = _mm512_load_si512(group + i);
        _mm512_store_si512(out + i, _mm512_and_si512(both, low));
        _mm512_store_si512(out + KT_P64_CODES4_BYTES + i,
                           _mm512_and_si512(_mm512_srli_epi16(both, 4), low));
    }
}

KT_INLINE __m512 kt_amx_scales_bf16(const uint8_t *p) {
    const __m256i h = _mm256_load_si256((const __m256i *)(const void *)p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Add group g of tile row b to the f32 sums. group_scales: 64 bfloat16 of w4g32, or NULL. */
KT_INLINE void kt_amx_add_group(const kt_p64_tile *t, const kt_amx_rows *x, int b, int64_t g,
                                const kt_amx_sums *sums, const uint8_t *group_scales) {
    const int begin = b * x->height, first = kt_amx_first(x, b);
    const int end = begin + x->height < x->rows ? begin + x->height : x->rows;
    __m512 w_scale[4];

    for (int c = 0; c < 4; c++)
        w_scale[c] =
            group_scales ? kt_amx_scales_bf16(group_scales + 32 * c) : _mm512_set1_ps(1.0f);
    for (int r = begin; r < end; r++) {
        const __m512 a_scale = _mm512_set1_ps(kt_a8_scales(t->a[r], t->k)[g]);
        const int32_t comp = kt_a8_comps(t->a[r], t->k)[g];
        const __m512i start = _mm512_set1_epi32(group_scales ? comp : 16 * comp);
        float *out = t->tile + 64 * r;
        for (int c = 0; c < 4; c++) {
            const __m512 scale = group_scales ? _mm512_mul_ps(w_scale[c], a_scale) : a_scale;
            const __m512i dot =
                _mm512_add_epi32(_mm512_load_si512(sums->value[c][r - first]), start);
            _mm512_store_ps(out + 16 * c, _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), scale,
                                                          _mm512_load_ps(out + 16 * c)));
        }
    }
}

KT_INLINE void kt_amx_tile_int8(const kt_p64_tile *t, const int has_groups) {
    const kt_amx_rows x = kt_amx_rows_of(t);
    const int64_t groups = t->k / 32,
                  group_bytes = has_groups ? KT_P64_W4G32_BYTES : KT_P64_CODES8_BYTES;
    kt_amx_config config = {.palette = 1};
    _Alignas(64) uint8_t unpacked[2][KT_P64_CODES8_BYTES];
    _Alignas(64) kt_amx_sums sums[2];
    int64_t step = 0, done_g = 0;
    int done_b = 0;

    kt_amx_shape(&config, 0, 2, x.height, 64);
    kt_amx_shape(&config, 3, 3, x.height, 32);
    kt_amx_shape(&config, 4, 7, 8, 64);
    KT_AMX_CONFIGURE(&config);
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    if (has_groups) kt_amx_unpack(t->panel, unpacked[0]);
    for (int64_t g = 0; g < groups; g++) {
        const uint8_t *group = t->panel + g * group_bytes;
        const uint8_t *w = has_groups ? unpacked[g & 1] : group;
        KT_AMX_LOAD(4, w, 256);
        KT_AMX_LOAD(5, w + 64, 256);
        KT_AMX_LOAD(6, w + 128, 256);
        KT_AMX_LOAD(7, w + 192, 256);
        if (has_groups && g + 1 < groups)
            kt_amx_unpack(group + KT_P64_W4G32_BYTES, unpacked[(g + 1) & 1]);
        for (int b = 0; b < x.tiles; b++, step++) {
            kt_amx_group(&x, b, 32 * g, &sums[step & 1]);
            if (step > 0)
                kt_amx_add_group(t, &x, done_b, done_g, &sums[(step - 1) & 1],
                                 has_groups
                                     ? t->panel + done_g * KT_P64_W4G32_BYTES + KT_P64_CODES4_BYTES
                                     : NULL);
            done_b = b;
            done_g = g;
        }
    }
    kt_amx_add_group(t, &x, done_b, done_g, &sums[(step - 1) & 1],
                     has_groups ? t->panel + done_g * KT_P64_W4G32_BYTES + KT_P64_CODES4_BYTES
                                : NULL);
}

static inline void kt_tile_w4g32_amx(const kt_p64_tile *t) {
    kt_amx_tile_int8(t, 1);
}

static inline void kt_tile_w8c_amx(const kt_p64_tile *t) {
    const float *scales = (const float *)(const void *)(t->panel + 64 * t->k);

    kt_amx_tile_int8(t, 0);
    for (int r = 0; r < t->rows; r++)
        for (int j = 0; j < 64; j += 16) {
            float *out = t->tile + 64 * r + j;
            _mm512_store_ps(out, _mm512_mul_ps(_mm512_load_ps(out), _mm512_load_ps(scales + j)));
        }
}

/* --- the ops ------------------------------------------------------------------------------------ */

/* Rows outermost: a task's panels (formats/share.h) fit in L2, and gathered rows are gathered once.
 * Released tiles do not burden the thread's context switches. */
KT_INLINE void kt_amx_gemm(const kt_gemm_call *call, kt_tile_fn tile_fn) {
    _Alignas(64) float tile[KT_AMX_BLOCK * 64];
    const kt_walk walk = {KT_AMX_BLOCK, 1, tile, call->scratch};
    kt_p64_gemm(call, tile_fn, &walk);
    KT_AMX_RELEASE();
}

KT_INLINE void kt_amx_gate_up(const kt_moe_call *call, kt_tile_fn tile_fn, kt_swiglu_fn swiglu) {
    _Alignas(64) float tile[KT_AMX_BLOCK * 64];
    const kt_walk walk = {KT_AMX_BLOCK, 1, tile, call->scratch};
    kt_p64_gate_up_rows(call, tile_fn, swiglu, &walk);
    KT_AMX_RELEASE();
}

KT_INLINE void kt_amx_down(const kt_moe_call *call, kt_tile_fn tile_fn) {
    _Alignas(64) float tile[KT_AMX_BLOCK * 64];
    const kt_walk walk = {KT_AMX_BLOCK, 1, tile, call->scratch};
    kt_p64_down_rows(call, tile_fn, &walk);
    KT_AMX_RELEASE();
}

#endif
