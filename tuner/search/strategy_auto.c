/* The default strategy: prune by the roofline, then interleaved successive halving.
 *
 * Few contenders race in full. Of many, a random sample races together with the default and the
 * neighbouring cell's winner, which is nearly always in the final: buckets change slowly.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "tuner/search/strategy.h"

enum { RACE_ALL = 64 };

static kt_status race(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err) {
    kt_rng rng;
    int n = 0;

    kt_rng_seed(&rng, c->seed);
    for (int i = 0; i < c->n; i++) {
        bool is_seeded = i == c->default_index || i == c->warm_index;
        if (is_seeded || c->n <= RACE_ALL || kt_rng_below(&rng, (uint64_t)c->n) < RACE_ALL)
            live[n++] = i;
    }
    *n_live = n;
    return kt_halving(c, s, live, n_live, err);
}

const kt_strategy kt_strategy_auto = {
    .name = "auto",
    .summary = "roofline prune, warm start, interleaved successive halving",
    .prune_ratio = 1.5,
    .race = race,
};
