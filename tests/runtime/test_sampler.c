/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "runtime/sample/logit_pass.h"
#include "runtime/sample/sampler.h"

#define VOCAB 12

static const float logits[VOCAB] = {0.5f, 3.0f, -1.0f, 2.5f, 3.0f, 0.0f,
                                    1.0f, 2.0f, -4.0f, 1.5f, 0.2f, -0.3f};

static kt_sampler_scratch scratch; /* a test is a process of its own */
static int32_t many_ids[20];
static float many[20];

static int32_t pick(kt_sampler *s, const float *x) {
    return kt_sampler_pick(s, x, NULL, &scratch);
}

/* Frequencies of `draws` picks. */
static void histogram(const kt_sampling *o, int draws, double *share) {
    kt_sampler s;
    int counts[VOCAB] = {0};

    cr_assert_eq(kt_sampler_init(&s, o, NULL, 0, VOCAB), 0);
    for (int i = 0; i < draws; i++) counts[pick(&s, logits)]++;
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
    float logprob, want = 0, top[3];
    int32_t ids[3];

    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    cr_expect_eq(pick(&s, logits), 1);
    for (int i = 0; i < VOCAB; i++) want += expf(logits[i]);
    cr_expect_eq(kt_sampler_logprobs(logits, VOCAB, 3, 3, &logprob, ids, top, &scratch), 3);
    cr_expect_float_eq(logprob, 2.5f - logf(want), 1e-5);
    cr_expect(ids[0] == 1 && ids[1] == 4 && ids[2] == 3);
    cr_expect_float_eq(top[0], 3.0f - logf(want), 1e-5);
    cr_expect_float_eq(top[2], 2.5f - logf(want), 1e-5);
    cr_expect_eq(kt_sampler_logprobs(logits, VOCAB, 3, 20, &logprob, many_ids, many, &scratch),
                 VOCAB, "more than there are");
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

/* Shares at temperature 1: tokens 1 and 4 have 0.279 each, 3 has 0.169, 7 has 0.103, 9 has 0.062.
 */
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
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    kt_sampler_accept(&s, 1);
    cr_expect_eq(pick(&s, logits), 4); /* 3.0 - 0.6 < 3.0 */
    kt_sampler_accept(&s, 4);
    cr_expect_eq(pick(&s, logits), 3); /* both at 2.4 < 2.5 */
    kt_sampler_accept(&s, -1);
    kt_sampler_accept(&s, VOCAB); /* ignored */
    kt_sampler_deinit(&s);

    o.presence_penalty = 0;
    o.frequency_penalty = 0.3f;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    kt_sampler_accept(&s, 4);
    kt_sampler_accept(&s, 1);
    kt_sampler_accept(&s, 1);
    cr_expect_eq(pick(&s, logits), 4); /* 2.7 against 2.4 and 2.5 */
    kt_sampler_deinit(&s);

    o.frequency_penalty = 0;
    o.repetition_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    for (int i = 0; i < VOCAB; i++)
        if (i != 2) kt_sampler_accept(&s, i);
    cr_expect_eq(pick(&s, logits), 1); /* 3 / 2, still over all */
    kt_sampler_deinit(&s);
}

/* A repetition penalty moves positive logits towards zero and negative ones away from it (Keskar et
 * al. 2019). */
Test(sampler, repetition_penalty_never_favours) {
    static const float both[4] = {-1.0f, -1.5f, -8.0f, -9.0f}, mixed[3] = {0.5f, 0.3f, -0.1f};
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler s;

    o.repetition_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, 4), 0);
    cr_expect_eq(pick(&s, both), 0);
    kt_sampler_accept(&s, 0);
    cr_expect_eq(pick(&s, both), 1, "-1 * 2 is below -1.5");
    kt_sampler_accept(&s, 1);
    cr_expect_eq(pick(&s, both), 0, "-2 is over -3");
    kt_sampler_deinit(&s);

    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, 3), 0);
    kt_sampler_accept(&s, 0);
    cr_expect_eq(pick(&s, mixed), 1, "0.5 / 2 is below 0.3");
    kt_sampler_accept(&s, 0); /* counts once, however often */
    kt_sampler_accept(&s, 1);
    cr_expect_eq(pick(&s, mixed), 0, "0.25 is over 0.15");
    kt_sampler_deinit(&s);
}

