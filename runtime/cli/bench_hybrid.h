/* kt bench --hybrid: do the CPU's and a device's experts work at the same time?
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_HYBRID_H
#define KT_RUNTIME_BENCH_HYBRID_H

#include <stdbool.h>

#include "runtime/cli/engine_flags.h"

typedef struct kt_bench_hybrid {
    const kt_engine_flags *engine;
    int64_t n_prompt, n_generate, depth, repetitions;
    const char *out; /* a file for the JSON object, or NULL */
    bool json;
} kt_bench_hybrid;

/* With 0, 25, 50, 75 and 100 % of the experts on the device, each time with the model loaded anew:
 * whole steps, steps without the CPU's experts and steps without the device's in turns, and the
 * medians of each. A decode step should take at most 1.10 times the longer of both parts. Prints a
 * share's rows as soon as they are known. Returns the exit code. */
int kt_bench_hybrid_run(const kt_bench_hybrid *ask, const kt_usage *usage, const char *model,
                        const kt_log *log);

#endif
