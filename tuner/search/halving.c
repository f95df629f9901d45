/* Interleaved successive halving with racing elimination. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/search/contest.h"

enum { KEEP_AT_LEAST = 2 };

/* Short rungs while many live, long ones for the last. Of those that `kttune sim --grid` sweeps these lose
 * nothing against longer contests and cost a third less (tuner/README.md has the table). */
#define RUNGS                                                                      \
    .screen_rounds = 1, .screen_ratio = 3, .n_rungs = 3, .rung_rounds = {4, 4, 8}, \
    .drop_confidence = 0.98, .survivors = 0.34, .tie = 0.01

const kt_race_rules kt_race_rules_now = {RUNGS,
                                         .stop_confidence = 0.9,
                                         .n_steps = 5,
                                         .step_rounds = {10, 20, 20, 30, 30},
                                         .each_confidence = 0.98,
                                         .both_confidence = 0.99,
                                         .final_rounds = 24,
                                         .settles_doubt = true};

/* Protocol 5: a default that came first stayed, and whole holdouts of 30 or 90 rounds. */
static const kt_race_rules fixed_holdouts = {RUNGS, .stop_confidence = 0.8, .look_rounds = 10,
                                             .extra_rounds = 60};

/* Up to protocol 4 every contest ran on until contenders were apart or equal, and whole holdouts. */
static const kt_race_rules first_rules = {.screen_rounds = 1,
                                          .screen_ratio = 3,
                                          .n_rungs = 4,
                                          .rung_rounds = {4, 4, 8, 16},
                                          .drop_confidence = 0.98,
                                          .survivors = 0.5,
                                          .tie = 0.01};

const kt_race_rules *kt_race_rules_of(int64_t protocol) {
    return protocol <= 4 ? &first_rules : protocol == 5 ? &fixed_holdouts : &kt_race_rules_now;
}

kt_status kt_contest_rung(kt_contest *c, kt_samples *s, const int *live, int n_live, int rounds,
                          kt_err *err) {
    int rung = c->rungs_run++, first = s->n_rounds, voided = s->n_voided;
    kt_status st = KT_OK;
    kt_rng rng;

    if (c->shorten > 1)
        rounds = rounds < 2 ? rounds : rounds / c->shorten > 2 ? rounds / c->shorten : 2;
    if (c->store && c->store->replay &&
        c->store->replay(c->store->arg, rung, live, n_live, rounds, s)) {
        c->rounds += s->n_rounds - first;
        c->voided += s->n_voided - voided;
        return KT_OK;
    }
    kt_rng_seed(&rng, c->seed + 1000003u * (uint64_t)(rung + 1));
    st = kt_rounds_run(c->watch, s, live, n_live, rounds, c->deadline_ns, &rng);
    c->rounds += s->n_rounds - first;
    c->voided += s->n_voided - voided;
    if (st != KT_OK) return kt_fail(err, st, "race stopped before rung %d was complete", rung);
    if (c->store && c->store->record)
        return c->store->record(c->store->arg, rung, live, n_live, rounds, first, s, err);
    return KT_OK;
}

void kt_rank(const kt_samples *s, int *live, int n_live) {
    for (int i = 1; i < n_live; i++) {
        int x = live[i], j = i;
        double ns = kt_samples_p25(s, x);
        for (; j > 0 && kt_samples_p25(s, live[j - 1]) > ns; j--) live[j] = live[j - 1];
        live[j] = x;
    }
}

/* Drop what the first round shows to be hopeless: noise is not that large. */
static void screen(const kt_contest *c, const kt_race_rules *rules, const kt_samples *s, int *live,
                   int *n_live) {
    double best = INFINITY;
    int n = 0;
    for (int i = 0; i < *n_live; i++) best = fmin(best, kt_samples_p25(s, live[i]));
    for (int i = 0; i < *n_live; i++)
        if (live[i] == c->default_index || kt_samples_p25(s, live[i]) <= rules->screen_ratio * best)
            live[n++] = live[i];
    *n_live = n;
}

/* Drop those that are slower than the best for sure, then the lower part. Keeps the ranking. */
static void eliminate(const kt_contest *c, const kt_race_rules *rules, const kt_samples *s,
                      int *live, int *n_live, kt_rng *rng) {
    int n = 1, most = (int)ceil(rules->survivors * *n_live);
    if (most < KEEP_AT_LEAST) most = KEEP_AT_LEAST;
    for (int i = 1; i < *n_live; i++) {
        bool is_default = live[i] == c->default_index;
        kt_interval slower = kt_samples_compare(s, live[i], live[0], rules->drop_confidence, rng);
        if (is_default || (n < most && slower.low <= 0)) live[n++] = live[i];
    }
    *n_live = n;
}

