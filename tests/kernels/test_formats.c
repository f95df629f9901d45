/* Weight formats and the p64 packing. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/formats/format.h"
#include "kernels/formats/p64.h"
#include "tests/support/guard.h"

enum shape { UNIFORM, NORMAL, HEAVY, ONE_HOT, TINY, ZERO, SHAPES };

/* n x k values of one distribution. */
static void fill(float *x, int64_t count, enum shape shape, kt_rng *rng) {
    for (int64_t i = 0; i < count; i++) {
        float v = kt_rng_normal(rng);
        if (shape == UNIFORM) v = kt_rng_uniform(rng, -1, 1);
        if (shape == HEAVY) v = v * v * v;
        if (shape == ONE_HOT) v = i % 32 == (i / 32) % 32 ? -5 : 0;
        if (shape == TINY) v *= 0x1p-90f;
        if (shape == ZERO) v = 0;
        x[i] = v;
    }
}

typedef struct encoded {
    const kt_format *format;
    kt_matrix matrix;
    float *src;
    void *data, *scales;
    double error, energy;
} encoded;

static encoded encode(kt_weight_format id, int64_t n, int64_t k, enum shape shape, uint64_t seed) {
    encoded e = {.format = kt_format_find(id)};
    size_t data_bytes, scale_bytes;
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    e.format->plain_bytes(n, k, &data_bytes, &scale_bytes);
    e.src = kt_guard_alloc((size_t)(n * k) * sizeof(float), 4, 0);
    e.data = kt_guard_alloc(data_bytes, 4, 0xAA);
    e.scales = kt_guard_alloc(scale_bytes, 4, 0xAA);
    fill(e.src, n * k, shape, &rng);
    e.matrix = (kt_matrix){id, n, k, e.data, scale_bytes ? e.scales : NULL};
    /* In two parts, as threads would share the rows. */
    e.error = e.format->encode_rows(e.src, n, k, 0, n / 2, e.data, e.scales, &e.energy);
    e.error += e.format->encode_rows(e.src, n, k, n / 2, n, e.data, e.scales, &e.energy);
    return e;
}

static void release(encoded *e) {
    kt_guard_free(e->src);
    kt_guard_free(e->data);
    kt_guard_free(e->scales);
}

Test(formats, every_weight_format_has_a_descriptor) {
    for (int id = KT_W_NONE + 1; id < KT_W_COUNT; id++) {
        const kt_format *f = kt_format_find((kt_weight_format)id);
        cr_assert_not_null(f, "no format for %d", id);
        cr_assert_str_eq(f->name, kt_weight_format_name((kt_weight_format)id));
    }
    cr_assert_null(kt_format_find(KT_W_NONE));
    cr_assert_null(kt_format_find(KT_W_COUNT));
}

Test(formats, returned_error_and_energy_are_those_of_the_decoded_values) {
    for (int id = 1; id < KT_W_COUNT; id++)
        for (int shape = 0; shape < SHAPES; shape++) {
            enum { N = 7, K = 96 };
            encoded e = encode((kt_weight_format)id, N, K, (enum shape)shape, 11);
            double row[K], error = 0, energy = 0;
            for (int i = 0; i < N; i++) {
                e.format->decode_row(&e.matrix, i, row);
                for (int j = 0; j < K; j++) {
                    double lost = e.src[i * K + j] - row[j];
                    error += lost * lost;
                    energy += (double)e.src[i * K + j] * e.src[i * K + j];
                }
            }
            cr_assert(fabs(error - e.error) <= 1e-12 * (error + 1e-300), "%s shape %d: %g, want %g",
                      e.format->name, shape, e.error, error);
            cr_assert(fabs(energy - e.energy) <= 1e-12 * energy, "%s shape %d: %g, want %g",
                      e.format->name, shape, e.energy, energy);
            release(&e);
        }
}

