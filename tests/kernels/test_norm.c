/* RMSNorm variants against the double reference. SPDX-License-Identifier: Apache-2.0 */
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
    for (int64_t k = 1; k <= 140; k++) {
        size_t bytes = (size_t)k * sizeof(float);
        float *x = kt_guard_alloc(3 * bytes, 4, 0x3f), *w = kt_guard_alloc(bytes, 4, 0x3f);
        float *y = kt_guard_alloc(3 * bytes, 4, 0x11), canary = y[0];
        kt_norm_call call = {.x = x,
                             .ldx = k,
                             .w = w,
                             .eps = 1e-5f,
                             .y = y,
                             .ldy = k,
                             .k = k,
                             .row_begin = 1,
                             .row_end = 2};
        v->norm(&call);
        for (int64_t i = 0; i < k; i++)
            cr_assert(y[i] == canary && y[2 * k + i] == canary && y[k + i] != canary,
                      "%s: k=%lld index %lld", v->name, (long long)k, (long long)i);
        kt_guard_free(x);
        kt_guard_free(w);
        kt_guard_free(y);
    }
}

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