/* Nothing left to learn: one contender beside the default, or all equal within a tie. */
static bool is_over(const kt_contest *c, const kt_race_rules *rules, const kt_samples *s,
                    const int *live, int n_live, kt_rng *rng) {
    int rivals = 0;
    for (int i = 1; i < n_live; i++) {
        kt_interval slower = kt_samples_compare(s, live[i], live[0], 0.95, rng);
        if (live[i] == c->default_index && slower.low > 0) continue;
        if (fabs(slower.low) > rules->tie || fabs(slower.high) > rules->tie) rivals++;
    }
    return rivals == 0;
}

/* Can nobody win by the never-worse rule any more? Then who is in place stays, and comes first. */
static bool nobody_can_win(const kt_contest *c, const kt_race_rules *rules, const kt_samples *s,
                           int *live, int n_live, kt_rng *rng) {
    int in_place = c->has_proven ? c->proven_index : c->default_index, at = -1;
    if (rules->stop_confidence <= 0) return false;
    for (int i = 0; i < n_live; i++) {
        if (live[i] == in_place) {
            at = i;
            continue;
        }
        kt_interval slower = kt_samples_compare(s, live[i], in_place, rules->stop_confidence, rng);
        if (slower.low <= -log1p(KT_MIN_GAIN)) return false;
    }
    if (at < 0) return false;
    memmove(live + 1, live, (size_t)at * sizeof *live);
    live[0] = in_place;
    return true;
}

/* The default is ahead, but some rival may yet beat it by KT_MIN_GAIN: the best of these comes first, for
 * only a holdout can tell. Half of a race's last rounds in a lucky moment of the default once cost 10 %. */
static void settle_doubt(const kt_contest *c, const kt_race_rules *rules, const kt_samples *s,
                         int *live, int n_live, kt_rng *rng) {
    if (!rules->settles_doubt || live[0] != c->default_index ||
        (c->has_proven && c->proven_index != c->default_index))
        return;
    for (int i = 1; i < n_live; i++) {
        kt_interval slower = kt_samples_compare(s, live[i], live[0], rules->stop_confidence, rng);
        int rival = live[i];
        if (slower.low > -log1p(KT_MIN_GAIN)) continue;
        memmove(live + 1, live, (size_t)i * sizeof *live);
        live[0] = rival;
        return;
    }
}

/* Who runs instead of the default has to be chosen as well: both of the first two beat it for sure, and the
 * race was short. */
static kt_status run_final(kt_contest *c, const kt_race_rules *rules, kt_samples *s, int *live,
                           int n_live, kt_rng *rng, kt_err *err) {
    int in_place = c->has_proven ? c->proven_index : c->default_index;
    if (rules->final_rounds <= 0 || n_live < 2 || live[0] == in_place || live[1] == in_place)
        return KT_OK;
    for (int i = 0; i < 2; i++)
        if (kt_samples_compare(s, in_place, live[i], rules->stop_confidence, rng).low <= 0)
            return KT_OK;
    KT_TRY(kt_contest_rung(c, s, live, 2, rules->final_rounds, err));
    if (kt_samples_compare(s, live[1], live[0], 0.5, rng).point < 0) {
        int second = live[0];
        live[0] = live[1];
        live[1] = second;
    }
    return KT_OK;
}

kt_status kt_halving(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err) {
    const kt_race_rules *rules = c->rules ? c->rules : &kt_race_rules_now;
    kt_rng rng;

    kt_rng_seed(&rng, c->seed ^ 0x5eedu);
    if (*n_live > 1) {
        KT_TRY(kt_contest_rung(c, s, live, *n_live, rules->screen_rounds, err));
        screen(c, rules, s, live, n_live);
    }
    for (int r = 0; r < rules->n_rungs; r++) {
        KT_TRY(kt_contest_rung(c, s, live, *n_live, rules->rung_rounds[r], err));
        kt_rank(s, live, *n_live);
        if (nobody_can_win(c, rules, s, live, *n_live, &rng)) return KT_OK;
        if (r + 1 == rules->n_rungs) break;
        eliminate(c, rules, s, live, n_live, &rng);
        if (is_over(c, rules, s, live, *n_live, &rng)) break;
    }
    settle_doubt(c, rules, s, live, *n_live, &rng);
    return run_final(c, rules, s, live, *n_live, &rng, err);
}
