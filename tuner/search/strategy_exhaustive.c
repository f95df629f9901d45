/* Every contender in every round: the oracle that the other strategies are judged by.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tuner/search/strategy.h"

static kt_status race(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err) {
    enum { RUNGS = 4, ROUNDS = 16 };
    for (int i = 0; i < c->n; i++) live[i] = i;
    *n_live = c->n;
    for (int r = 0; r < RUNGS; r++) {
        kt_status st = kt_contest_rung(c, s, live, c->n, ROUNDS, err);
        if (st != KT_OK) return st;
    }
    kt_rank(s, live, *n_live);
    return KT_OK;
}

const kt_strategy kt_strategy_exhaustive = {
    .name = "exhaustive",
    .summary = "64 rounds of every contender, nothing pruned",
    .race = race,
};