Test(sampler, same_seed_same_tokens) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    kt_sampler a, b, c;
    int differing = 0;

    o.temperature = 1;
    o.seed = 77;
    o.top_p = 0.95f;
    cr_assert_eq(kt_sampler_init(&a, &o, NULL, 0, VOCAB), 0);
    cr_assert_eq(kt_sampler_init(&b, &o, NULL, 0, VOCAB), 0);
    o.seed = 78;
    cr_assert_eq(kt_sampler_init(&c, &o, NULL, 0, VOCAB), 0);
    for (int i = 0; i < 200; i++) {
        int32_t id = pick(&a, logits);
        cr_assert_eq(pick(&b, logits), id);
        differing += pick(&c, logits) != id;
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
        cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, 3), 0);
        cr_expect_eq(pick(&s, bad), 2);
        cr_expect_eq(pick(&s, none), 0);
        cr_expect_eq(pick(&s, top), 1);
        kt_sampler_deinit(&s);
    }
}

/* ---- against a plain reference in double ---- */

enum { BIG = 5000, MOST = 200000 };

typedef struct reference {
    double logit[BIG];
    int order[BIG]; /* descending, lower id first */
    double p[BIG];  /* what is drawn from, 0 for what is filtered out */
} reference;

static const double *sort_by;

static int descending(const void *a, const void *b) {
    const int x = *(const int *)a, y = *(const int *)b;
    if (sort_by[x] != sort_by[y]) return sort_by[x] > sort_by[y] ? -1 : 1;
    return x - y;
}

/* Mask, bias, penalties, temperature, top-k, top-p, min-p, in plain double. */
static void refer(const kt_sampling *o, const float *x, int n, const uint64_t *mask,
                  const kt_token_bias *bias, int n_bias, const int *prompt, const int *made,
                  reference *r) {
    int most = o->top_k > 0 && o->top_k < n ? o->top_k : n, kept = 0;
    double total = 0, sum = 0, top;

    for (int i = 0; i < n; i++) {
        float l = x[i];
        for (int k = 0; k < n_bias; k++)
            if (bias[k].id == i) l += bias[k].bias;
        if (prompt[i] || made[i]) l = l > 0 ? l / o->repetition_penalty : l * o->repetition_penalty;
        if (made[i]) l -= o->presence_penalty + o->frequency_penalty * (float)made[i];
        r->logit[i] = mask && !(mask[i / 64] >> (i % 64) & 1) ? -INFINITY : (double)l;
        r->order[i] = i;
        r->p[i] = 0;
    }
    sort_by = r->logit;
    qsort(r->order, (size_t)n, sizeof *r->order, descending);
    top = r->logit[r->order[0]];
    for (int i = 0; i < most; i++) total += exp((r->logit[r->order[i]] - top) / o->temperature);
    for (int i = 0; i < most; i++) {
        const double w = exp((r->logit[r->order[i]] - top) / o->temperature);
        if (i > 0 && (sum >= o->top_p * total || w < o->min_p || w <= 0)) break;
        r->p[r->order[i]] = w;
        sum += w;
        kept++;
    }
    for (int i = 0; i < n; i++) r->p[i] /= sum;
}

/* Draw often: nothing that the reference leaves out, everything that it holds for likely, and each
 * share within five standard deviations of the reference's. */
