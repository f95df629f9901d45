/* Rotary embedding variants and the angle table. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_gate.h"
#include "kernels/rope/rope_table.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

ParameterizedTestParameters(rope, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_ROPE);
}

ParameterizedTest(size_t *index, rope, every_variant_is_within_its_bound) {
    static const int64_t sizes[] = {2, 4, 6, 14, 16, 18, 30, 32, 34, 62, 64, 96, 128, 256};
    const kt_variant *v = kt_builtin_variants[*index];
    kt_config config = {{0}};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            kt_problem p = {.op = KT_OP_ROPE, .m = 7, .n = 3, .k = sizes[i]};
            cr_assert(kt_rope_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "%s", err.message);
        }
}

ParameterizedTestParameters(rope, stays_inside_its_heads) {
    return kt_variants_of(KT_OP_ROPE);
}

ParameterizedTest(size_t *index, rope, stays_inside_its_heads) {
    const kt_variant *v = kt_builtin_variants[*index];
    const int32_t positions[3] = {0, 2, 1};

    kt_skip_without_isa(v->isa, v->name);
    for (int64_t d = 2; d <= 80; d += 2)
        for (int interleaved = 0; interleaved < 2; interleaved++) {
            size_t bytes = (size_t)d * sizeof(float);
            float *x = kt_guard_alloc(3 * bytes, 4, 0x3f), *table = kt_guard_alloc(3 * bytes, 4, 0);
            float before = x[0];
            kt_rope_call call = {.x = x,
                                 .ld = d,
                                 .heads = 1,
                                 .head_dim = d,
                                 .rotary_dim = d,
                                 .cos_sin = table,
                                 .positions = positions,
                                 .interleaved = interleaved,
                                 .row_begin = 1,
                                 .row_end = 2};
            kt_rope_table(1e4, d, 0, 3, table);
            v->rope(&call);
            for (int64_t i = 0; i < d; i++)
                cr_assert(x[i] == before && x[2 * d + i] == before, "%s: d=%lld wrote another row",
                          v->name, (long long)d);
            cr_assert(x[d] != before);
            kt_guard_free(x);
            kt_guard_free(table);
        }
}

Test(rope, angles_of_far_positions_are_exact) {
    /* cos and sin of 1000000 * 10000^(-2i/4) = 1000000 and 10000, to the last digit of f32. */
    float row[4];
    kt_rope_table(1e4, 4, 1000000, 1, row);
    cr_assert_eq(row[0], 0.93675212753314478f);
    cr_assert_eq(row[1], -0.95215536825901481f);
    cr_assert_eq(row[2], -0.34999350217129296f);
    cr_assert_eq(row[3], -0.30561438888825215f);
}
