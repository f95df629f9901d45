/* A random eighth of the contenders, then halving: the baseline of search literature.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tuner/search/strategy.h"

static kt_status race(kt_contest *c, kt_samples *s, int *live, int *n_live, kt_err *err) {
    enum { SHARE = 8, AT_LEAST = 4 };
    uint64_t want = (uint64_t)(c->n / SHARE > AT_LEAST ? c->n / SHARE : AT_LEAST);
    kt_rng rng;
    int n = 0;

    kt_rng_seed(&rng, c->seed);
    for (int i = 0; i < c->n; i++)
        if (i == c->default_index || kt_rng_below(&rng, (uint64_t)c->n) < want) live[n++] = i;
    *n_live = n;
    return kt_halving(c, s, live, n_live, err);
}

const kt_strategy kt_strategy_random = {
    .name = "random",
    .summary = "a random eighth of the contenders, then halving",
    .race = race,
};
