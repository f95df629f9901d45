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
    e.error = e.format->encode_rows(e.src, n, k, NULL, 0, n / 2, e.data, e.scales, &e.energy);
    e.error += e.format->encode_rows(e.src, n, k, NULL, n / 2, n, e.data, e.scales, &e.energy);
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

/* Tables and packed files hold names; numbers are values of tuned parameters and of devices. */
Test(formats, names_and_numbers_of_filed_formats_never_change) {
    static const char *const filed[] = {
        "none",     "wbf16",   "w8c",     "w4g32",  "wf32",    "wf16",     "w4g64",   "w4g128",
        "w4zg32",   "w4zg64",  "w4zg128", "w8g128", "wf8b128", "wf8c",     "wq4_0",   "wq4_1",
        "wq5_0",    "wq5_1",   "wq8_0",   "wq2_k",  "wq3_k",   "wq4_k",    "wq5_k",   "wq6_k",
        "wiq4_nl",  "wiq4_xs", "wmxfp4",  "w8g16m", "wmxfp8",  "wiq2_xxs", "wiq2_xs", "wiq2_s",
        "wiq3_xxs", "wiq3_s",  "wnvfp4",  "wtq2_0", "wtq1_0",  "wiq1_s",   "wiq1_m"};
    enum { FILED = sizeof filed / sizeof *filed };

    cr_assert_geq(KT_W_COUNT, FILED);
    for (int id = 0; id < FILED; id++) {
        cr_expect_str_eq(kt_weight_format_name((kt_weight_format)id), filed[id]);
        cr_expect_eq(kt_weight_format_parse(filed[id]), id, "%s", filed[id]);
    }
}

Test(formats, returned_error_and_energy_are_those_of_the_decoded_values) {
    int checked = 0;
    for (int id = 1; id < KT_W_COUNT; id++)
        for (int shape = 0; shape < SHAPES; shape++) {
            enum { N = 7, K = 384 };
            encoded e;
            if (!kt_format_find((kt_weight_format)id)->encode_rows) continue;
            checked++;
            e = encode((kt_weight_format)id, N, K, (enum shape)shape, 11);
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
    cr_assert_eq(checked, 14 * SHAPES); /* w4g*, w4zg*, w8c, w8g128, wf8*, wf16, wbf16, wf32 */
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
        error = f->encode_rows(src, 1, K, NULL, 0, 1, data, scales, NULL);
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
                error = format->encode_rows(src, 1, 32, NULL, 0, 1, data, scales, NULL);
                cr_assert_not(isfinite(error), "%s", format->name);
                format->decode_row(&w, 0, row);
                for (int i = 0; i < 32; i++) cr_assert_eq(row[i], 0.0, "%s", format->name);
            }
}

/* Three blocks of rows by two of inputs, those at the edges cut off: of zeros, of denormals, with an element
 * that is not finite, and three of numbers. */
enum { BLOCKS_N = 300, BLOCKS_K = 200 };

static float *blocks_of_all_kinds(void) {
    float *x = kt_guard_alloc(BLOCKS_N * BLOCKS_K * sizeof *x, 4, 0);
    kt_rng rng;

    kt_rng_seed(&rng, 21);
    for (int i = 0; i < BLOCKS_N; i++)
        for (int j = 0; j < BLOCKS_K; j++) {
            const int block = i / 128 * 2 + j / 128;
            float v = kt_rng_normal(&rng) * (block == 4 ? 0x1p60f : 1.0f);
            x[i * BLOCKS_K + j] = block == 0 ? 0.0f : block == 1 ? v * 0x1p-130f : v;
        }
    x[200 * BLOCKS_K + 190] = INFINITY; /* block 3 */
    return x;
}

Test(formats, wf8b128_scales_each_block_by_its_largest_and_rounds_to_nearest) {
    const kt_format *f = kt_format_find(KT_W_FP8_B128);
    float *x = blocks_of_all_kinds(), scales[6];
    uint8_t *data = kt_guard_alloc(BLOCKS_N * BLOCKS_K, 4, 0xAA);
    kt_matrix w = {KT_W_FP8_B128, BLOCKS_N, BLOCKS_K, data, scales};
    float largest[6] = {0};
    double row[BLOCKS_K];

    cr_assert_not(
        isfinite(f->encode_rows(x, BLOCKS_N, BLOCKS_K, NULL, 0, BLOCKS_N, data, scales, NULL)));
    for (int i = 0; i < BLOCKS_N; i++)
        for (int j = 0; j < BLOCKS_K; j++)
            largest[i / 128 * 2 + j / 128] =
                fmaxf(largest[i / 128 * 2 + j / 128], fabsf(x[i * BLOCKS_K + j]));
    for (int b = 0; b < 6; b++)
        cr_assert_eq(scales[b], b == 0 || b == 1 || b == 3 ? 0.0f : largest[b] / 448.0f, "%d", b);
    for (int i = 0; i < BLOCKS_N; i++) {
        f->decode_row(&w, i, row);
        for (int j = 0; j < BLOCKS_K; j++) {
            const float v = x[i * BLOCKS_K + j], scale = scales[i / 128 * 2 + j / 128];
            /* half a step: 3 bits after the first, 2^-9 below 2^-6; and what x / scale is rounded by */
            const double half = fmax(0x1p-10 * scale, 0x1p-4 * fabs(v)) * (1 + 0x1p-20);
            if (scale == 0)
                cr_assert_eq(row[j], 0.0, "%d %d", i, j);
            else
                cr_assert(fabs(v - row[j]) <= half, "%d %d: %g became %g", i, j, v, row[j]);
        }
    }
    kt_guard_free(x), kt_guard_free(data);
}

