/* kttune bench --variant A --against B. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_BENCH_DUEL_H
#define KT_TUNER_BENCH_DUEL_H

#include <stdbool.h>

#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"

typedef struct kt_duel_options {
    const char *op, *weights;
    const char *variant, *set;         /* name and "rows=4,prefetch=0"; NULL = initial values */
    const char *against, *against_set; /* NULL = only the first is timed */
    int64_t m, n, k, experts[2];       /* experts / top-k */
    int64_t threads, rounds, seed;
    bool json;
} kt_duel_options;

/* Gate both, then time them in alternating rounds on cold weights. Returns an exit code: 4 when one
 * computes wrong results, 5 when A is slower than B beyond doubt. */
int kt_bench_duel(const kt_verb_context *context, const kt_duel_options *options,
                  const kt_verb_usage *usage);

#endif
