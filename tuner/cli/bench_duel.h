/* kttune bench --variant A --against B. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_BENCH_DUEL_H
#define KT_TUNER_BENCH_DUEL_H

#include <stdbool.h>

#include "tuner/cli/tune_options.h"
#include "tuner/cli/verb.h"
#include "tuner/cli/workbench.h"
#include "tuner/measure/counters.h"
#include "tuner/measure/stats.h"

typedef struct kt_duel_options {
    const char *op, *weights;
    const char *acts; /* NULL = the format's own, or the only ones that the variant reads */
    const char *variant, *set;         /* name and "rows=4,prefetch=0"; NULL = initial values */
    const char *against, *against_set; /* NULL = only the first is timed */
    int64_t m, n, k, experts[2];       /* experts / top-k */
    int64_t kv_heads, v, context;      /* attn, delta: heads of keys, size of values; attn: keys */
    int64_t threads, rounds, seed;
    double limit; /* seconds until a duel is given up, because a variant hangs; 0 = never */
    bool json;
    kt_counters *counters; /* NULL, or what counts during the rounds */
} kt_duel_options;

typedef struct kt_bench_duel_result {
    int n; /* contenders, 1 or 2 */
    kt_problem problem;
    kt_choice choice[2];
    double p25_ns[2], least_ns[2]; /* per unit: per active expert of a moe_ffn */
    double units, bytes[2];        /* units of a call; weight bytes per unit */
    double operations;             /* per unit */
    kt_interval spread[2], faster; /* faster: log(time of B / time of A) */
    int rounds, voided;
} kt_bench_duel_result;

/* Gate what the options name, then time it. KT_E_MISMATCH when one computes wrong results. */
kt_status kt_duel_run(const kt_workbench *b, const kt_duel_options *options,
                      kt_bench_duel_result *out, kt_err *err);

/* Gate both, then time them in alternating rounds on cold weights. Returns an exit code: 4 when one
 * computes wrong results, 5 when A is slower than B beyond doubt. */
int kt_bench_duel(const kt_verb_context *context, const kt_duel_options *options,
                  const kt_verb_usage *usage);

#endif
