/* kt bench MODEL --load: how fast a model is loaded, and how fast its bytes can be read.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_LOAD_H
#define KT_RUNTIME_BENCH_LOAD_H

#include <stdbool.h>

#include "runtime/cli/engine_flags.h"

/* Read, copy and load the model in turns, after one that brings its files into the page cache, and
 * print the medians. Returns the exit code. */
int kt_bench_load(const kt_engine_flags *flags, const kt_usage *usage, const char *model,
                  int64_t repetitions, bool json, const kt_log *log);

#endif
