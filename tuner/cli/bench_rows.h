/* Rows of a bench suite, as text and as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_BENCH_ROWS_H
#define KT_TUNER_BENCH_ROWS_H

#include "base/json.h"
#include "tuner/cli/verb.h"
#include "tuner/session/suite.h"

void kt_bench_row_print(const kt_suite_row *row);
/* One object; `repeat` is the command that measures the row again. */
void kt_bench_row_put(const kt_suite_row *row, const char *repeat, kt_json_writer *w);
/* KT_TUNE_REGRESSION where a row missed its bar or failed, else KT_TUNE_OK. */
int kt_bench_rows_code(const kt_suite_row *rows, int n);

/* What the command line says of a suite for a device. */
typedef struct kt_bench_device {
    const char *device, *rows, *out; /* out: a file for the JSON object, or NULL */
    double seconds, limit;           /* 0 = the suite's own */
    int64_t threads;                 /* 0 = all cores */
    uint64_t seed;
    bool pretend_clock, json;
} kt_bench_device;

/* kttune bench --suite gpu: prints rows as they come, and writes the file anew after each, so that
 * a run that is killed leaves what it has. Returns the exit code. */
int kt_bench_device_run(const kt_verb_context *context, const kt_bench_device *ask);

#endif
