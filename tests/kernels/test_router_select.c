/* The choice of experts by sigmoid scores, with bias and groups.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "kernels/router/router_select.h"

enum { CLASSES = 12, MOST = KT_ROUTER_MAX_EXPERTS };
static const double u = 0x1p-24;

static double sigmoid_of(double x) {
    return 1.0 / (1.0 + exp(-x));
}

/* The largest of n scores that is not taken yet, the first of equals; takes it. */
static int64_t take_best(const double *score, bool *taken, int64_t n) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; i++)
        if (!taken[i] && (best < 0 || score[i] > score[best])) best = i;
    taken[best] = true;
    return best;
}

/* The rule in double, in as many passes as it takes: closes all but the best groups. */
static void close_groups(const kt_router_rule *r, const double *biased, bool *taken) {
    int64_t size = r->experts / r->groups;
    double score[KT_ROUTER_MAX_GROUPS];
    bool open[KT_ROUTER_MAX_GROUPS] = {false};

    for (int64_t g = 0; g < r->groups; g++) {
        const double *of = biased + g * size;
        bool two[MOST] = {false};
        score[g] = of[take_best(of, two, size)];
        if (size > 1) score[g] += of[take_best(of, two, size)];
    }
    for (int64_t i = 0; i < r->top_groups; i++) take_best(score, open, r->groups);
    for (int64_t e = 0; e < r->experts; e++) taken[e] = !open[e / size];
}

/* A sigmoid of f32 is off by 4 u at most (exp 2 u, sum, quotient), a sum of them by as much, and
 * the weight is rounded once. */
static void check_against_double(const kt_router_rule *r, const float *logits, uint64_t seed) {
    static double biased[MOST];
    bool taken[MOST] = {false};
    double s[KT_ROUTER_MAX_TOPK], sum = 1e-20;
    float weight[KT_ROUTER_MAX_TOPK];
    int32_t id[KT_ROUTER_MAX_TOPK];

    for (int64_t e = 0; e < r->experts; e++)
        biased[e] = sigmoid_of(logits[e]) + (r->bias ? r->bias[e] : 0.0f);
    if (r->score == KT_ROUTER_SIGMOID_GROUP) close_groups(r, biased, taken);
    kt_router_select(r, logits, id, weight);
    for (int64_t j = 0; j < r->topk; j++) {
        int64_t best = take_best(biased, taken, r->experts);
        cr_assert_eq(id[j], best,
                     "experts=%lld groups=%lld seed=%llu place %lld: got %d, want %lld",
                     (long long)r->experts, (long long)r->groups, (unsigned long long)seed,
                     (long long)j, id[j], (long long)best);
        s[j] = sigmoid_of(logits[best]);
        sum += s[j];
    }
    for (int64_t j = 0; j < r->topk; j++) {
        double want =
            s[j] / (r->norm_topk_prob ? sum : 1.0) * (r->scale != 0.0f ? (double)r->scale : 1.0);
        cr_assert(fabs(weight[j] - want) <= 9.0 * u * 1.01 * want,
                  "place %lld: got %.9g, want %.9g", (long long)j, (double)weight[j], want);
    }
}

/* Experts of one class are equal, logit and bias: those tie, and no others may come near to it. */
typedef struct classes {
    float logit[CLASSES], bias[CLASSES];
} classes;

/* What f32 makes of sigmoid + bias (below 2) is off by 6 u, of a sum of two by 16 u. */
static bool are_apart(const classes *c, bool has_bias) {
    double sums[CLASSES * (CLASSES + 3) / 2], s[CLASSES];
    int n = 0;

    for (int i = 0; i < CLASSES; i++) {
        s[i] = sigmoid_of(c->logit[i]) + (has_bias ? c->bias[i] : 0.0f);
        for (int j = 0; j <= i; j++) sums[n++] = s[i] + s[j];
    }
    for (int i = 0; i < n; i++)
        for (int j = 0; j < i; j++)
            if (fabs(sums[i] - sums[j]) <= 32.0 * u) return false;
    for (int i = 0; i < CLASSES; i++)
        for (int j = 0; j < i; j++)
            if (fabs(s[i] - s[j]) <= 12.0 * u) return false;
    return true;
}

/* Low classes are frequent and high ones rare, so that groups tie in some seeds and differ in
 * others. */
