/* Hyper-connections against their double reference. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/hyper/hyper.h"
#include "kernels/hyper/hyper_ref.h"

enum { MOST = KT_HYPER_MOST, WIDEST = 352, OUTPUTS = 2 * MOST + MOST * MOST };

static float streams[MOST * WIDEST], y[WIDEST], fn[OUTPUTS * MOST * WIDEST], base[OUTPUTS];
static const float scale[3] = {0.7f, 1.3f, 2.1f};

static void draw(kt_rng *rng, float *x, int64_t n, float size) {
    for (int64_t i = 0; i < n; i++) x[i] = size * kt_rng_normal(rng);
}

static void make(uint64_t seed, int64_t count, int64_t hidden) {
    const int64_t outputs = kt_hyper_outputs(count);
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    draw(&rng, streams, count * hidden, 3);
    draw(&rng, y, hidden, 1);
    draw(&rng, fn, outputs * count * hidden, 1 / sqrtf((float)(count * hidden)));
    draw(&rng, base, outputs, 1);
}

/* The products in double, rounded once. */
static void multiply(int64_t count, int64_t hidden, float *m) {
    for (int64_t o = 0; o < kt_hyper_outputs(count); o++) {
        double sum = 0;
        for (int64_t i = 0; i < count * hidden; i++)
            sum += (double)fn[o * count * hidden + i] * streams[i];
        m[o] = (float)sum;
    }
}

/* About a hundred roundings of numbers below 2, each 2^-24, times what exp makes of them. */
static const double bound = 4e-5;

static void check(uint64_t seed, int64_t count, int64_t hidden, int64_t iterations) {
    const float eps = 1e-6f;
    double want[OUTPUTS], mixed[MOST * WIDEST];
    float m[OUTPUTS], row[WIDEST];

    make(seed, count, hidden);
    kt_hyper_ref_coefficients(streams, fn, base, scale, count, hidden, iterations, (double)eps,
                              1e-6, want);
    multiply(count, hidden, m);
    kt_hyper_coefficients(m, kt_hyper_factor(streams, count * hidden, 1e-6f), base, scale, count,
                          iterations, eps);
    for (int64_t o = 0; o < kt_hyper_outputs(count); o++)
        cr_expect_lt(fabs(m[o] - want[o]), bound, "%lld streams: coefficient %lld is %g, not %g",
                     (long long)count, (long long)o, m[o], want[o]);
    kt_hyper_collapse(streams, m, count, hidden, row);
    for (int64_t i = 0; i < hidden; i++) {
        double sum = 0;
        for (int64_t s = 0; s < count; s++) sum += want[s] * streams[s * hidden + i];
        cr_expect_lt(fabs(row[i] - sum), 30 * bound, "column %lld", (long long)i);
    }
    kt_hyper_ref_join(streams, y, want, count, hidden, mixed);
    kt_hyper_remix(streams, y, m + count, m + 2 * count, count, hidden);
    for (int64_t i = 0; i < count * hidden; i++)
        cr_expect_lt(fabs(streams[i] - mixed[i]), 30 * bound, "%lld streams: number %lld is %g",
                     (long long)count, (long long)i, streams[i]);
}

Test(hyper, every_count_matches_the_reference) {
    static const int64_t widths[] = {1, 15, 16, 33, 256, 257, 352};

    for (uint64_t seed = 1; seed <= 3; seed++)
        for (int64_t count = 1; count <= MOST; count++)
            for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
                check(seed, count, widths[w], (int64_t)(seed * seed));
}

Test(hyper, the_mixture_is_nearly_doubly_stochastic) {
    float m[OUTPUTS];

    make(7, 4, 96);
    multiply(4, 96, m);
    kt_hyper_coefficients(m, kt_hyper_factor(streams, 4 * 96, 1e-6f), base, scale, 4, 20, 1e-6f);
    for (int i = 0; i < 4; i++) {
        float row = 0, column = 0;
        for (int j = 0; j < 4; j++) row += m[8 + 4 * i + j], column += m[8 + 4 * j + i];
        cr_expect_lt(fabsf(row - 1), 1e-2f, "row %d sums to %g", i, row);
        cr_expect_lt(fabsf(column - 1), 1e-4f, "column %d sums to %g", i, column);
    }
}

Test(hyper, the_end_weighs_streams_by_sigmoids) {
    float m[4] = {0.5f, -2.0f, 30.0f, -30.0f};
    const float was[4] = {0.5f, -2.0f, 30.0f, -30.0f}, shift[4] = {0.1f, 0.2f, 0.3f, 0.4f};

    kt_hyper_weights(m, 0.5f, shift, 1.5f, 4, 1e-6f);
    for (int i = 0; i < 4; i++) {
        const double want = 1 / (1 + exp(-(was[i] * 0.75 + shift[i]))) + 1e-6;
        cr_expect_lt(fabs(m[i] - want), 1e-6, "%d: %g instead of %g", i, m[i], want);
    }
}
