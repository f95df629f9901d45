/* The exp that softmax and SiLU share: its stated error over the whole range, and its edges.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"

/* This file is built for the baseline; only the functions under test and their callers get an
 * ISA. */
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#include "kernels/simd/exp256.h"

static void exp_narrow(const float *x, float *y) {
    _mm256_storeu_ps(y, kt_exp_ps256(_mm256_loadu_ps(x)));
    _mm256_storeu_ps(y + 8, kt_exp_ps256(_mm256_loadu_ps(x + 8)));
}
static void exp_normal(const float *x, float *y) {
    _mm256_storeu_ps(y, kt_exp_normal_ps256(_mm256_loadu_ps(x)));
}
static void one_plus_exp(const float *x, float *y) {
    _mm256_storeu_ps(y, kt_one_plus_exp_ps256(_mm256_loadu_ps(x)));
}
static void one_plus_of_exp(const float *x, float *y) {
    _mm256_storeu_ps(y, _mm256_add_ps(_mm256_set1_ps(1.0f), kt_exp_ps256(_mm256_loadu_ps(x))));
}
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
#include "kernels/simd/exp512.h"
#include "tests/support/skip.h"

static void exp_wide(const float *x, float *y) {
    _mm512_storeu_ps(y, kt_exp_ps512(_mm512_loadu_ps(x)));
}
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

typedef void exp16(const float *x, float *y);

/* Every 37th float from -87 to 88, about 60 million: results are normal numbers there. */
static void check_range(exp16 *f, const char *name) {
    double worst = 0.0;
    for (int sign = 0; sign < 2; sign++)
        for (uint32_t u = 0; u < 0x42b00000u; u += 37 * 16) {
            float x[16], y[16];
            for (uint32_t i = 0; i < 16; i++) {
                uint32_t bits =
                    (u + 37 * i < 0x42ae0000u ? u + 37 * i : 0x42ae0000u) | (uint32_t)sign << 31;
                memcpy(x + i, &bits, sizeof bits);
            }
            f(x, y);
            for (int i = 0; i < 16; i++) {
                double want = exp((double)x[i]), error = fabs(y[i] - want) / want;
                if (error > worst) worst = error;
            }
        }
    cr_assert(worst < 0x1p-23, "%s: relative error %.4g * 2^-23", name, worst * 0x1p23);
}

static void check_edges(exp16 *f, const char *name) {
    const float x[16] = {0.0f,   -0.0f,  INFINITY, -INFINITY, NAN,    89.5f,  1e30f,  -104.5f,
                         -1e30f, -95.0f, 88.5f,    -87.5f,    1e-30f, 1e-45f, -3e38f, 3e38f};
    float y[16];

    f(x, y);
    for (int i = 0; i < 16; i++) {
        double want = exp((double)x[i]);
        if (isnan(x[i]))
            cr_assert(isnan(y[i]), "%s: exp(NaN) = %g", name, y[i]);
        else if (want > 3.4028235677973366e38)
            cr_assert(isinf(y[i]), "%s: exp(%g) = %g", name, x[i], y[i]);
        else
            cr_assert(fabs(y[i] - want) <= want * 0x1p-22 + 0x1p-149, "%s: exp(%g) = %g, want %g",
                      name, x[i], y[i], want);
    }
    cr_assert_eq(y[0], 1.0f);
    cr_assert_eq(y[3], 0.0f);
}

Test(exp, its_polynomial_is_as_good_as_stated) {
    for (int i = -100000; i <= 100000; i++) {
        double r = log(2.0) / 2.0 * i / 100000.0;
        double p = KT_EXP_P0 + r * (KT_EXP_P1 + r * (KT_EXP_P2 + r * (KT_EXP_P3 + r * KT_EXP_P4)));
        double error = fabs((1.0 + r + r * r * p) / exp(r) - 1.0);
        cr_assert_lt(error, 4.6e-9, "e^%g: relative error %g", r, error);
    }
}

Test(exp, keeps_its_error_bound_on_avx2, .timeout = 120) {
    kt_skip_without_isa(KT_ISA_AVX2, "kt_exp_ps256");
    check_range(exp_narrow, "kt_exp_ps256");
    check_edges(exp_narrow, "kt_exp_ps256");
}

/* Every 37th float from -86 to 0. */
Test(exp, of_what_stays_normal_has_the_same_bits, .timeout = 120) {
    kt_skip_without_isa(KT_ISA_AVX2, "kt_exp_normal_ps256");
    for (uint32_t u = 0; u <= 0x42ac0000u; u += 37 * 16) {
        float x[16], want[16], y[16];
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t at = u + 37 * i < 0x42ac0000u ? u + 37 * i : 0x42ac0000u;
            const uint32_t bits = at | 0x80000000u;
            memcpy(x + i, &bits, sizeof bits);
        }
        exp_narrow(x, want);
        exp_normal(x, y);
        exp_normal(x + 8, y + 8);
        cr_assert_eq(memcmp(want, y, sizeof y), 0, "from %g on", x[0]);
    }
}

/* Every 41st float of either sign, NaN and infinity among them. */
Test(exp, of_a_gate_has_the_bits_of_the_sum, .timeout = 120) {
    kt_skip_without_isa(KT_ISA_AVX2, "kt_one_plus_exp_ps256");
    for (uint64_t u = 0; u < 1ull << 32; u += 41 * 8) {
        float x[8], want[8], y[8];
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t bits = (uint32_t)(u + 41 * i);
            memcpy(x + i, &bits, sizeof bits);
        }
        one_plus_of_exp(x, want);
        one_plus_exp(x, y);
        cr_assert_eq(memcmp(want, y, sizeof y), 0, "from %g on", x[0]);
    }
}

Test(exp, keeps_its_error_bound_on_avx512, .timeout = 120) {
    kt_skip_without_isa(KT_ISA_AVX512, "kt_exp_ps512");
    check_range(exp_wide, "kt_exp_ps512");
    check_edges(exp_wide, "kt_exp_ps512");
}
