/* Rounds, halving and the never-worse rule with a stopwatch that is a simulation.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tuner/search/strategy.h"

enum { MOST = 256 };

/* Contender i costs cost[i], times exp(noise * normal), plus now and then a spike. Time passes as the
 * samples say. */
typedef struct fake {
    double cost[MOST];
    double noise, spike_chance;
    double now_ns;
    int64_t disturbed;      /* grows by one per sample while disturbing */
    int disturb_every;      /* 0 = never: else each n-th sample is disturbed */
    int samples, per[MOST]; /* taken, of each contender */
    int stop_after;         /* samples; 0 = never */
    kt_rng rng;
} fake;

static double fake_sample(void *arg, int i) {
    fake *f = arg;
    double ns = f->cost[i] * exp(f->noise * (double)kt_rng_normal(&f->rng));
    if (kt_rng_double(&f->rng) < f->spike_chance) ns *= 3;
    f->samples++;
    f->per[i]++;
    f->now_ns += ns;
    if (f->disturb_every && f->samples % f->disturb_every == 0) f->disturbed++;
    return ns;
}
static double fake_predict(void *arg, int i) {
    return ((fake *)arg)->cost[i];
}
static int64_t fake_now(void *arg) {
    return (int64_t)((fake *)arg)->now_ns;
}
static int64_t fake_disturbances(void *arg) {
    return ((fake *)arg)->disturbed;
}
static bool fake_stop(void *arg) {
    fake *f = arg;
    return f->stop_after && f->samples >= f->stop_after;
}

static kt_stopwatch watch_of(fake *f) {
    return (kt_stopwatch){.arg = f,
                          .sample = fake_sample,
                          .predict_ns = fake_predict,
                          .now_ns = fake_now,
                          .disturbances = fake_disturbances,
                          .stop = fake_stop};
}

/* n contenders that all cost 1e5; the noise of this kind of machine. */
static void fake_init(fake *f, int n, uint64_t seed) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < n; i++) f->cost[i] = 1e5;
    f->noise = 0.03;
    f->spike_chance = 0.02;
    kt_rng_seed(&f->rng, seed);
}

static kt_status decide(fake *f, int n, int standard, int warm, const char *strategy, uint64_t seed,
                        int64_t deadline_ns, kt_verdict *out) {
    kt_stopwatch watch = watch_of(f);
    kt_contest c = {.watch = &watch,
                    .n = n,
                    .default_index = standard,
                    .warm_index = warm,
                    .deadline_ns = deadline_ns,
                    .seed = seed};
    return kt_contest_decide(&c, kt_strategy_find(strategy), out, NULL);
}

Test(race, halving_finds_the_best_without_noise) {
    for (int best = 0; best < 40; best += 3) {
        fake f;
        kt_verdict v;
        fake_init(&f, 40, 1);
        f.noise = f.spike_chance = 0;
        for (int i = 0; i < 40; i++) f.cost[i] = 1e5 * (1 + 0.02 * abs(i - best));
        cr_assert_eq(decide(&f, 40, 39, -1, "auto", 7, INT64_MAX, &v), KT_OK);
        cr_expect_eq(v.winner, best, "found %d instead of %d", v.winner, best);
        cr_expect_eq(v.is_tuned, best != 39);
        cr_expect_eq(v.winner_ns, 1e5);
        if (v.is_tuned) cr_expect(v.n_runners >= 1 && v.runner[0] != v.winner);
    }
}

/* Steps of 1 %: the evidence behind the method has 0.2 % mean regret and 1 % at the 95th percentile. */
Test(race, halving_has_little_regret_under_noise) {
    double regret = 0;
    int far = 0;
    for (uint64_t seed = 1; seed <= 100; seed++) {
        fake f;
        kt_verdict v;
        fake_init(&f, 16, seed);
        for (int i = 0; i < 16; i++) f.cost[i] = 1e5 * (1 + 0.01 * ((i * 7) % 16));
        cr_assert_eq(decide(&f, 16, 15, -1, "auto", seed, INT64_MAX, &v), KT_OK);
        regret += f.cost[v.winner] / 1e5 - 1;
        far += f.cost[v.winner] > 1.025e5;
    }
    cr_expect(regret / 100 < 0.01, "mean regret %.2f %%", regret);
    cr_expect(far <= 5, "%d of 100 are over 2.5 %% from the best", far);
}

/* A/A: whatever is equal to the default never replaces it. */
Test(race, equal_contenders_never_win) {
    for (uint64_t seed = 1; seed <= 300; seed++) {
        fake f;
        kt_verdict v;
        fake_init(&f, 8, seed);
        cr_assert_eq(decide(&f, 8, (int)(seed % 8), -1, "auto", seed, INT64_MAX, &v), KT_OK);
        cr_expect(!v.is_tuned && v.winner == (int)(seed % 8), "seed %d: %d beats its equal",
                  (int)seed, v.winner);
    }
}