static void fill(kt_rng *rng, int64_t experts, bool has_bias, float *logits, float *bias) {
    classes c;

    do
        for (int i = 0; i < CLASSES; i++) {
            c.logit[i] = kt_rng_uniform(rng, -6.0f, 6.0f);
            c.bias[i] = kt_rng_uniform(rng, -1.0f, 1.0f);
        }
    while (!are_apart(&c, has_bias));
    for (int64_t e = 0; e < experts; e++) {
        uint64_t i = kt_rng_below(rng, 1 + kt_rng_below(rng, CLASSES));
        logits[e] = c.logit[i];
        bias[e] = c.bias[i];
    }
}

Test(router_select, agrees_with_double_where_scores_tie, .timeout = 60) {
    static const kt_router_rule rules[] = {
        {.experts = 160, .topk = 8, .scale = 2.5f},
        {.experts = 384, .topk = 8, .scale = 2.827f},
        {.experts = 256, .topk = 8},
        {.experts = 1, .topk = 1},
        {.experts = 7, .topk = 7},
        {.experts = MOST, .topk = KT_ROUTER_MAX_TOPK},
        {.experts = 256, .topk = 8, .groups = 8, .top_groups = 4, .scale = 2.5f},
        {.experts = 256, .topk = 8, .groups = 1, .top_groups = 1},
        {.experts = 8, .topk = 3, .groups = 4, .top_groups = 2},
        {.experts = 6, .topk = 6, .groups = 3, .top_groups = 3},
        {.experts = 1, .topk = 1, .groups = 1, .top_groups = 1},
        {.experts = MOST, .topk = 32, .groups = KT_ROUTER_MAX_GROUPS, .top_groups = 2},
    };
    static float logits[MOST], bias[MOST];
    kt_err err;

    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        for (uint64_t seed = 1; seed <= 40; seed++) {
            kt_router_rule r = rules[i];
            kt_rng rng;
            kt_rng_seed(&rng, seed);
            r.score = r.groups ? KT_ROUTER_SIGMOID_GROUP : KT_ROUTER_SIGMOID_BIAS;
            r.norm_topk_prob = seed % 2;
            r.bias = seed % 4 < 2 ? bias : NULL;
            fill(&rng, r.experts, r.bias, logits, bias);
            cr_assert(kt_router_rule_check(&r, &err) == KT_OK, "%s", err.message);
            check_against_double(&r, logits, seed);
        }
}

/* Groups of four: one very strong expert (0), two strong ones (8, 10), three fairly strong ones
 * (12, 13, 15). */
Test(router_select, a_group_is_worth_its_two_best_experts) {
    const float logits[16] = {4,    -6, -6,   -6, -6,   -6,   -6, -6,
                              1.4f, -6, 1.5f, -6, 0.9f, 0.9f, -6, 0.9f};
    kt_router_rule rule = {
        .score = KT_ROUTER_SIGMOID_GROUP, .experts = 16, .topk = 2, .groups = 4, .top_groups = 1};
    int32_t id[2];
    float weight[2];

    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 10 && id[1] == 8, "got %d and %d", id[0], id[1]);
    rule.top_groups = 3;
    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 0 && id[1] == 10, "got %d and %d", id[0], id[1]);
    rule.top_groups = 2; /* the three are worth 1.42, the one with its neighbour 0.98 */
    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 10 && id[1] == 8, "got %d and %d", id[0], id[1]);
}

Test(router_select, a_bias_moves_the_choice_and_not_the_weight) {
    const float logits[4] = {2, 1, -1, -2}, bias[4] = {0, 0, 0, 1};
    for (int score = KT_ROUTER_SIGMOID_BIAS; score <= KT_ROUTER_SIGMOID_GROUP; score++) {
        const kt_router_rule rule = {.score = (kt_router_score)score,
                                     .experts = 4,
                                     .topk = 2,
                                     .norm_topk_prob = true,
                                     .bias = bias,
                                     .groups = 1,
                                     .top_groups = 1,
                                     .scale = 2.5f};
        double first = sigmoid_of(-2.0), second = sigmoid_of(2.0);
        double want = 2.5 * first / (first + second);
        int32_t id[2];
        float weight[2];
        kt_router_select(&rule, logits, id, weight);
        cr_assert(id[0] == 3 && id[1] == 0, "got %d and %d", id[0], id[1]);
        cr_assert(fabs(weight[0] - want) <= 9.0 * u * 1.01 * want);
        cr_assert(fabs(weight[1] - (2.5 - want)) <= 9.0 * u * 1.01 * (2.5 - want));
    }
}

