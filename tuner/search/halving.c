/* Interleaved successive halving with racing elimination. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/search/contest.h"

#define SCREEN_RATIO 3.0     /* after one round: three times the best is not noise */
#define DROP_CONFIDENCE 0.98 /* two-sided, that is 1 % of wrongly dropping an equal */
#define TIE 0.01             /* differences below are not worth a round */

enum { SCREEN_ROUNDS = 1, N_RUNGS = 4, KEEP_AT_LEAST = 2 };

/* Constants replayed on recorded races (autotuning evidence, section 2.1): short rungs while many
 * live, long ones for the last. */
static const int rung_rounds[N_RUNGS] = {4, 4, 8, 16};

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

/* Drop what one round shows to be hopeless. */
static void screen(const kt_contest *c, const kt_samples *s, int *live, int *n_live) {
    double best = INFINITY;
    int n = 0;
    for (int i = 0; i < *n_live; i++) best = fmin(best, kt_samples_p25(s, live[i]));
    for (int i = 0; i < *n_live; i++)
        if (live[i] == c->default_index || kt_samples_p25(s, live[i]) <= SCREEN_RATIO * best)
            live[n++] = live[i];
    *n_live = n;
}

/* Drop those that are slower than the best for sure, then the lower half. Keeps the ranking. */
static void eliminate(const kt_contest *c, const kt_samples *s, int *live, int *n_live,
                      kt_rng *rng) {
    int n = 1, half = (*n_live + 1) / 2;
    if (half < KEEP_AT_LEAST) half = KEEP_AT_LEAST;
    for (int i = 1; i < *n_live; i++) {
        bool is_default = live[i] == c->default_index;
        kt_interval slower = kt_samples_compare(s, live[i], live[0], DROP_CONFIDENCE, rng);
        if (is_default || (n < half && slower.low <= 0)) live[n++] = live[i];
    }
    *n_live = n;
}

/* Nothing left to learn: one contender beside the default, or all equal within TIE. */
static bool is_over(const kt_contest *c, const kt_samples *s, const int *live, int n_live,
                    kt_rng *rng) {
    int rivals = 0;
    for (int i = 1; i < n_live; i++) {
        kt_interval slower = kt_samples_compare(s, live[i], live[0], 0.95, rng);
        if (live[i] == c->default_index && slower.low > 0) continue;
        if (fabs(slower.low) > TIE || fabs(slower.high) > TIE) rivals++;
    }
    return rivals == 0;
}

kt_status kt_halving(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err) {
    kt_rng rng;

    kt_rng_seed(&rng, c->seed ^ 0x5eedu);
    if (*n_live > 1) {
        KT_TRY(kt_contest_rung(c, s, live, *n_live, SCREEN_ROUNDS, err));
        screen(c, s, live, n_live);
    }
    for (int r = 0; r < N_RUNGS; r++) {
        KT_TRY(kt_contest_rung(c, s, live, *n_live, rung_rounds[r], err));
        kt_rank(s, live, *n_live);
        if (r + 1 == N_RUNGS) break;
        eliminate(c, s, live, n_live, &rng);
        if (is_over(c, s, live, *n_live, &rng)) break;
    }
    return KT_OK;
}
