/* A recorded load: what each step of a server routed to which expert (datasets/workloads/README.md).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TRACE_H
#define KT_TUNER_TRACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_trace_step {
    int64_t tokens, logits, context;
    double time_ns;  /* 0 = not recorded */
    size_t pairs_at; /* first entry of pair_begin: one per layer and one more */
    int64_t layers;  /* with histograms: 0 or the trace's */
} kt_trace_step;

typedef struct kt_trace {
    char model[64], weights[24],
        kv[24]; /* what the server served; "" = an older record does not say */
    int64_t experts, topk, layers;
    kt_trace_step *steps; /* owned */
    size_t n_steps;
    size_t *pair_begin; /* owned; of (step, layer): its pairs are [begin, next begin) */
    int32_t *pairs;     /* owned; expert, rows, expert, rows, ... */
    int cut;            /* the file ended within a line, which was ignored */
} kt_trace;

/* Is this file a trace, by its first line? */
bool kt_trace_is(const char *path);

/* Errors name file, line, key, what was found and what was expected. */
kt_status kt_trace_read(const char *path, kt_trace *out, kt_err *err);
void kt_trace_deinit(kt_trace *t); /* accepts a zeroed one */

/* Rows of each expert in one layer of one step, into counts[experts]. */
void kt_trace_counts(const kt_trace *t, size_t step, int64_t layer, int32_t *counts);

/* What a trace is like: rows of an expert that has some, mean and most; the busiest expert's share of a layer's
 * rows over an even share, mean over layers and steps of at least 16 tokens (1 = even; 0 = no such step). */
typedef struct kt_trace_load {
    int64_t fewest_tokens, most_tokens, most_rows;
    double mean_rows, imbalance;
} kt_trace_load;
kt_trace_load kt_trace_load_of(const kt_trace *t);

#endif