static void compare(const kt_sampling *o, const float *x, int n, const uint64_t *mask,
                    const char *what) {
    enum { DRAWS = 1000 };
    static const kt_token_bias bias[] = {{700, 3.5f}, {17, -2.0f}, {64, 1.0f}, {17, -0.5f}};
    static reference r;
    static int prompt[BIG], made[BIG], count[BIG];
    const int32_t said[] = {3, 64, 64, 4000, 900}, heard[] = {5, 5, 900, 128, 2};
    kt_sampler s;

    memset(prompt, 0, sizeof prompt), memset(made, 0, sizeof made), memset(count, 0, sizeof count);
    cr_assert_eq(kt_sampler_init(&s, o, bias, 4, n), 0);
    for (size_t i = 0; i < 5; i++) {
        prompt[heard[i]] = 1;
        if (said[i] < n) made[said[i]]++;
        cr_assert_eq(kt_sampler_accept(&s, said[i]), 0);
    }
    cr_assert_eq(kt_sampler_accept_prompt(&s, heard, 5), 0);
    refer(o, x, n, mask, bias, 4, prompt, made, &r);
    for (int i = 0; i < DRAWS; i++) {
        const int32_t id = kt_sampler_pick(&s, x, mask, &scratch);
        cr_assert(id >= 0 && id < n && r.p[id] > 0, "%s: token %d, which is filtered out", what,
                  id);
        count[id]++;
    }
    for (int i = 0; i < n; i++) {
        const double share = (double)count[i] / DRAWS;
        cr_assert_leq(fabs(share - r.p[i]), 5 * sqrt(r.p[i] * (1 - r.p[i]) / DRAWS) + 5.0 / DRAWS,
                      "%s: token %d drawn %g of the time, expected %g", what, i, share, r.p[i]);
    }
    kt_sampler_deinit(&s);
}

Test(sampler, agrees_with_a_reference_in_double, .timeout = 60) {
    static float x[BIG];
    static uint64_t mask[(BIG + 63) / 64];
    static const int sizes[] = {901, 4096, BIG};
    kt_rng rng;
    char what[160];

    kt_rng_seed(&rng, 3);
    for (int round = 0; round < 36; round++) {
        const int n = sizes[round % 3];
        const float width = round % 2 ? 4 : 0.3f; /* peaked and flat */
        kt_sampling o = {.temperature = round % 5 ? 0.7f : 1.3f,
                         .top_k = round % 4 == 1   ? 20
                                  : round % 4 == 3 ? 300
                                                   : 0,
                         .top_p = round % 3 == 2 ? 1 : 0.9f,
                         .min_p = round % 7 == 3 ? 0.05f : 0,
                         .repetition_penalty = round % 2 ? 1.3f : 1,
                         .presence_penalty = round % 3 ? 0.4f : 0,
                         .frequency_penalty = round % 5 == 2 ? 0.3f : 0,
                         .seed = (uint64_t)round};
        for (int i = 0; i < n; i++) x[i] = width * kt_rng_normal(&rng);
        for (int i = 0; i < n; i += round % 6 == 5 ? 1 : 7) /* some equals, or nothing else */
            x[i] = floorf(x[i] * 4) / 4;
        for (int i = 0; i < (n + 63) / 64; i++)
            mask[i] = round % 9 == 4 ? kt_rng_u64(&rng) & kt_rng_u64(&rng) : UINT64_MAX;
        snprintf(what, sizeof what, "round %d: n %d, top_k %d, top_p %g, min_p %g", round, n,
                 o.top_k, (double)o.top_p, (double)o.min_p);
        compare(&o, x, n, round % 9 == 4 ? mask : NULL, what);
    }
}

