/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_table.h"

#include <math.h>

#include "base/err.h"

#define TWO_PI 6.283185307179586

static bool is_positive(double x) {
    return x > 0.0 && x < (double)INFINITY;
}

kt_status kt_rope_rule_check(const kt_rope_rule *rule, kt_err *err) {
    const bool is_yarn = rule->scaling == KT_ROPE_YARN;

    if ((unsigned)rule->scaling >= KT_ROPE_SCALING_COUNT)
        return kt_fail(err, KT_E_UNSUPPORTED, "rope: scaling %d, expected 0 to %d",
                       (int)rule->scaling, KT_ROPE_SCALING_COUNT - 1);
    if (rule->rotary_dim < 2 || rule->rotary_dim % 2 != 0)
        return kt_fail(err, KT_E_INVALID, "rope: width %lld, expected an even one",
                       (long long)rule->rotary_dim);
    if (!is_positive(rule->base) || (is_yarn && rule->base <= 1.0))
        return kt_fail(err, KT_E_INVALID, "rope: base %g, expected one over %d", rule->base,
                       is_yarn ? 1 : 0);
    if (rule->attention_factor != 0.0 && !is_positive(rule->attention_factor))
        return kt_fail(err, KT_E_INVALID, "rope: attention factor %g", rule->attention_factor);
    if (rule->scaling != KT_ROPE_PLAIN && !is_positive(rule->factor))
        return kt_fail(err, KT_E_INVALID, "rope: factor %g, expected one over 0", rule->factor);
    if (is_yarn && !is_positive(rule->original_context))
        return kt_fail(err, KT_E_INVALID, "rope: original context %g, expected one over 0",
                       rule->original_context);
    if (is_yarn && !(is_positive(rule->beta_slow) && is_positive(rule->beta_fast) &&
                     rule->beta_fast >= rule->beta_slow))
        return kt_fail(err, KT_E_INVALID,
                       "rope: beta_fast %g and beta_slow %g, expected 0 < slow <= fast",
                       rule->beta_fast, rule->beta_slow);
    return KT_OK;
}

/* The pair, as a fraction, that turns `turns` times within the original context. */
static double pair_of(const kt_rope_rule *rule, double turns) {
    return (double)rule->rotary_dim * log(rule->original_context / (turns * TWO_PI)) /
           (2.0 * log(rule->base));
}

typedef struct ramp {
    double low, high;
} ramp;

/* As published, rotary_dim - 1 bounds the upper end although there are half as many pairs. */
static ramp ramp_of(const kt_rope_rule *rule) {
    ramp r = {0.0, 1.0};
    if (rule->scaling != KT_ROPE_YARN) return r;
    r.low = pair_of(rule, rule->beta_fast);
    r.high = pair_of(rule, rule->beta_slow);
    if (!rule->is_exact) r = (ramp){floor(r.low), ceil(r.high)};
    r.low = fmax(r.low, 0.0);
    r.high = fmin(r.high, (double)rule->rotary_dim - 1.0);
    if (r.low == r.high) r.high += 0.001;
    return r;
}

static double frequency(const kt_rope_rule *rule, ramp r, int64_t i) {
    double theta = pow(rule->base, -2.0 * (double)i / (double)rule->rotary_dim), share;
    if (rule->scaling == KT_ROPE_PLAIN) return theta;
    if (rule->scaling == KT_ROPE_LINEAR) return theta / rule->factor;
    share = fmin(fmax(((double)i - r.low) / (r.high - r.low), 0.0), 1.0);
    return theta * (1.0 - share) + theta / rule->factor * share;
}

void kt_rope_rule_frequencies(const kt_rope_rule *rule, double *theta) {
    ramp r = ramp_of(rule);
    for (int64_t i = 0; i < rule->rotary_dim / 2; i++) theta[i] = frequency(rule, r, i);
}

/* Angles come from the integer position each time: adding up steps would drift. */
void kt_rope_rule_table(const kt_rope_rule *rule, int64_t first, int64_t positions,
                        float *cos_sin) {
    const double size = rule->attention_factor == 0.0 ? 1.0 : rule->attention_factor;
    int64_t half = rule->rotary_dim / 2;
    ramp r = ramp_of(rule);

    for (int64_t i = 0; i < half; i++) {
        double theta = frequency(rule, r, i);
        for (int64_t p = 0; p < positions; p++) {
            double angle = (double)(first + p) * theta;
            cos_sin[p * rule->rotary_dim + i] = (float)(cos(angle) * size);
            cos_sin[p * rule->rotary_dim + half + i] = (float)(sin(angle) * size);
        }
    }
}

void kt_rope_table(double base, int64_t rotary_dim, int64_t first, int64_t positions,
                   float *cos_sin) {
    const kt_rope_rule rule = {.base = base, .rotary_dim = rotary_dim};
    kt_rope_rule_table(&rule, first, positions, cos_sin);
}

double kt_yarn_mscale(double factor, double m) {
    return factor <= 1.0 ? 1.0 : 0.1 * m * log(factor) + 1.0;
}
