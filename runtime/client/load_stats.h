/* What a load run measured, under the names of the common tools, and which of two servers is
 * better. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOAD_STATS_H
#define KT_RUNTIME_LOAD_STATS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "base/json.h"
#include "kt/status.h"
#include "runtime/client/load_run.h"

/* Milliseconds. TTFT: request to first text. TPOT: (last text - first) / (output tokens - 1), of
 * answers with at least two. ITL: each gap between pieces. E2EL: request to end. */
typedef enum kt_load_metric {
    KT_LOAD_TTFT,
    KT_LOAD_TPOT,
    KT_LOAD_ITL,
    KT_LOAD_E2EL,
    KT_LOAD_METRICS
} kt_load_metric;

typedef struct kt_load_spread {
    size_t n;
    double mean, median, deviation, p90, p95, p99, max; /* percentiles interpolate linearly */
} kt_load_spread;

/* Upper limits in ms that an answer must hold to count as good; 0 = none. ITL is the answer's
 * mean. */
typedef struct kt_load_slo {
    double limit[KT_LOAD_METRICS];
} kt_load_slo;

/* "ttft:500,tpot:50" (also itl, e2el; spaces or commas between). */
kt_status kt_load_slo_parse(const char *text, kt_load_slo *out, kt_err *err);

typedef struct kt_load_report {
    size_t completed, failed, good;
    double duration_s;
    int64_t input_tokens, cached_tokens, output_tokens;
    bool counts_pieces; /* the server did not say how many tokens: pieces are counted */
    bool has_slo;
    kt_load_spread spread[KT_LOAD_METRICS];
    char first_error[200];
} kt_load_report;

/* KT_E_NOMEM is the only error. slo may be NULL. */
kt_status kt_load_report_make(const kt_load_result *r, const kt_load_slo *slo, kt_load_report *out,
                              kt_err *err);
void kt_load_report_print(const kt_load_report *r, FILE *to);        /* the text of bench_serving */
void kt_load_report_put(const kt_load_report *r, kt_json_writer *w); /* members, its JSON's names */

typedef enum kt_load_verdict {
    KT_LOAD_SAME,   /* not worse by more than the margin */
    KT_LOAD_BETTER, /* the interval says better, the mean by more than the margin */
    KT_LOAD_WORSE,  /* likewise worse */
    KT_LOAD_UNCLEAR /* it may be worse by more than the margin: more rounds would tell */
} kt_load_verdict;
const char *kt_load_verdict_name(kt_load_verdict v);

/* One quantity of two servers over paired rounds: b against a as a ratio of geometric means, with a
 * 95 % interval from Student's distribution of the rounds' log ratios. */
typedef struct kt_load_change {
    const char *name;
    bool more_is_better;
    size_t
        n; /* rounds with a value on both sides; under two there is no interval, and it is SAME */
    double a, b, ratio, low, high;
    kt_load_verdict verdict;
} kt_load_change;

typedef enum kt_load_decision {
    KT_LOAD_PROMOTE,   /* something is better, nothing worse, throughput and medians are clear */
    KT_LOAD_TRADE_OFF, /* some better, some worse */
    KT_LOAD_RETAIN     /* nothing is better, it is not clear, or b fails more requests than a */
} kt_load_decision;

/* Output throughput; medians of TTFT, TPOT, E2EL; P99 of ITL, which varies too much to be clear. */
enum { KT_LOAD_CHANGES = 5 };

/* reports_a[i] and reports_b[i] are of the same prompts, one after the other. margin: 0.03 = 3 %.
 * */
kt_load_decision kt_load_compare(const kt_load_report *a, const kt_load_report *b, size_t n_rounds,
                                 double margin, kt_load_change changes[KT_LOAD_CHANGES]);
const char *kt_load_decision_name(kt_load_decision d); /* "promote", "trade-off", "retain" */

#endif