/* Flat enough that no thousand tokens make up the share. */
Test(sampler, keeps_the_exact_set_of_a_flat_distribution, .timeout = 60) {
    static float x[MOST];
    static double w[MOST];
    static int order[MOST];
    kt_sampling o = {.temperature = 1, .top_p = 0.6f, .repetition_penalty = 1, .seed = 8};
    double total = 0, kept = 0, last = 0;
    int n_kept = 0, n_inside = 0;
    kt_sampler s;
    kt_rng rng;

    kt_rng_seed(&rng, 4);
    for (int i = 0; i < MOST; i++) {
        x[i] = kt_rng_normal(&rng);
        w[i] = exp((double)x[i]);
        total += w[i];
        order[i] = i;
    }
    sort_by = w;
    qsort(order, MOST, sizeof *order, descending);
    while (kept < 0.6 * total) kept += last = w[order[n_kept++]];
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, MOST), 0);
    for (int i = 0; i < 1000; i++) {
        const int32_t id = pick(&s, x);
        cr_assert_geq(w[id], last * (1 - 1e-5), "token %d of weight %g, the last kept has %g", id,
                      w[id], last);
        n_inside += w[id] > w[order[n_kept / 2]];
    }
    kept = 0;
    for (int i = 0; i < n_kept / 2; i++) kept += w[order[i]];
    cr_expect_float_eq(n_inside / 1000.0, kept / (0.6 * total), 0.08);
    kt_sampler_deinit(&s);
}

/* The share ends among equals: those of the lowest ids belong to it, as many as are needed. */
Test(sampler, keeps_the_first_of_equals) {
    static const struct {
        float p;
        int n_best, n_kept; /* of 1000: so many have the best logit, ln 2 over that of the rest */
    } cases[] = {{0.125f, 0, 125}, {0.0999f, 0, 100}, {0.1001f, 0, 101}, {0.00001f, 0, 1},
                 {0.5f, 0, 500},   {0.9985f, 0, 999}, {0.25f, 500, 188}, {0.7499f, 500, 625},
                 {0.75f, 1, 750},  {0.0005f, 1, 1},   {0, 2, 1}};
    static float x[1000];

    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        kt_sampling o = {.temperature = 1, .top_p = cases[c].p, .repetition_penalty = 1, .seed = 9};
        int n_best = cases[c].n_best, n_kept = cases[c].n_kept, highest = 0;
        kt_sampler s;
        for (int i = 0; i < 1000; i++) x[i] = i >= 1000 - n_best ? -4 + logf(2) : -4;
        cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, 1000), 0);
        for (int i = 0; i < 5000; i++) { /* its rank: the best come first */
            const int32_t id = pick(&s, x);
            const int rank = id >= 1000 - n_best ? id - (1000 - n_best) : n_best + id;
            cr_assert_lt(rank, n_kept, "case %zu: the token of rank %d", c, rank);
            if (rank > highest) highest = rank;
        }
        cr_expect_geq(highest, n_kept - 1 - n_kept / 50, "case %zu: none over %d", c, highest);
        kt_sampler_deinit(&s);
    }
}

/* More tokens than there are blocks of 64: the k largest, and of equals the first. */
Test(sampler, a_large_top_k_keeps_exactly_so_many) {
    enum { N = 6400, K = 500 };
    static float x[N];
    static int seen[N];
    kt_sampling o = {.temperature = 50, .top_k = K, .top_p = 1, .repetition_penalty = 1, .seed = 2};
    kt_sampler s;
    int n = 0;

    for (int i = 0; i < N; i++) x[i] = (float)(i * 37 % 64); /* 100 tokens of each logit */
    x[7] = NAN;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, N), 0);
    for (int i = 0; i < 40000; i++) {
        const int32_t id = pick(&s, x);
        cr_assert_geq(x[id], 59, "token %d of logit %g", id, (double)x[id]);
        n += !seen[id];
        seen[id] = 1;
    }
    cr_expect_eq(n, K);
    kt_sampler_deinit(&s);
}