/* Squared error of rounding x[0..count) to codes lo..hi with the scale amax / hi. */
static double plain_rounding_error(const float *x, int count, double lo, double hi) {
    double amax = 0, error = 0;
    for (int i = 0; i < count; i++) amax = fmax(amax, fabs((double)x[i]));
    for (int i = 0; i < count && amax > 0; i++) {
        double scale = amax / hi;
        double q = fmin(hi, fmax(lo, nearbyint(x[i] / scale)));
        error += (x[i] - scale * q) * (x[i] - scale * q);
    }
    return error;
}

Test(formats, w4g32_search_gains_on_plain_rounding) {
    enum { N = 64, K = 512 };
    static const double limit[] = {0.80, 0.85,
                                   0.85}; /* share of plain rounding's error that stays */
    for (int shape = UNIFORM; shape <= HEAVY; shape++) {
        encoded e = encode(KT_W_INT4_G32, N, K, (enum shape)shape, 5);
        double plain = 0;
        for (int g = 0; g < N * K / 32; g++)
            plain += plain_rounding_error(e.src + 32 * g, 32, -7, 7);
        cr_assert(e.error < limit[shape] * plain, "shape %d: error %g, plain rounding %g", shape,
                  e.error, plain);
        release(&e);
    }
}

Test(formats, w4g32_is_exact_on_its_own_values) {
    enum { K = 64 };
    float src[K];
    uint8_t data[K / 2];
    uint16_t scales[2];
    const kt_format *f = kt_format_find(KT_W_INT4_G32);
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (int trial = 0; trial < 500; trial++) {
        double row[K], error;
        kt_matrix w = {KT_W_INT4_G32, 1, K, data, scales};
        for (int g = 0; g < 2; g++) {
            float scale = kt_bf16_to_f32(kt_f32_to_bf16(kt_rng_normal(&rng)));
            for (int i = 0; i < 32; i++)
                src[32 * g + i] = scale * (float)((int)kt_rng_below(&rng, 16) - 8);
            src[32 * g] = scale * -8; /* the extreme code shows which sign the scale had */
        }
        error = f->encode_rows(src, 1, K, 0, 1, data, scales, NULL);
        f->decode_row(&w, 0, row);
        for (int i = 0; i < K; i++)
            cr_assert_eq((double)src[i], row[i], "trial %d input %d: %.9g became %.9g (error %g)",
                         trial, i, src[i], row[i], error);
    }
}

Test(formats, w8c_search_never_loses_to_plain_rounding_by_more_than_float_noise) {
    enum { N = 16, K = 2048 };
    for (int shape = UNIFORM; shape <= ONE_HOT; shape++) {
        encoded e = encode(KT_W_INT8_CHANNEL, N, K, (enum shape)shape, 9);
        double plain = 0;
        for (int i = 0; i < N; i++) plain += plain_rounding_error(e.src + i * K, K, -127, 127);
        cr_assert(e.error <= plain * 1.001 + 1e-10, "shape %d: %g, plain %g", shape, e.error,
                  plain);
        release(&e);
    }
}

Test(formats, rows_that_are_not_finite_become_zeros_and_show_in_the_error) {
    static const kt_weight_format ids[] = {KT_W_INT8_CHANNEL, KT_W_INT4_G32};
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t f = 0; f < 2; f++)
        for (int b = 0; b < 3; b++)
            for (int at = 0; at < 32; at++) {
                float src[32];
                uint8_t data[32];
                float scales[1] = {1};
                double row[32], error;
                const kt_format *format = kt_format_find(ids[f]);
                kt_matrix w = {ids[f], 1, 32, data, scales};
                for (int i = 0; i < 32; i++) src[i] = (float)i;
                src[at] = bad[b];
                error = format->encode_rows(src, 1, 32, 0, 1, data, scales, NULL);
                cr_assert_not(isfinite(error), "%s", format->name);
                format->decode_row(&w, 0, row);
                for (int i = 0; i < 32; i++) cr_assert_eq(row[i], 0.0, "%s", format->name);
            }
}