/* Masked by 0 instead of minus infinity, experts 0 and 1 would win over negative scores. */
Test(router_select, closed_groups_stay_closed_below_zero) {
    const float logits[4] = {2, -2, 1, 1}, bias[4] = {-3, -3, -3, -3};
    const kt_router_rule rule = {.score = KT_ROUTER_SIGMOID_GROUP,
                                 .experts = 4,
                                 .topk = 2,
                                 .bias = bias,
                                 .groups = 2,
                                 .top_groups = 1};
    int32_t id[2];
    float weight[2];

    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 2 && id[1] == 3, "got %d and %d", id[0], id[1]);
}

Test(router_select, one_group_and_all_groups_are_no_groups) {
    static const int64_t shapes[][2] = {{1, 1}, {8, 8}, {32, 32}};
    float logits[64], bias[64];
    kt_rng rng;

    kt_rng_seed(&rng, 7);
    for (int seed = 0; seed < 20; seed++) {
        kt_router_rule rule = {.score = KT_ROUTER_SIGMOID_BIAS,
                               .experts = 64,
                               .topk = 6,
                               .norm_topk_prob = true,
                               .bias = bias};
        int32_t want_id[6], id[6];
        float want[6], weight[6];
        for (int e = 0; e < 64; e++) {
            logits[e] = kt_rng_normal(&rng);
            bias[e] = kt_rng_normal(&rng);
        }
        kt_router_select(&rule, logits, want_id, want);
        rule.score = KT_ROUTER_SIGMOID_GROUP;
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            rule.groups = shapes[i][0];
            rule.top_groups = shapes[i][1];
            kt_router_select(&rule, logits, id, weight);
            cr_assert_arr_eq(id, want_id, sizeof id);
            cr_assert_arr_eq(weight, want, sizeof weight);
        }
    }
}

/* Of any sign, infinite, tiny: the order of floats, as it is. */
Test(router_select, logits_rank_as_their_values_do) {
    const float logits[14] = {-INFINITY, 1e-45f,  -0.0f, 0.0f,     -1e-45f, -1.0f, INFINITY,
                              -3e38f,    -1e-38f, NAN,   INFINITY, 3e38f,   2.0f,  -2.0f};
    const int32_t want[14] = {6, 10, 11, 12, 1, 2, 3, 4, 8, 5, 13, 7, 0, 9};
    const kt_router_rule rule = {.score = KT_ROUTER_SOFTMAX, .experts = 14, .topk = 14};
    int32_t id[14];
    float weight[14];

    kt_router_select(&rule, logits, id, weight);
    for (int j = 0; j < 14; j++) cr_assert_eq(id[j], want[j], "place %d: got %d", j, id[j]);
}

/* Every length around whole blocks, every place of the best two, which tie. */
Test(router_select, ties_go_to_the_lower_index_wherever_it_is) {
    for (int64_t n = 2; n <= 70; n++)
        for (int64_t a = 0; a < n; a++)
            for (int64_t b = a + 1; b < n; b++) {
                const kt_router_rule rule = {.score = KT_ROUTER_SOFTMAX, .experts = n, .topk = 2};
                float logits[70], weight[2];
                int32_t id[2];
                for (int64_t e = 0; e < n; e++) logits[e] = e == a || e == b ? -1.0f : -2.0f;
                kt_router_select(&rule, logits, id, weight);
                cr_assert(id[0] == a && id[1] == b, "n=%lld: got %d and %d", (long long)n, id[0],
                          id[1]);
            }
}

/* All sigmoids vanish: 0 / (0 + 1e-20). */
Test(router_select, vanished_sigmoids_have_weights_of_zero) {
    const float logits[3] = {-200.0f, -INFINITY, -300.0f};
    const kt_router_rule rule = {
        .score = KT_ROUTER_SIGMOID_BIAS, .experts = 3, .topk = 2, .norm_topk_prob = true};
    int32_t id[2];
    float weight[2];

    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 0 && id[1] == 1);
    cr_assert(weight[0] == 0.0f && weight[1] == 0.0f);
}