/* What is kept of weights that are there is what weighing again keeps, bit by bit. */
static void check_sum_over(const kt_logit_pass *pass, float *x, kt_logit_cut cut, float over,
                           const char *name) {
    float w[KT_LOGIT_BLOCK];
    int64_t equals = 5, want = 5;
    double got;

    if (isnan(over)) return;
    x[3] = x[40] = over; /* some equals, in different lanes */
    cut.least = -INFINITY;
    pass->weigh(x, &cut, w);
    for (int i = 0; i < KT_LOGIT_BLOCK; i++) want += x[i] == over;
    got = pass->sum_over(x, w, over, &equals);
    cut.least = nextafterf(over, INFINITY);
    cr_assert_eq(got, pass->weigh(x, &cut, NULL), "%s: the sum over %g", name, (double)over);
    cr_assert_eq(equals, want, "%s: %d of %g, expected %d", name, (int)equals - 5, (double)over,
                 (int)want - 5);
}

static void check_pass(const kt_logit_pass *pass, const char *name) {
    const kt_logit_cut cuts[] = {{3, 1, -INFINITY}, {2.5f, 1.7f, -1}, {2.5f, 0.001f, 0.5f}};
    float x[KT_LOGIT_BLOCK], out[KT_LOGIT_BLOCK];
    kt_rng rng;

    kt_rng_seed(&rng, 12);
    for (int round = 0; round < 300; round++) {
        const kt_logit_cut cut = cuts[round % 3];
        double sum = 0, got;
        float most = -INFINITY;
        for (int i = 0; i < KT_LOGIT_BLOCK; i++) {
            const float l = 40 * kt_rng_uniform(&rng, -1, 1) * kt_rng_uniform(&rng, 0, 1);
            x[i] = l < cut.top ? l : cut.top;
            if (round % 5 == 1 && i % 3 == 0) x[i] = i % 2 ? NAN : -INFINITY;
            if (x[i] > most) most = x[i];
        }
        cr_assert_eq(pass->maximum(x), most, "%s: maximum %g", name, (double)pass->maximum(x));
        got = pass->weigh(x, &cut, out);
        cr_assert_eq(pass->weigh(x, &cut, NULL), got);
        for (int i = 0; i < KT_LOGIT_BLOCK; i++) {
            const double away = ((double)x[i] - cut.top) * cut.scale;
            const double want = x[i] >= cut.least ? exp(away) : 0;
            const double error = want > 0 ? want * (3e-7 - away * 0x1p-23) : 0;
            sum += want;
            cr_assert_leq(fabs(out[i] - want), error + 0x1p-125, "%s: weight %g of %g, expected %g",
                          name, (double)out[i], (double)x[i], want);
        }
        cr_assert_leq(fabs(got - sum), sum * (9e-7 + 80 * 0x1p-23), "%s: sum %g, expected %g", name,
                      got, sum);
        check_sum_over(pass, x, cut, x[round % KT_LOGIT_BLOCK], name);
    }
}

Test(sampler, every_instruction_set_weighs_alike) {
    const kt_isa isa = kt_isa_available();

    check_pass(&kt_logit_pass_sse2, "sse2");
    if (isa & KT_ISA_AVX2) check_pass(&kt_logit_pass_avx2, "avx2");
    if (isa & KT_ISA_AVX512) check_pass(&kt_logit_pass_avx512, "avx512");
}

Test(sampler, masks_and_biases_forbid) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    const kt_token_bias bias[] = {{1, -100}, {4, -5}, {99, 5}, {-1, 5}};
    const uint64_t some = 1u << 2 | 1u << 8, none = 0;
    kt_sampler s;

    cr_assert_eq(kt_sampler_init(&s, &o, bias, 4, VOCAB), 0);
    cr_expect_eq(pick(&s, logits), 3);
    cr_expect_eq(kt_sampler_pick(&s, logits, &some, &scratch), 2);
    cr_expect_eq(kt_sampler_pick(&s, logits, &none, &scratch), -1);
    s.options.temperature = 1;
    for (int i = 0; i < 100; i++) {
        const int32_t id = kt_sampler_pick(&s, logits, &some, &scratch);
        cr_assert(id == 2 || id == 8, "%d", id);
        cr_assert_neq(pick(&s, logits), 1);
    }
    kt_sampler_deinit(&s);
}

