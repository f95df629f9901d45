/* RMSNorm and gate variants against the double reference, and LayerNorm.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/norm/norm_gate.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

ParameterizedTestParameters(norm, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_NORM);
}

ParameterizedTest(size_t *index, norm, every_variant_is_within_its_bound) {
    static const int64_t lengths[] = {1, 2, 7, 15, 16, 17, 63, 64, 65, 128, 211, 2048, 7168};
    const kt_variant *v = kt_builtin_variants[*index];
    kt_config config = {{0}};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            kt_problem p = {.op = KT_OP_NORM, .m = 11, .n = 1, .k = lengths[i]};
            cr_assert(kt_norm_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "%s", err.message);
        }
}

ParameterizedTestParameters(norm, stays_inside_its_rows) {
    return kt_variants_of(KT_OP_NORM);
}

ParameterizedTest(size_t *index, norm, stays_inside_its_rows) {
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa(v->isa, v->name);
    for (int64_t k = 1; k <= 140; k++)
        for (int kind = 0; kind < KT_NORM_KIND_COUNT; kind++) {
            size_t bytes = (size_t)k * sizeof(float);
            float *x = kt_guard_alloc(3 * bytes, 4, 0x3f), *w = kt_guard_alloc(bytes, 4, 0x3f);
            float *y = kt_guard_alloc(3 * bytes, 4, 0x11), canary = y[0];
            float *z = kt_guard_alloc(bytes + 5 * sizeof *z, 4, 0x3f);
            kt_norm_call call = {.x = x,
                                 .ldx = k,
                                 .w = kind == KT_NORM_SIGMOID ? NULL : w,
                                 .eps = 1e-5f,
                                 .y = y,
                                 .ldy = k,
                                 .k = k,
                                 .row_begin = 1,
                                 .row_end = 2,
                                 .kind = (kt_norm_kind)kind,
                                 .z = kind == KT_NORM_RMS ? NULL : z,
                                 .ldz = 5};
            v->norm(&call);
            for (int64_t i = 0; i < k; i++)
                cr_assert(y[i] == canary && y[2 * k + i] == canary && y[k + i] != canary,
                          "%s: kind %d k=%lld index %lld", v->name, kind, (long long)k,
                          (long long)i);
            kt_guard_free(x);
            kt_guard_free(w);
            kt_guard_free(y);
            kt_guard_free(z);
        }
}

ParameterizedTestParameters(norm, gates_of_infinity_are_open_and_shut) {
    return kt_variants_of(KT_OP_NORM);
}

ParameterizedTest(size_t *index, norm, gates_of_infinity_are_open_and_shut) {
    const kt_variant *v = kt_builtin_variants[*index];
    const float x[5] = {2, 3, 4, 5, 6}, z[5] = {INFINITY, -INFINITY, 0, NAN, 200};
    float y[5];
    const kt_norm_call call = {.x = x,
                               .ldx = 5,
                               .y = y,
                               .ldy = 5,
                               .k = 5,
                               .row_end = 1,
                               .kind = KT_NORM_SIGMOID,
                               .z = z,
                               .ldz = 5};

    kt_skip_without_isa(v->isa, v->name);
    v->norm(&call);
    cr_assert(y[0] == 2.0f && y[1] == 0.0f && y[2] == 2.0f && isnan(y[3]) && y[4] == 6.0f, "%s",
              v->name);
}

extern const kt_variant kt_variant_rms_rows__scalar;

static void write_zeros(const kt_norm_call *call) {
    for (int64_t i = call->row_begin * call->ldy; i < call->row_end * call->ldy; i++)
        call->y[i] = 0;
}

Test(norm, the_gate_rejects_a_wrong_kernel) {
    kt_variant wrong = {.name = "wrong", .op = KT_OP_NORM, .norm = write_zeros};
    kt_problem p = {.op = KT_OP_NORM, .m = 2, .n = 1, .k = 64};
    kt_config config = {{0}};
    cr_assert_eq(kt_norm_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
}

static void forget_the_gate(const kt_norm_call *call) {
    kt_norm_call plain = *call;
    plain.kind = KT_NORM_RMS;
    if (call->kind != KT_NORM_SIGMOID)
        kt_variant_rms_rows__scalar.norm(&plain);
    else
        kt_variant_rms_rows__scalar.norm(call);
}

static void forget_the_sigmoid(const kt_norm_call *call) {
    kt_norm_call plain = *call;
    plain.kind = KT_NORM_RMS;
    if (call->kind == KT_NORM_SIGMOID)
        kt_variant_rms_rows__scalar.norm(&plain);
    else
        kt_variant_rms_rows__scalar.norm(call);
}

Test(norm, the_gate_rejects_kernels_that_know_one_kind_less) {
    kt_variant wrong = {.name = "wrong", .op = KT_OP_NORM, .norm = forget_the_gate};
    kt_problem p = {.op = KT_OP_NORM, .m = 2, .n = 1, .k = 64};
    kt_config config = {{0}};
    cr_assert_eq(kt_norm_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
    wrong.norm = forget_the_sigmoid;
    cr_assert_eq(kt_norm_gate(&wrong, &config, &p, 1, NULL, NULL), KT_E_MISMATCH);
}

enum { LONGEST = 300 };

/* In long double, and how far a computation in double may be off that is rounded to f32 at the end:
 * with d = 2^-53 the mean is off by (k + 1) d mean|x|, the differences by that and d of themselves,
 * the variance by (k + 3) d of itself and the mean's error squared, the root by half of it and two
 * roundings. */