/* Never worse: contenders slower than the default do not replace it, however lucky one was. */
Test(race, slower_contenders_never_win) {
    for (uint64_t seed = 1; seed <= 100; seed++) {
        fake f;
        kt_verdict v;
        fake_init(&f, 64, seed);
        f.noise = 0.06;
        for (int i = 1; i < 64; i++) f.cost[i] = 1.01e5;
        cr_assert_eq(decide(&f, 64, 0, -1, "auto", seed, INT64_MAX, &v), KT_OK);
        cr_expect(!v.is_tuned, "seed %d: %d", (int)seed, v.winner);
    }
}

Test(race, a_real_gain_is_found_and_measured) {
    int found = 0;
    for (uint64_t seed = 1; seed <= 50; seed++) {
        fake f;
        kt_verdict v;
        fake_init(&f, 12, seed);
        f.cost[5] = 0.93e5;
        cr_assert_eq(decide(&f, 12, 0, -1, "auto", seed, INT64_MAX, &v), KT_OK);
        if (!v.is_tuned) continue;
        found++;
        cr_expect_eq(v.winner, 5);
        cr_expect(v.gain.low > 0 && v.gain.low <= v.gain.point && v.gain.point <= v.gain.high);
        cr_expect(fabs(v.gain.point + log(0.93)) < 0.03, "gain %.3f", v.gain.point);
        cr_expect(fabs(v.winner_ns / 0.93e5 - 1) < 0.05);
        cr_expect(v.spread.low <= 1 && v.spread.high >= 1);
    }
    cr_expect(found >= 48, "7 %% gain found in %d of 50", found);
}

Test(race, the_holdout_rule_wants_one_percent_and_certainty) {
    double a[30], b[30];
    kt_interval gain;
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int i = 0; i < 30; i++) a[i] = 1e5, b[i] = 0.995e5;
    cr_expect(!kt_challenger_wins(a, b, 30, &rng, &gain), "0.5 %% is certain but too little");
    for (int i = 0; i < 30; i++) b[i] = 0.985e5;
    cr_expect(kt_challenger_wins(a, b, 30, &rng, &gain), "1.5 %% in every round");
    for (int i = 0; i < 30; i++) b[i] = i % 5 < 2 ? 1.2e5 : 0.98e5;
    cr_expect(!kt_challenger_wins(a, b, 30, &rng, &gain), "slower in two rounds of five");
}

Test(race, every_strategy_decides_and_keeps_the_default_in) {
    for (size_t s = 0; s < kt_builtin_strategy_count; s++) {
        fake f;
        kt_verdict v;
        fake_init(&f, 100, 5);
        for (int i = 0; i < 100; i++) f.cost[i] = 1e5 * (1.5 + 0.01 * i);
        f.cost[77] = 1e5; /* the default is the best by far */
        cr_assert_eq(decide(&f, 100, 77, 3, kt_builtin_strategies[s]->name, 1, INT64_MAX, &v),
                     KT_OK);
        cr_expect_eq(v.winner, 77, "%s", kt_builtin_strategies[s]->name);
        cr_expect_gt(f.per[77], 0);
    }
}

/* Slow cells: a third of the race's rounds, the same rules. A holdout takes more steps then, as fewer pairs
 * show less, so that of the whole a third is saved. */
Test(race, a_shortened_contest_costs_less_and_stays_honest) {
    int found[2] = {0}, samples[2] = {0};
    for (int i = 0; i < 40; i++) {
        fake f;
        kt_verdict v;
        kt_stopwatch watch = watch_of(&f);
        kt_contest c = {.watch = &watch,
                        .n = 4,
                        .warm_index = -1,
                        .deadline_ns = INT64_MAX,
                        .seed = 3,
                        .shorten = i % 2 ? 3 : 1};
        fake_init(&f, 4, (uint64_t)(i / 2 + 1));
        f.cost[2] = 0.96e5;
        cr_assert_eq(kt_contest_decide(&c, kt_strategy_find("auto"), &v, NULL), KT_OK);
        found[i % 2] += v.is_tuned && v.winner == 2;
        samples[i % 2] += f.samples;
    }
    cr_expect_geq(found[0], 18, "%d of 20", found[0]);
    cr_expect_geq(found[1], 10, "%d of 20", found[1]);
    cr_expect_leq(samples[1], samples[0] * 2 / 3, "%d of %d samples", samples[1], samples[0]);
    for (uint64_t seed = 1; seed <= 200; seed++) {
        fake f;
        kt_verdict v;
        kt_stopwatch watch = watch_of(&f);
        kt_contest c = {.watch = &watch,
                        .n = 4,
                        .warm_index = -1,
                        .deadline_ns = INT64_MAX,
                        .seed = seed,
                        .shorten = 3};
        fake_init(&f, 4, seed);
        cr_assert_eq(kt_contest_decide(&c, kt_strategy_find("auto"), &v, NULL), KT_OK);
        cr_expect_not(v.is_tuned, "seed %d", (int)seed);
    }
}

Test(race, a_warm_start_is_always_in_the_race) {
    fake f;
    kt_verdict v;
    fake_init(&f, 250, 1);
    f.noise = 0.01;
    f.cost[201] = 0.8e5;
    cr_assert_eq(decide(&f, 250, 0, 201, "auto", 1, INT64_MAX, &v), KT_OK);
    cr_expect_eq(v.winner, 201);
}