Test(formats, wf8b128_rows_may_be_shared_out_anywhere) {
    const kt_format *f = kt_format_find(KT_W_FP8_B128);
    float *x = blocks_of_all_kinds(), scales[2][6];
    uint8_t *data[2] = {malloc(BLOCKS_N * BLOCKS_K), malloc(BLOCKS_N * BLOCKS_K)};

    f->encode_rows(x, BLOCKS_N, BLOCKS_K, NULL, 0, BLOCKS_N, data[0], scales[0], NULL);
    for (int step = 1; step < BLOCKS_N; step = step * 3 + 1) {
        memset(data[1], 0xAA, BLOCKS_N * BLOCKS_K);
        memset(scales[1], 0xAA, sizeof scales[1]);
        for (int i = 0; i < BLOCKS_N; i += step)
            f->encode_rows(x, BLOCKS_N, BLOCKS_K, NULL, i,
                           i + step < BLOCKS_N ? i + step : BLOCKS_N, data[1], scales[1], NULL);
        cr_assert_eq(memcmp(data[0], data[1], BLOCKS_N * BLOCKS_K), 0, "%d rows a part", step);
        cr_assert_eq(memcmp(scales[0], scales[1], sizeof scales[0]), 0, "%d rows a part", step);
    }
    kt_guard_free(x), free(data[0]), free(data[1]);
}

/* Blocks of 32: the smallest power of two with which none passes 448; its own values are exact, and
 * what is not finite shows. */
Test(formats, wmxfp8_takes_the_smallest_power_of_two) {
    const kt_format *f = kt_format_find(KT_W_MXFP8);
    enum { K = 32 * 5 };
    static const float largest[] = {448, 449, 0x1p-40f, 0, 447 * 0x1p30f};
    static const uint8_t exponents[] = {127, 128, 127 - 48, 0, 157};
    float x[K] = {0};
    uint8_t data[K], scales[5];
    double row[K];
    const kt_matrix w = {KT_W_MXFP8, 1, K, data, scales};

    for (int b = 0; b < 5; b++) x[32 * b + 7 * b] = b % 2 ? -largest[b] : largest[b];
    cr_assert(isfinite(f->encode_rows(x, 1, K, NULL, 0, 1, data, scales, NULL)));
    cr_assert_arr_eq(scales, exponents, sizeof exponents);
    f->decode_row(&w, 0, row);
    for (int b = 0; b < 5; b++)
        cr_expect(fabs(row[32 * b + 7 * b] - x[32 * b + 7 * b]) <= largest[b] / 16, "block %d", b);
    cr_expect_eq(row[0], 448.0);
    for (int i = 0; i < K; i++) { /* every code but NaN, beside the largest */
        uint8_t code = (uint8_t)((i * 37) % 256);
        if ((code & 0x7f) == 0x7f) code ^= 1;
        x[i] = kt_f8e4m3_to_f32(i % 32 ? code : 0x7e) * ldexpf(1, i / 32 * 20 - 50);
    }
    cr_expect_eq(f->encode_rows(x, 1, K, NULL, 0, 1, data, scales, NULL), 0.0);
    scales[2] = 255;
    f->decode_row(&w, 0, row);
    cr_expect(isnan(row[64]) && isnan(row[95]) && row[96] == x[96]);
    x[3] = INFINITY;
    cr_expect_not(isfinite(f->encode_rows(x, 1, K, NULL, 0, 1, data, scales, NULL)));
}

/* Every code but NaN, in a block that has the largest: none is lost, and the error says so. */
Test(formats, wf8b128_is_exact_on_its_own_values) {
    const kt_format *f = kt_format_find(KT_W_FP8_B128);
    enum { N = 2, K = 256 };
    float x[N * K], scales[2];
    uint8_t data[N * K];

    for (int i = 0; i < N * K; i++) {
        uint8_t code = (uint8_t)((i * 37) % 256);
        if ((code & 0x7f) == 0x7f) code ^= 1;
        x[i] = kt_f8e4m3_to_f32(code) * (i % K < 128 ? 0.25f : 0x1p-40f);
    }
    x[5] = 448 * 0.25f, x[K + 200] = -448 * 0x1p-40f;
    cr_assert_eq(f->encode_rows(x, N, K, NULL, 0, N, data, scales, NULL), 0.0);
    cr_assert_eq(scales[0], 0.25f);
    cr_assert_eq(scales[1], 0x1p-40f);
    for (int i = 0; i < N * K; i++)
        cr_assert_eq(kt_f8e4m3_to_f32(data[i]) * scales[i % K / 128], x[i], "%d", i);
}