static void layer_norm_ref(const float *x, const float *w, const float *b, int64_t k, double eps,
                           double *want, double *bound) {
    const double d = 0x1p-53, n = (double)k;
    long double mean = 0.0L, variance = 0.0L, size = 0.0L, r;
    double shift, relative;

    for (int64_t i = 0; i < k; i++) mean += x[i];
    for (int64_t i = 0; i < k; i++) size += fabsl((long double)x[i]);
    mean /= n;
    for (int64_t i = 0; i < k; i++) variance += (x[i] - mean) * (x[i] - mean);
    variance /= n;
    r = 1.0L / sqrtl(variance + eps);
    shift = (n + 1.0) * d * (double)(size / n);
    relative = (n + 10.0) * d + shift * shift / (2.0 * (double)(variance + eps));
    for (int64_t i = 0; i < k; i++) {
        long double scaled = (x[i] - mean) * r * w[i];
        want[i] = (double)(scaled + b[i]);
        bound[i] = (double)fabsl(scaled) * relative + shift * (double)r * fabs((double)w[i]);
        bound[i] += 0x1p-24 * (fabs(want[i]) + bound[i]) + 0x1p-149;
    }
}

static void fill_row(float *x, int64_t k, int kind, kt_rng *rng) {
    for (int64_t i = 0; i < k; i++) {
        float n = kt_rng_normal(rng);
        x[i] = kind == 0   ? n
               : kind == 1 ? n * n * n * n * n
               : kind == 2 ? 1000.0f + n * 0.001f /* mean(x^2) - mean^2 would be noise in f32 */
               : kind == 3 ? n * 1e-20f
               : kind == 4 ? n * 1e18f
                           : 7.0f;
    }
}

Test(norm, layer_norm_is_within_its_bound) {
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 31, 64, 128, 129, LONGEST};
    float w[LONGEST], b[LONGEST];
    double want[LONGEST], bound[LONGEST];
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (size_t s = 0; s < sizeof lengths / sizeof *lengths; s++) {
        int64_t k = lengths[s], ld = k + 3;
        size_t bytes = (size_t)(7 * ld - 3) * sizeof(float);
        float *x = kt_guard_alloc(bytes, 4, 0), *y = kt_guard_alloc(bytes, 4, 0x11), canary = y[0];
        kt_norm_call call = {.x = x,
                             .ldx = ld,
                             .w = w,
                             .eps = 1e-6f,
                             .y = y,
                             .ldy = ld,
                             .k = k,
                             .row_begin = 1,
                             .row_end = 7};
        for (int row = 0; row < 7; row++) fill_row(x + row * ld, k, row % 6, &rng);
        for (int64_t i = 0; i < k; i++) {
            w[i] = kt_rng_uniform(&rng, -2.0f, 2.0f);
            b[i] = kt_rng_normal(&rng);
        }
        kt_layer_norm_rows(&call, b);
        for (int row = 1; row < 7; row++) {
            layer_norm_ref(x + row * ld, w, b, k, 1e-6f, want, bound);
            for (int64_t i = 0; i < k; i++)
                cr_assert(fabs(y[row * ld + i] - want[i]) <= bound[i],
                          "k=%lld row %d index %lld: got %.9g, want %.9g, bound %g", (long long)k,
                          row, (long long)i, (double)y[row * ld + i], want[i], bound[i]);
            for (int64_t i = k; row < 6 && i < ld; i++) cr_assert_eq(y[row * ld + i], canary);
        }
        for (int64_t i = 0; i < ld; i++) cr_assert_eq(y[i], canary);
        call.y = x;
        kt_layer_norm_rows(&call, b);
        for (int row = 1; row < 7; row++)
            cr_assert_arr_eq(x + row * ld, y + row * ld, (size_t)k * sizeof *x);
        kt_guard_free(x);
        kt_guard_free(y);
    }
}

Test(norm, layer_norm_of_a_known_row) {
    const float x[4] = {1, 2, 3, 6}, w[4] = {1, 1, 2, 1}, b[4] = {0, 0, 10, 0}; /* variance 3.5 */
    float y[4];
    const kt_norm_call call = {
        .x = x, .ldx = 4, .w = w, .eps = 0.5f, .y = y, .ldy = 4, .k = 4, .row_end = 1};

    kt_layer_norm_rows(&call, b);
    cr_assert(y[0] == -1.0f && y[1] == -0.5f && y[2] == 10.0f && y[3] == 1.5f, "%g %g %g %g", y[0],
              y[1], y[2], y[3]);
}