Test(race, halving_spends_its_time_on_the_good_ones) {
    fake f;
    kt_verdict v;
    fake_init(&f, 60, 1);
    for (int i = 1; i < 60; i++) f.cost[i] = i < 5 ? 0.98e5 + i * 1e3 : 5e5;
    cr_assert_eq(decide(&f, 60, 0, -1, "auto", 1, INT64_MAX, &v), KT_OK);
    for (int i = 5; i < 60; i++)
        cr_expect_leq(f.per[i], 2, "contender %d, five times slower, ran %d times", i, f.per[i]);
}

/* The budget is hard: no sample starts that would end after it. */
Test(race, no_sample_passes_the_deadline) {
    for (int64_t deadline = 0; deadline <= 20000000; deadline += 700000) {
        fake f;
        kt_verdict v;
        kt_status st;
        fake_init(&f, 10, 2);
        f.noise = f.spike_chance = 0;
        st = decide(&f, 10, 0, -1, "auto", 1, deadline, &v);
        cr_expect(st == KT_OK || st == KT_E_CANCELLED);
        cr_expect(f.now_ns <= (double)deadline, "%.0f of %lld ns", f.now_ns, (long long)deadline);
        if (deadline < 5000000) cr_expect_eq(st, KT_E_CANCELLED);
    }
}

Test(race, stopping_drops_the_broken_round_only) {
    static const int live[] = {0, 1, 2};
    fake f;
    kt_samples s;
    kt_stopwatch watch = watch_of(&f);
    kt_rng rng;

    fake_init(&f, 3, 1);
    f.stop_after = 10;
    kt_rng_seed(&rng, 1);
    cr_assert_eq(kt_samples_create(3, &s, NULL), KT_OK);
    cr_expect_eq(kt_rounds_run(&watch, &s, live, 3, 20, INT64_MAX, &rng), KT_E_CANCELLED);
    cr_expect_eq(f.samples, 10);
    cr_expect_eq(s.n_rounds, 3);
    cr_expect_eq(kt_samples_pairs(&s, 0, 2, NULL, NULL), 3);
    kt_samples_destroy(&s);
}

Test(race, disturbed_rounds_are_voided_and_repeated) {
    static const int live[] = {0, 1};
    fake f;
    kt_samples s;
    kt_stopwatch watch = watch_of(&f);
    kt_rng rng;

    fake_init(&f, 2, 1);
    f.disturb_every = 8; /* every fourth round */
    kt_rng_seed(&rng, 1);
    cr_assert_eq(kt_samples_create(2, &s, NULL), KT_OK);
    cr_expect_eq(kt_rounds_run(&watch, &s, live, 2, 20, INT64_MAX, &rng), KT_OK);
    cr_expect_eq(kt_samples_pairs(&s, 0, 1, NULL, NULL), 20, "twenty good rounds");
    cr_expect_eq(s.n_rounds, 26);
    cr_expect_eq(s.n_voided, 6);
    kt_samples_destroy(&s);
}

/* On a machine that is disturbed all the time the run still ends. */
Test(race, a_machine_never_quiet_still_yields_rounds) {
    static const int live[] = {0, 1};
    fake f;
    kt_samples s;
    kt_stopwatch watch = watch_of(&f);
    kt_rng rng;

    fake_init(&f, 2, 1);
    f.disturb_every = 1;
    kt_rng_seed(&rng, 1);
    cr_assert_eq(kt_samples_create(2, &s, NULL), KT_OK);
    cr_expect_eq(kt_rounds_run(&watch, &s, live, 2, 16, INT64_MAX, &rng), KT_OK);
    cr_expect_eq(kt_samples_pairs(&s, 0, 1, NULL, NULL), 16);
    cr_expect_eq(s.n_voided, 32, "all of them, for the report");
    kt_samples_destroy(&s);
}

/* Orders are random, and reversed in the next round, so that no one always follows the same one. */
Test(race, the_order_changes_from_round_to_round) {
    enum { N = 6, ROUNDS = 40 };
    int live[N], first[N] = {0};
    fake f;
    kt_samples s;
    kt_stopwatch watch = watch_of(&f);
    kt_rng rng;

    fake_init(&f, N, 1);
    f.noise = f.spike_chance = 0;
    for (int i = 0; i < N; i++) live[i] = i;
    kt_rng_seed(&rng, 1);
    cr_assert_eq(kt_samples_create(N, &s, NULL), KT_OK);
    for (int r = 0; r < ROUNDS; r++) { /* one round each: the first sample tells who is first */
        f.stop_after = f.samples + 1;
        memset(f.per, 0, sizeof f.per);
        kt_rounds_run(&watch, &s, live, N, 1, INT64_MAX, &rng);
        for (int i = 0; i < N; i++) first[i] += f.per[i];
    }
    for (int i = 0; i < N; i++)
        cr_expect(first[i] > 0 && first[i] < ROUNDS / 2, "%d led %d of %d rounds", i, first[i],
                  ROUNDS);
    kt_samples_destroy(&s);
}
