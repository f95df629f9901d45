/* What `kt bench` measured, as text and as JSON. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BENCH_REPORT_H
#define KT_RUNTIME_BENCH_REPORT_H

#include "base/json.h"
#include "runtime/exec/engine.h"

/* One measured line: pp512, tg128. */
typedef struct kt_bench_speed {
    char name[80];
    double mean, deviation; /* tokens per second */
    double step_ms;         /* median of the steps of one row of each sequence */
    /* What the plan expects of such a step's matrices, and of its experts; 0 = nothing. */
    double expected_ms, expected_experts_ms;
    int64_t repetitions, threads;
    bool is_decode;
    kt_profile profile;
    kt_roofline roofline; /* stream_gbs 0 = not measured */
} kt_bench_speed;

/* One line; with `details` a line for each kind of work and, where the roofline is known, how near. */
void kt_bench_print(const kt_bench_speed *s, bool details);
void kt_bench_put(const kt_bench_speed *s, kt_json_writer *w);

#endif