Test(router_select, softmax_weights_are_scaled_last) {
    const float logits[4] = {1, 3, 2, 0};
    kt_router_rule rule = {.score = KT_ROUTER_SOFTMAX, .experts = 4, .topk = 2};
    for (int norm = 0; norm < 2; norm++) {
        int32_t id[2];
        float plain[2], scaled[2];
        rule.norm_topk_prob = norm;
        rule.scale = 0.0f;
        kt_router_select(&rule, logits, id, plain);
        rule.scale = 4.0f; /* a power of two rounds nothing */
        kt_router_select(&rule, logits, id, scaled);
        for (int j = 0; j < 2; j++) cr_assert_eq(scaled[j], 4.0f * plain[j]);
    }
}

/* As if the logits had been those sums. */
Test(router_select, a_bias_of_softmax_moves_choice_and_weights) {
    const float logits[4] = {2, 1, 0, -1}, bias[4] = {-4, 0.5f, 0, 2}, sums[4] = {-2, 1.5f, 0, 1};
    kt_router_rule rule = {.score = KT_ROUTER_SOFTMAX, .experts = 4, .topk = 2};

    for (int norm = 0; norm < 2; norm++) {
        int32_t id[2], want_id[2];
        float weight[2], want[2];
        rule.norm_topk_prob = norm;
        rule.bias = NULL;
        kt_router_select(&rule, sums, want_id, want);
        rule.bias = bias;
        cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_OK);
        kt_router_select(&rule, logits, id, weight);
        cr_assert(id[0] == 1 && id[1] == 3 && want_id[0] == 1 && want_id[1] == 3);
        cr_assert(weight[0] == want[0] && weight[1] == want[1]);
    }
}

Test(router_select, nan_scores_rank_last_and_stay_in_their_groups) {
    const float logits[8] = {NAN, NAN, 1, NAN, 3, 2, 1, 0}, bias[8] = {0, 0, 0, 0, 0, NAN, 0, 0};
    kt_router_rule rule = {.score = KT_ROUTER_SIGMOID_BIAS, .experts = 8, .topk = 3, .bias = bias};
    int32_t id[4];
    float weight[4];

    kt_router_select(&rule, logits, id, weight); /* a bias of NaN puts 5 behind */
    cr_assert(id[0] == 4 && id[1] == 2 && id[2] == 6);
    for (int j = 0; j < 3; j++) cr_assert(!isnan(weight[j]));
    rule.score = KT_ROUTER_SIGMOID_GROUP;
    rule.groups = 2;
    rule.top_groups = 1;
    kt_router_select(&rule, logits, id, weight); /* a group with one number is behind the other */
    cr_assert(id[0] == 4 && id[1] == 6 && id[2] == 7);
    rule.topk = 4;
    kt_router_select(&rule, logits, id, weight); /* 5 is all that is left of its group */
    cr_assert(id[3] == 5 && fabsf(weight[3] - 0.88079708f) < 1e-6f);
}

Test(router_select, groups_without_two_numbers_rank_last) {
    const float logits[6] = {NAN, NAN, 9, NAN, 1, 2};
    const float bias[6] = {0, 0, 0, 0, -INFINITY, -INFINITY};
    kt_router_rule rule = {.score = KT_ROUTER_SIGMOID_GROUP,
                           .experts = 6,
                           .topk = 2,
                           .bias = bias,
                           .groups = 3,
                           .top_groups = 1};
    int32_t id[3];
    float weight[3];

    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 4 && id[1] == 5, "got %d and %d", id[0], id[1]);
    rule.top_groups = 2; /* equals among the rest: the lower one */
    rule.topk = 3;
    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 4 && id[1] == 5 && id[2] == 0, "got %d, %d, %d", id[0], id[1], id[2]);
}

Test(router_select, a_chosen_nan_makes_weights_nan) {
    const float logits[4] = {NAN, 1, 5, 5};
    kt_router_rule rule = {
        .score = KT_ROUTER_SIGMOID_GROUP, .experts = 4, .topk = 2, .groups = 2, .top_groups = 1};
    const float all_nan[4] = {NAN, NAN, NAN, NAN};
    int32_t id[2];
    float weight[2];

    kt_router_select(&rule, all_nan, id, weight);
    cr_assert(id[0] == 0 && id[1] == 1 && isnan(weight[0]) && isnan(weight[1]));
    rule.groups = 1;
    rule.topk = 2;
    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 2 && id[1] == 3 && weight[0] == weight[1]);
    for (int norm = 0; norm < 2; norm++) {
        const float two[2] = {NAN, 1};
        rule.experts = 2;
        rule.norm_topk_prob = norm;
        kt_router_select(&rule, two, id, weight);
        cr_assert(id[0] == 1 && id[1] == 0 && isnan(weight[1]) && (isnan(weight[0]) != 0) == norm);
    }
}

