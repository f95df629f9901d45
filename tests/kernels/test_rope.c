/* Rotary embedding variants, frequencies and the angle table.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

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

ParameterizedTestParameters(rope, the_pairing_is_the_one_asked_for) {
    return kt_variants_of(KT_OP_ROPE);
}

/* At position 1 the first unit vector turns into the first element and its pair. */
ParameterizedTest(size_t *index, rope, the_pairing_is_the_one_asked_for) {
    const kt_variant *v = kt_builtin_variants[*index];
    const int32_t position = 1;

    kt_skip_without_isa(v->isa, v->name);
    for (int interleaved = 0; interleaved < 2; interleaved++) {
        float x[96] = {1.0f}, table[2 * 64];
        kt_rope_call call = {.x = x,
                             .ld = 96,
                             .heads = 1,
                             .head_dim = 96,
                             .rotary_dim = 64,
                             .cos_sin = table,
                             .positions = &position,
                             .interleaved = interleaved,
                             .row_end = 1};
        kt_rope_table(1e4, 64, 0, 2, table);
        v->rope(&call);
        for (int i = 0; i < 96; i++) {
            double want = i == 0 ? cos(1.0) : i == (interleaved ? 1 : 32) ? sin(1.0) : 0.0;
            cr_assert(fabs(x[i] - want) <= 0x1p-24 * fabs(want), "%s: index %d: got %g", v->name, i,
                      (double)x[i]);
        }
    }
}

static const kt_rope_rule yarn[3] = {{.base = 1e4,
                                      .rotary_dim = 64,
                                      .scaling = KT_ROPE_YARN,
                                      .factor = 40.0,
                                      .original_context = 4096.0,
                                      .beta_fast = 32.0,
                                      .beta_slow = 1.0},
                                     {.base = 5e4,
                                      .rotary_dim = 64,
                                      .scaling = KT_ROPE_YARN,
                                      .factor = 32.0,
                                      .original_context = 4096.0,
                                      .beta_fast = 1.0,
                                      .beta_slow = 1.0},
                                     {.base = 5e4,
                                      .rotary_dim = 64,
                                      .scaling = KT_ROPE_YARN,
                                      .factor = 64.0,
                                      .original_context = 4096.0,
                                      .beta_fast = 32.0,
                                      .beta_slow = 1.0}};

/* Is x `want`, which was rounded to so many significant digits? */
static bool has_digits(double x, double want, int digits) {
    return fabs(x - want) <= 0.5 * pow(10.0, floor(log10(want)) + 1.0 - digits) * 1.000001;
}

/* DeepSeek-V3, Kimi-K2-Instruct and Kimi-K2.5, whose ramps lie between pairs 10 and 23, 19 and 20,
 * 8 and 20. */
Test(rope, yarn_frequencies_are_those_of_the_served_models) {
    static const int pair[6] = {9, 10, 11, 16, 20, 23}, low[3] = {10, 19, 8},
                     high[3] = {23, 20, 20};
    static const double want[3][6] = {
        {0.0749894, 0.0562341, 0.0390069, 0.0055, 7.90569e-4, 3.3338e-5},
        {0.0476886, 0.0340073, 0.024251, 0.00447214, 3.61405e-5, 1.31059e-5},
        {0.0437767, 0.028428, 0.018283, 0.0015373, 1.80702e-5, 6.55293e-6}};

    for (int model = 0; model < 3; model++) {
        const kt_rope_rule *rule = &yarn[model];
        kt_rope_rule plain = {.base = rule->base, .rotary_dim = 64};
        double theta[32], unscaled[32];
        cr_assert_eq(kt_rope_rule_check(rule, NULL), KT_OK);
        kt_rope_rule_frequencies(rule, theta);
        kt_rope_rule_frequencies(&plain, unscaled);
        for (int i = 0; i < 6; i++)
            cr_assert(has_digits(theta[pair[i]], want[model][i], 6),
                      "model %d pair %d: got %.9g, want %g", model, pair[i], theta[pair[i]],
                      want[model][i]);
        for (int i = 0; i < 32; i++) {
            double slow = unscaled[i] / rule->factor;
            cr_assert((theta[i] == unscaled[i]) == (i <= low[model]), "model %d pair %d", model, i);
            cr_assert((theta[i] == slow) == (i >= high[model]), "model %d pair %d", model, i);
        }
    }
}

