/* kt bench MODEL --speculate HOW: generating with drafts against generating without.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_DRAFTS_H
#define KT_RUNTIME_BENCH_DRAFTS_H

#include "runtime/cli/draft_flags.h"
#include "runtime/cli/engine_flags.h"

typedef struct kt_bench_drafts {
    const kt_engine_flags *engine;
    kt_speculation speculate;
    const char *word; /* of --speculate */
    const char *text; /* file whose beginning is the prompt */
    int64_t draft, n_prompt, n_generate, repetitions;
    bool json;
} kt_bench_drafts;

/* Continue the text greedily, with and without drafts in turns after one of each that warms up, and
 * print the medians, how many drafted tokens came true, and whether the tokens are the same.
 * Returns the exit code. */
int kt_bench_drafts_run(const kt_bench_drafts *ask, const kt_usage *usage, const char *model,
                        const kt_log *log);

#endif
