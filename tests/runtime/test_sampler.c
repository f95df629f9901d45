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
    static const int best6[] = {1, 4, 3, 7, 9, 6};
    kt_sampling o = KT_SAMPLING_GREEDY;

    o.temperature = 1;
    o.seed = 6;
    o.top_p = 0.7f;
    check(&o, 1, best3, 3, "top-p");
    o.top_p = 0.0f;
    check(&o, 1, best2, 1, "top-p of nothing keeps the best");
    o.top_p = 1;
    o.min_p = 0.22f; /* relative to the best: token 9 has 0.2231 of it, token 6 0.1353 */
    check(&o, 1, best5, 5, "min-p");
    o.min_p = 0.225f;
    check(&o, 1, best5, 4, "min-p just over the fifth");
    o.min_p = 0.135f;
    check(&o, 1, best6, 6, "min-p just under the sixth");
    o.temperature = 2; /* what min-p looks at are the weights that are drawn from */
    o.min_p = 0.47f;   /* token 9 has 0.4724, token 6 0.3679 */
    check(&o, 2, best5, 5, "min-p at another temperature");
    o.temperature = 1;
    o.top_p = 0.7f;
    o.min_p = 0.5f;
    check(&o, 1, best3, 3, "min-p after top-p");
    o.top_p = 1;
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

/* A repetition penalty moves positive logits towards zero and negative ones away from it (Keskar et al. 2019). */
Test(sampler, repetition_penalty_never_favours) {
    static const float both[4] = {-1.0f, -1.5f, -8.0f, -9.0f}, mixed[3] = {0.5f, 0.3f, -0.1f};
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler s;

    o.repetition_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, 4), 0);
    cr_expect_eq(kt_sampler_pick(&s, both, NULL), 0);
    kt_sampler_accept(&s, 0);
    cr_expect_eq(kt_sampler_pick(&s, both, NULL), 1, "-1 * 2 is below -1.5");
    kt_sampler_accept(&s, 1);
    cr_expect_eq(kt_sampler_pick(&s, both, NULL), 0, "-2 is over -3");
    kt_sampler_deinit(&s);

    cr_assert_eq(kt_sampler_init(&s, &o, 3), 0);
    kt_sampler_accept(&s, 0);
    cr_expect_eq(kt_sampler_pick(&s, mixed, NULL), 1, "0.5 / 2 is below 0.3");
    kt_sampler_accept(&s, 0); /* counts once, however often */
    kt_sampler_accept(&s, 1);
    cr_expect_eq(kt_sampler_pick(&s, mixed, NULL), 0, "0.25 is over 0.15");
    kt_sampler_deinit(&s);
}

Test(sampler, same_seed_same_tokens) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler a, b, c;
    int differing = 0;

    o.temperature = 1;
    o.seed = 77;
    o.top_p = 0.95f;
    cr_assert_eq(kt_sampler_init(&a, &o, VOCAB), 0);
    cr_assert_eq(kt_sampler_init(&b, &o, VOCAB), 0);
    o.seed = 78;
    cr_assert_eq(kt_sampler_init(&c, &o, VOCAB), 0);
    for (int i = 0; i < 200; i++) {
        int32_t id = kt_sampler_pick(&a, logits, NULL);
        cr_assert_eq(kt_sampler_pick(&b, logits, NULL), id);
        differing += kt_sampler_pick(&c, logits, NULL) != id;
    }
    cr_expect_gt(differing, 100, "another seed drew the same %d times of 200", 200 - differing);
    kt_sampler_deinit(&c);
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
