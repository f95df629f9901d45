/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "runtime/sample/sampler.h"

#define VOCAB 12

static const float logits[VOCAB] = {0.5f, 3.0f, -1.0f, 2.5f, 3.0f, 0.0f,
                                    1.0f, 2.0f, -4.0f, 1.5f, 0.2f, -0.3f};

/* Frequencies of `draws` picks. */
static void histogram(const kt_sampling *o, int draws, double *share) {
    kt_sampler s;
    int counts[VOCAB] = {0};

    cr_assert_eq(kt_sampler_init(&s, o, VOCAB), 0);
    for (int i = 0; i < draws; i++) counts[kt_sampler_pick(&s, logits, NULL)]++;
    for (int i = 0; i < VOCAB; i++) share[i] = (double)counts[i] / draws;
    kt_sampler_deinit(&s);
}

/* Probabilities of `kept` tokens at temperature t, zero for the others. */
static void expected(double t, const int *kept, int n, double *p) {
    double sum = 0;

    memset(p, 0, VOCAB * sizeof *p);
    for (int i = 0; i < n; i++) sum += p[kept[i]] = exp(logits[kept[i]] / t);
    for (int i = 0; i < VOCAB; i++) p[i] /= sum;
}

/* Five standard deviations of a binomial share: a right sampler fails once in two million. */
static void check(const kt_sampling *o, double t, const int *kept, int n, const char *what) {
    enum { DRAWS = 40000 };
    double share[VOCAB], p[VOCAB];

    histogram(o, DRAWS, share);
    expected(t, kept, n, p);
    for (int i = 0; i < VOCAB; i++)
        cr_expect_leq(fabs(share[i] - p[i]), 5 * sqrt(p[i] * (1 - p[i]) / DRAWS),
                      "%s: token %d drawn %g of the time, expected %g", what, i, share[i], p[i]);
}

Test(sampler, greedy_takes_the_lowest_id_among_equals) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler s;
    float logprob, want = 0;

    cr_assert_eq(kt_sampler_init(&s, &o, VOCAB), 0);
    cr_expect_eq(kt_sampler_pick(&s, logits, &logprob), 1);
    for (int i = 0; i < VOCAB; i++) want += expf(logits[i]);
    cr_expect_float_eq(logprob, 3.0f - logf(want), 1e-5);
    kt_sampler_deinit(&s);
}

Test(sampler, draws_follow_the_distribution) {
    static const int all[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    static const int best4[] = {1, 4, 3, 7};
    kt_sampling o = KT_SAMPLING_GREEDY;

    o.temperature = 1;
    o.seed = 5;
    check(&o, 1, all, VOCAB, "plain");
    o.temperature = 2.5f;
    check(&o, 2.5, all, VOCAB, "temperature");
    o.top_k = 4;
    check(&o, 2.5, best4, 4, "top-k");
    o.top_k = 100;
    check(&o, 2.5, all, VOCAB, "top-k over the vocabulary");
}

/* Shares at temperature 1: tokens 1 and 4 have 0.279 each, 3 has 0.169, 7 has 0.103, 9 has 0.062. */
Test(sampler, filters_keep_what_they_say) {
    static const int best3[] = {1, 4, 3}, best2[] = {1, 4}, best5[] = {1, 4, 3, 7, 9};
    kt_sampling o = KT_SAMPLING_GREEDY;

    o.temperature = 1;
    o.seed = 6;
    o.top_p = 0.7f;
    check(&o, 1, best3, 3, "top-p");
    o.top_p = 0.0f;
    check(&o, 1, best2, 1, "top-p of nothing keeps the best");
    o.top_p = 1;
    o.min_p = 0.22f;
    check(&o, 1, best5, 5, "min-p");
    o.min_p = 0;
    o.top_k = 5;
    o.top_p = 0.6f; /* of the five, tokens 1 and 4 have 0.626 */
    check(&o, 1, best2, 2, "top-p after top-k");
}

Test(sampler, penalties_count_accepted_tokens) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler s;

    o.presence_penalty = 0.6f;
    cr_assert_eq(kt_sampler_init(&s, &o, VOCAB), 0);
    kt_sampler_accept(&s, 1);
    cr_expect_eq(kt_sampler_pick(&s, logits, NULL), 4); /* 3.0 - 0.6 < 3.0 */
    kt_sampler_accept(&s, 4);
    cr_expect_eq(kt_sampler_pick(&s, logits, NULL), 3); /* both at 2.4 < 2.5 */
    kt_sampler_accept(&s, -1);
    kt_sampler_accept(&s, VOCAB); /* ignored */
    kt_sampler_deinit(&s);

    o.presence_penalty = 0;
    o.frequency_penalty = 0.3f;
    cr_assert_eq(kt_sampler_init(&s, &o, VOCAB), 0);
    kt_sampler_accept(&s, 4);
    kt_sampler_accept(&s, 1);
    kt_sampler_accept(&s, 1);
    cr_expect_eq(kt_sampler_pick(&s, logits, NULL), 4); /* 2.7 against 2.4 and 2.5 */
    kt_sampler_deinit(&s);

    o.frequency_penalty = 0;
    o.repetition_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, VOCAB), 0);
    for (int i = 0; i < VOCAB; i++)
        if (i != 2) kt_sampler_accept(&s, i);
    cr_expect_eq(kt_sampler_pick(&s, logits, NULL), 1); /* 3 / 2, still over all */
    kt_sampler_deinit(&s);
}

Test(sampler, same_seed_same_tokens) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler a, b;

    o.temperature = 1;
    o.seed = 77;
    o.top_p = 0.95f;
    cr_assert_eq(kt_sampler_init(&a, &o, VOCAB), 0);
    cr_assert_eq(kt_sampler_init(&b, &o, VOCAB), 0);
    for (int i = 0; i < 200; i++)
        cr_assert_eq(kt_sampler_pick(&a, logits, NULL), kt_sampler_pick(&b, logits, NULL));
    kt_sampler_deinit(&a);
    kt_sampler_deinit(&b);
}

Test(sampler, logits_that_are_not_numbers_are_survived) {
    const float bad[3] = {NAN, -INFINITY, 1}, none[3] = {NAN, NAN, NAN}, top[3] = {0, INFINITY, 1};
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler s;

    for (int t = 0; t < 3; t++) {
        o.temperature = (float)t;
        o.top_k = t == 2 ? 2 : 0;
        cr_assert_eq(kt_sampler_init(&s, &o, 3), 0);
        cr_expect_eq(kt_sampler_pick(&s, bad, NULL), 2);
        cr_expect_eq(kt_sampler_pick(&s, none, NULL), 0);
        cr_expect_eq(kt_sampler_pick(&s, top, NULL), 1);
        kt_sampler_deinit(&s);
    }
}