Test(rope, yarn_scales_of_attention_are_those_of_the_served_models) {
    static const double mscale[3] = {1.3688879, 1.3465736, 1.4158883};
    static const double squared[3] = {1.8738542, 1.8132604, 2.0047397};
    static const double softmax[3] = {0.13523378, 0.13086080, 0.14467963};

    for (int i = 0; i < 3; i++) {
        double m = kt_yarn_mscale(yarn[i].factor, 1.0);
        cr_assert(has_digits(m, mscale[i], 8), "got %.10g", m);
        cr_assert(has_digits(m * m, squared[i], 8), "got %.10g", m * m);
        cr_assert(has_digits(m * m / sqrt(192.0), softmax[i], 8), "got %.10g", m * m / sqrt(192.0));
    }
    cr_assert_eq(kt_yarn_mscale(1.0, 1.0), 1.0);
    cr_assert_eq(kt_yarn_mscale(0.5, 3.0), 1.0);
    cr_assert_eq(kt_yarn_mscale(40.0, 0.0), 1.0);
    cr_assert_eq(kt_yarn_mscale(40.0, 2.0), 0.2 * log(40.0) + 1.0);
}

/* A ramp whose ends are both at pair 0 is a step behind it. */
Test(rope, yarn_ramps_may_be_steps) {
    kt_rope_rule rule = {.base = 2.0,
                         .rotary_dim = 4,
                         .scaling = KT_ROPE_YARN,
                         .factor = 8.0,
                         .beta_fast = 1.0,
                         .beta_slow = 1.0};
    double theta[2];

    rule.original_context = 6.283185307179586; /* pair 0 makes one turn */
    kt_rope_rule_frequencies(&rule, theta);
    cr_assert_eq(theta[0], 1.0);
    cr_assert_eq(theta[1], pow(2.0, -0.5) / 8.0);
}

/* Corrections outside the pairs, -3.98 to 8.06 and 9.6 to 233.6: the ramps lie in 0..9 and
 * 9..63. */
/* gpt-oss: the ramp lies between 8.0928 and 17.3980, not between 8 and 18. */
Test(rope, yarn_ramps_may_end_between_pairs) {
    static const struct {
        int64_t pair;
        double theta;
    } want[] = {{8, 0.0508133},   {9, 0.0317057},   {10, 0.019335},   {12, 0.00679496},
                {14, 0.00209379}, {16, 4.56484e-4}, {18, 3.83088e-5}, {20, 1.81883e-5}};
    kt_rope_rule rule = {.base = 150000,
                         .rotary_dim = 64,
                         .scaling = KT_ROPE_YARN,
                         .factor = 32,
                         .original_context = 4096,
                         .beta_fast = 32,
                         .beta_slow = 1,
                         .is_exact = true};
    double theta[32], rounded[32];

    kt_rope_rule_frequencies(&rule, theta);
    rule.is_exact = false;
    kt_rope_rule_frequencies(&rule, rounded);
    for (size_t i = 0; i < sizeof want / sizeof *want; i++)
        cr_expect_leq(fabs(theta[want[i].pair] - want[i].theta), 4e-6 * want[i].theta,
                      "pair %d: %.9g, want %.9g", (int)want[i].pair, theta[want[i].pair],
                      want[i].theta);
    cr_expect_gt(fabs(rounded[10] - theta[10]), 1e-3 * theta[10]);
    cr_expect_leq(fabs(kt_yarn_mscale(32, 1) - 1.3465736), 1e-7);
}

Test(rope, yarn_ramps_are_bounded_by_the_width) {
    kt_rope_rule rule = yarn[0];
    double theta[32], share = 22.0 / 54.0;

    rule.original_context = 64.0;
    kt_rope_rule_frequencies(&rule, theta);
    cr_assert_eq(theta[0], 1.0);
    cr_assert(has_digits(theta[3] * pow(1e4, 6.0 / 64.0), 2.0 / 3.0 + 1.0 / 120.0, 14));
    rule.original_context = 1e30;
    rule.beta_fast = 1e28;
    kt_rope_rule_frequencies(&rule, theta);
    cr_assert(has_digits(theta[31] * pow(1e4, 62.0 / 64.0), 1.0 - share + share / 40.0, 14));
}