/* The prompt counts for the repetition penalty alone. */
Test(sampler, the_prompt_is_not_what_was_said) {
    kt_sampling o = KT_SAMPLING_GREEDY;
    const int32_t prompt[] = {1, 4, 1};
    kt_sampler s;

    o.presence_penalty = 2, o.frequency_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    cr_assert_eq(kt_sampler_accept_prompt(&s, prompt, 3), 0);
    cr_expect_eq(pick(&s, logits), 1);
    kt_sampler_deinit(&s);
    o.repetition_penalty = 1.01f; /* 2.97 is over 2.5 */
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    cr_assert_eq(kt_sampler_accept_prompt(&s, prompt, 3), 0);
    cr_expect_eq(pick(&s, logits), 1);
    kt_sampler_deinit(&s);
    o.presence_penalty = o.frequency_penalty = 0, o.repetition_penalty = 2;
    cr_assert_eq(kt_sampler_init(&s, &o, NULL, 0, VOCAB), 0);
    cr_assert_eq(kt_sampler_accept_prompt(&s, prompt, 3), 0);
    cr_expect_eq(pick(&s, logits), 3);
    kt_sampler_deinit(&s);
}

/* Every mode at Qwen3's vocabulary picks a token of it; KT_MEASURE=1 prints what one costs, which
 * proves nothing here: other processes run beside tests. */
Test(sampler, cost_of_a_token, .timeout = 60) {
    static const struct {
        const char *name;
        kt_sampling o;
    } cases[] = {{"greedy", {0, 0, 1, 0, 1, 0, 0, 1}},
                 {"plain temperature", {1, 0, 1, 0, 1, 0, 0, 1}},
                 {"top-k 20, top-p 0.95 (Qwen3)", {0.6f, 20, 0.95f, 0, 1, 0, 0, 1}},
                 {"the same with penalties", {0.6f, 20, 0.95f, 0, 1.1f, 0.5f, 0.1f, 1}},
                 {"top-p 0.95", {1, 0, 0.95f, 0, 1, 0, 0, 1}},
                 {"top-p 0.5", {1, 0, 0.5f, 0, 1, 0, 0, 1}},
                 {"top-p 0.95 with penalties", {1, 0, 0.95f, 0, 1.1f, 0.5f, 0.1f, 1}},
                 {"min-p 0.05", {1, 0, 1, 0.05f, 1, 0, 0, 1}}};
    enum { N = 151936 };
    const int rounds = getenv("KT_MEASURE") ? 10 : 1, picks = rounds > 1 ? 40 : 4;
    static float x[2][N];
    static int32_t prompt[2000];
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int i = 0; i < N; i++) x[0][i] = 3 * (x[1][i] = kt_rng_normal(&rng));
    for (int i = 0; i < 2000; i++) prompt[i] = (int32_t)kt_rng_below(&rng, N);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++)
        for (int flat = 0; flat < 2; flat++) {
            int64_t start, best = INT64_MAX;
            kt_sampler s;
            cr_assert_eq(kt_sampler_init(&s, &cases[c].o, NULL, 0, N), 0);
            cr_assert_eq(kt_sampler_accept_prompt(&s, prompt, 2000), 0);
            for (int round = 0; round < rounds; round++) {
                start = kt_clock_ns();
                for (int i = 0; i < picks; i++) {
                    const int32_t token = pick(&s, x[flat]);
                    cr_expect(token >= 0 && token < N, "%s picks %d", cases[c].name, (int)token);
                    kt_sampler_accept(&s, token);
                }
                start = kt_clock_ns() - start;
                if (start < best) best = start;
            }
            if (rounds > 1)
                fprintf(stderr, "%-30s %s logits %7.1f us a token\n", cases[c].name,
                        flat ? "flat (sigma 1)  " : "usual (sigma 3)", (double)best * 1e-3 / picks);
            kt_sampler_deinit(&s);
        }
}