static void expect_refused(kt_router_rule rule, kt_status want, const char *message) {
    kt_err err = {0};
    cr_assert_eq(kt_router_rule_check(&rule, &err), want, "%s", message);
    cr_assert(strstr(err.message, message), "got \"%s\", want \"%s\"", err.message, message);
}

Test(router_select, refuses_rules_without_an_answer) {
    const float bias[8] = {0};
    const kt_router_rule good = {.score = KT_ROUTER_SIGMOID_GROUP,
                                 .experts = 256,
                                 .topk = 8,
                                 .bias = bias,
                                 .groups = 8,
                                 .top_groups = 4};
    kt_router_rule r = good;

    cr_assert_eq(kt_router_rule_check(&r, NULL), KT_OK);
    r = good, r.groups = 7;
    expect_refused(r, KT_E_UNSUPPORTED, "7 groups of 256 experts");
    r = good, r.groups = 0;
    expect_refused(r, KT_E_UNSUPPORTED, "0 groups");
    r = good, r.groups = 128;
    expect_refused(r, KT_E_UNSUPPORTED, "128 groups of 256 experts");
    r = good, r.experts = 8;
    expect_refused(r, KT_E_UNSUPPORTED, "8 groups of 8 experts");
    r = good, r.top_groups = 9;
    expect_refused(r, KT_E_INVALID, "9 groups chosen");
    r = good, r.top_groups = 0;
    expect_refused(r, KT_E_INVALID, "0 groups chosen");
    r = good, r.topk = 33, r.top_groups = 1;
    expect_refused(r, KT_E_INVALID, "33 experts per token, 1 groups of 32 have fewer");
    r = good, r.experts = 2048;
    expect_refused(r, KT_E_UNSUPPORTED, "2048 experts, expected 1 to 1024");
    r = good, r.experts = 0;
    expect_refused(r, KT_E_UNSUPPORTED, "0 experts");
    r = good, r.scale = NAN;
    expect_refused(r, KT_E_INVALID, "multiplied by");
    r = good, r.scale = -1.0f;
    expect_refused(r, KT_E_INVALID, "multiplied by -1");
    r = good, r.scale = INFINITY;
    expect_refused(r, KT_E_INVALID, "multiplied by inf");
    r = good, r.score = KT_ROUTER_SOFTMAX;
    expect_refused(r, KT_E_INVALID, "8 groups, which");
    r = good, r.score = KT_ROUTER_SIGMOID_BIAS;
    expect_refused(r, KT_E_INVALID, "8 groups, which");
    r = good, r.score = KT_ROUTER_SCORE_COUNT;
    expect_refused(r, KT_E_INVALID, "score function 4");
}

/* ---- square root of softplus ---- */

static double sqrt_softplus_of(double x) {
    return sqrt(x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)));
}

/* The bias chooses and does not weigh; a choice from elsewhere gets the same weights. */
Test(router_select, sqrt_softplus_chooses_with_bias_and_weighs_without) {
    const float logits[6] = {-40, 3, 2.5f, 100, -3, 0}, bias[6] = {0, 0, 4, -20, 3, 0};
    const kt_router_rule rule = {.score = KT_ROUTER_SQRT_SOFTPLUS,
                                 .experts = 6,
                                 .topk = 3,
                                 .norm_topk_prob = true,
                                 .bias = bias,
                                 .scale = 1.5f};
    static const int32_t want[3] = {2, 4, 1}; /* 5.6, 3.2, 1.7 before 0.8, 0 and -10 */
    float weight[3], again[3];
    int32_t id[3];
    double sum = 0;

    cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_OK);
    kt_router_select(&rule, logits, id, weight);
    for (int j = 0; j < 3; j++) sum += sqrt_softplus_of(logits[want[j]]);
    for (int j = 0; j < 3; j++) {
        cr_expect_eq(id[j], want[j], "choice %d is %d", j, id[j]);
        cr_expect_lt(fabs(weight[j] - 1.5 * sqrt_softplus_of(logits[want[j]]) / sum), 4e-7,
                     "weight %d is %g", j, weight[j]);
    }
    kt_router_weigh(&rule, logits, id, again);
    cr_expect_eq(memcmp(weight, again, sizeof weight), 0);
}