Test(rope, linear_scaling_divides_every_frequency) {
    const kt_rope_rule rule = {
        .base = 1e6, .rotary_dim = 128, .scaling = KT_ROPE_LINEAR, .factor = 3.0};
    double theta[64];

    kt_rope_rule_frequencies(&rule, theta);
    for (int i = 0; i < 64; i++) cr_assert_eq(theta[i], pow(1e6, -2.0 * i / 128.0) / 3.0);
}

/* Double angles are off by less than 2^-50 of themselves (power, product), cosines by 2^-52 more,
 * and f32 rounds once: in f32 the angles alone would be off by 2^-24 of thousands. */
Test(rope, tables_are_rounded_once_after_the_attention_factor) {
    static const int64_t first[] = {0, 1, 4095, 163837};
    kt_rope_rule rule = yarn[0];
    double theta[32];
    float table[3 * 64];

    rule.attention_factor = 1.3688879454113936;
    kt_rope_rule_frequencies(&rule, theta);
    for (size_t s = 0; s < sizeof first / sizeof *first; s++) {
        kt_rope_rule_table(&rule, first[s], 3, table);
        for (int p = 0; p < 3; p++)
            for (int i = 0; i < 64; i++) {
                double angle = (double)(first[s] + p) * theta[i % 32];
                double want = rule.attention_factor * (i < 32 ? cos(angle) : sin(angle));
                double bound = 0x1p-24 * fabs(want) + (angle + 1.0) * 0x1p-49;
                cr_assert(fabs(table[64 * p + i] - want) <= bound, "position %lld index %d",
                          (long long)first[s] + p, i);
            }
    }
}

Test(rope, a_plain_rule_is_the_plain_table) {
    const kt_rope_rule rule = {.base = 1e4, .rotary_dim = 6, .interleaved = true};
    kt_rope_rule one = rule;
    float want[10 * 6], got[10 * 6];

    kt_rope_table(1e4, 6, 0, 10, want);
    kt_rope_rule_table(&rule, 0, 10, got);
    cr_assert_arr_eq(got, want, sizeof want);
    one.attention_factor = 1.0;
    kt_rope_rule_table(&one, 4, 3, got);
    cr_assert_arr_eq(got, want + 4 * 6, 3 * 6 * sizeof *want);
}

static void expect_refused(kt_rope_rule rule, kt_status want, const char *message) {
    kt_err err = {0};
    cr_assert_eq(kt_rope_rule_check(&rule, &err), want, "%s", message);
    cr_assert(strstr(err.message, message), "got \"%s\", want \"%s\"", err.message, message);
}

Test(rope, refuses_rules_without_frequencies) {
    kt_rope_rule r = yarn[0];

    r.rotary_dim = 63;
    expect_refused(r, KT_E_INVALID, "width 63");
    r = yarn[0], r.rotary_dim = 0;
    expect_refused(r, KT_E_INVALID, "width 0");
    r = yarn[0], r.base = 1.0;
    expect_refused(r, KT_E_INVALID, "base 1, expected one over 1");
    r.scaling = KT_ROPE_PLAIN;
    cr_assert_eq(kt_rope_rule_check(&r, NULL), KT_OK);
    r.base = -1e4;
    expect_refused(r, KT_E_INVALID, "base -10000, expected one over 0");
    r = yarn[0], r.factor = 0.0;
    expect_refused(r, KT_E_INVALID, "factor 0");
    r.scaling = KT_ROPE_LINEAR;
    expect_refused(r, KT_E_INVALID, "factor 0");
    r = yarn[0], r.factor = INFINITY;
    expect_refused(r, KT_E_INVALID, "factor inf");
    r = yarn[0], r.original_context = 0.0;
    expect_refused(r, KT_E_INVALID, "original context 0");
    r = yarn[0], r.beta_slow = 33.0;
    expect_refused(r, KT_E_INVALID, "beta_fast 32 and beta_slow 33");
    r = yarn[0], r.beta_slow = 0.0;
    expect_refused(r, KT_E_INVALID, "beta_slow 0");
    r = yarn[0], r.beta_fast = NAN;
    expect_refused(r, KT_E_INVALID, "beta_fast nan");
    r = yarn[0], r.attention_factor = -1.0;
    expect_refused(r, KT_E_INVALID, "attention factor -1");
    r = yarn[0], r.attention_factor = NAN;
    expect_refused(r, KT_E_INVALID, "attention factor nan");
    r = yarn[0], r.scaling = KT_ROPE_SCALING_COUNT;
    expect_refused(r, KT_E_UNSUPPORTED, "scaling 3");
}
