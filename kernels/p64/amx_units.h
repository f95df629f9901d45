/* The block formats (formats/p64_spec.h) on AMX-INT8: a chunk of a panel is taken apart into bytes and f32
 * scales as for vectors (p64_units.h), the bytes are multiplied on tiles, group by group, and AVX-512
 * scales the sums. The tiles are those of p64_amx.h; groups of 16 inputs use a quarter of their depth.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_AMX_UNITS_H
#define KT_SIMD_AMX_UNITS_H

#include "kernels/p64/p64_amx.h"
#include "kernels/p64/p64_avx512.h"

#define KT_DOT_WIDE 1 /* tiles take any bytes */
#include "kernels/p64/p64_units.h"

/* One step: half h of unit u, tile row b. */
typedef struct kt_amx_step {
    int b, u, h;
} kt_amx_step;

/* Add a step's sums, scaled, to the f32 sums. */
KT_INLINE void kt_amx_add_step(const kt_p64_tile *t, const kt_amx_rows *x, const kt_unit_kind kind,
                               int64_t unit, kt_amx_step at, const kt_amx_sums *sums,
                               const kt_unit_slice *slice, const kt_unit_rows *rows) {
    const int begin = at.b * x->height, first = kt_amx_first(x, at.b), field = 2 * at.u + at.h;
    const int end = begin + x->height < x->rows ? begin + x->height : x->rows;

    for (int r = begin; r < end; r++) {
        const __m512 a_scale = _mm512_set1_ps(kt_a8_scales(t->a[r], t->k)[unit + at.u]);
        const __m512 sum = _mm512_set1_ps(rows->sums[r][field]);
        const __m512i row_start = _mm512_set1_epi32(rows->start[r][field]);
        float *out = t->tile + 64 * r;
        for (int c = 0; c < 4; c++) {
            const float *scale = slice->scale[at.u][at.h] + 16 * c;
            const int32_t *zero = slice->zero[at.u][at.h] + 16 * c;
            __m512i start = row_start;
            __m512 y = _mm512_load_ps(out + 16 * c);
            if (kind.extra == KT_EXTRA_ZERO)
                start = _mm512_madd_epi16(_mm512_load_si512(zero), start);
            start = _mm512_add_epi32(_mm512_load_si512(sums->value[c][r - first]), start);
            y = _mm512_fmadd_ps(_mm512_cvtepi32_ps(start),
                                _mm512_mul_ps(_mm512_load_ps(scale), a_scale), y);
            if (kind.extra == KT_EXTRA_MINIMUM)
                y = _mm512_fmadd_ps(_mm512_load_ps(slice->minimum[at.u][at.h] + 16 * c), sum, y);
            _mm512_store_ps(out + 16 * c, y);
        }
    }
}

/* The panel's quarters of one half unit into tiles 4 to 7. */
KT_INLINE void kt_amx_load_codes(const uint8_t *w) {
    KT_AMX_LOAD(4, w, 256);
    KT_AMX_LOAD(5, w + 64, 256);
    KT_AMX_LOAD(6, w + 128, 256);
    KT_AMX_LOAD(7, w + 192, 256);
}

KT_INLINE void kt_amx_tile_units(const kt_p64_tile *t, const kt_p64_spec s) {
    const kt_unit_kind kind = kt_unit_kind_of(s);
    const kt_amx_rows x = kt_amx_rows_of(t);
    const int64_t units = t->k / 32;
    kt_amx_config config = {.palette = 1};
    _Alignas(64) kt_amx_sums sums[2];
    kt_unit_slice slice;
    kt_unit_rows rows;

    kt_amx_shape(&config, 0, 2, x.height, 64);
    kt_amx_shape(&config, 3, 3, x.height, 32 / kind.halves);
    kt_amx_shape(&config, 4, 7, 8 / kind.halves, 64);
    KT_AMX_CONFIGURE(&config);
    slice.points = kt_unit_points_of(s);
    memset(t->tile, 0, sizeof(float) * 64 * (size_t)t->rows);
    for (int64_t unit = 0; unit < units; unit += KT_UNITS) {
        const int n = units - unit < KT_UNITS ? (int)(units - unit) : KT_UNITS;
        kt_amx_step last = {0, 0, 0};
        int step = 0;

        for (int u = 0; u < n; u++) kt_unit_open(s, t->panel, unit + u, 0, &slice, u);
        kt_unit_rows_open(s, t, unit, n, 0, &rows);
        for (int u = 0; u < n; u++)
            for (int h = 0; h < kind.halves; h++) {
                const int64_t at = 32 * (unit + u) + 16 * h;
                kt_amx_load_codes(slice.codes + KT_P64_CODES8_BYTES * u +
                                  KT_P64_CODES8_BYTES / 2 * h);
                for (int b = 0; b < x.tiles; b++, step++) {
                    kt_amx_group(&x, b, at, &sums[step & 1]);
                    if (step > 0)
                        kt_amx_add_step(t, &x, kind, unit, last, &sums[(step - 1) & 1], &slice,
                                        &rows);
                    last = (kt_amx_step){b, u, h};
                }
            }
        kt_amx_add_step(t, &x, kind, unit, last, &sums[(step - 1) & 1], &slice, &rows);
    }
    kt_units_finish(t, s);
}

#define KT_BLOCK_AMX(id)                                                           \
    static __attribute__((noinline)) void kt_tile_amx_##id(const kt_p64_tile *t) { \
        kt_amx_tile_units(t, kt_p64_spec_of(KT_W_##id));                           \
    }
KT_BLOCK_FORMATS(KT_BLOCK_AMX)

#define KT_BLOCK_AMX_CASE(id) \
    case KT_W_##id: kt_tile_amx_##id(t); return;
static inline void kt_tile_wblocks_amx(const kt_p64_tile *t) {
    switch (t->weights) {
        KT_BLOCK_FORMATS(KT_BLOCK_AMX_CASE)
    default: return; /* accepts() lets no other format through */
    }
}

#endif