/* What p64.h says about the place of weight (row, input) of a panel, as a double. */
static double packed_value(kt_weight_format format, const uint8_t *panel, int64_t k, int row,
                           int64_t input) {
    uint16_t half;
    float single;

    switch (format) {
    case KT_W_F32: memcpy(&single, panel + 4 * (input * 64 + row), 4); return single;
    case KT_W_BF16:
        memcpy(&half, panel + 2 * ((input / 2 * 64 + row) * 2 + input % 2), 2);
        return kt_bf16_to_f32(half);
    case KT_W_INT8_CHANNEL:
        memcpy(&single, panel + 64 * k + 4 * row, 4);
        return (double)single * (panel[(input / 4 * 64 + row) * 4 + input % 4] - 128);
    default: {
        const uint8_t *block = panel + input / 32 * 1152;
        int in = (int)(input % 32);
        int byte = block[(in % 16 / 4 * 64 + row) * 4 + in % 4];
        memcpy(&half, block + 1024 + 2 * row, 2);
        return (double)kt_bf16_to_f32(half) * ((in < 16 ? byte & 15 : byte >> 4) - 8);
    }
    }
}

static void check_panel_row(const encoded *e, int64_t row, const uint8_t *panel, int panel_row) {
    double *want = malloc(sizeof *want * (size_t)e->matrix.k);
    memset(want, 0, sizeof *want * (size_t)e->matrix.k);
    if (row < e->matrix.n) e->format->decode_row(&e->matrix, row, want);
    for (int64_t i = 0; i < e->matrix.k; i++) {
        double got = packed_value(e->matrix.format, panel, e->matrix.k, panel_row, i);
        cr_assert(got == want[i], "%s n=%lld k=%lld row %lld input %lld: %g, want %g",
                  e->format->name, (long long)e->matrix.n, (long long)e->matrix.k, (long long)row,
                  (long long)i, got, want[i]);
    }
    free(want);
}

Test(p64, dense_panels_hold_the_weights_where_the_header_says) {
    static const int64_t sizes[][2] = {{1, 32}, {63, 64}, {64, 96}, {65, 32}, {131, 224}};
    for (int id = 1; id < KT_W_COUNT; id++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            int64_t n = sizes[s][0], k = sizes[s][1];
            encoded e = encode((kt_weight_format)id, n, k, NORMAL, s);
            kt_problem q = {.op = KT_OP_GEMM, .weights = e.matrix.format, .n = n, .k = k};
            size_t panel_bytes = kt_p64_panel_bytes(e.matrix.format, k);
            uint8_t *packed = kt_guard_alloc(kt_p64_gemm_bytes(&q), 64, 0xAA);
            kt_p64_pack_gemm(&q, &e.matrix, packed);
            for (int64_t row = 0; row < 64 * kt_p64_panels(n); row++)
                check_panel_row(&e, row, packed + (size_t)(row / 64) * panel_bytes,
                                (int)(row % 64));
            kt_guard_free(packed);
            release(&e);
        }
}

Test(p64, an_expert_interleaves_gate_and_up_in_panels_of_32) {
    for (int id = KT_W_BF16; id <= KT_W_INT4_G32; id++) {
        enum { HIDDEN = 96, INTER = 64 };
        encoded gate = encode((kt_weight_format)id, INTER, HIDDEN, NORMAL, 1);
        encoded up = encode((kt_weight_format)id, INTER, HIDDEN, NORMAL, 2);
        encoded down = encode((kt_weight_format)id, HIDDEN, INTER, NORMAL, 3);
        kt_problem q = {
            .op = KT_OP_MOE_FFN, .weights = down.matrix.format, .n = INTER, .k = HIDDEN};
        uint8_t *packed = kt_guard_alloc(kt_p64_expert_bytes(&q), 64, 0xAA);
        kt_p64_pack_expert(&q, &gate.matrix, &up.matrix, &down.matrix, packed);
        for (int r = 0; r < INTER; r++) {
            check_panel_row(&gate, r, kt_p64_gate_up(&q, packed, r / 32), r % 32);
            check_panel_row(&up, r, kt_p64_gate_up(&q, packed, r / 32), 32 + r % 32);
        }
        for (int r = 0; r < 128; r++)
            check_panel_row(&down, r, kt_p64_down(&q, packed, r / 64), r % 64);
        kt_guard_free(packed);
        release(&gate), release(&up), release(&down);
    }
}
