/* A workload: matrices, how they are used (a serving mix), how experts are chosen.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_WORKLOAD_H
#define KT_TUNER_WORKLOAD_H

#include "tuner/space/routing.h"
#include "tuner/space/shapes.h"

#define KT_MAX_MIX_STEPS 64
#define KT_MAX_THREAD_COUNTS 8

/* One kind of step of a server. share: of the time of the mix. */
typedef struct kt_mix_step {
    int64_t tokens, context;
    double share;
} kt_mix_step;

typedef struct kt_mix {
    char name[32];
    int n;
    kt_mix_step step[KT_MAX_MIX_STEPS];
} kt_mix;

/* Where weights are while they are timed. */
typedef enum kt_cache_state {
    KT_CACHE_SERVED, /* rotate through as many bytes as the model has, at most what is cold */
    KT_CACHE_COLD,   /* always from memory */
    KT_CACHE_WARM    /* always in the cache, as far as they fit */
} kt_cache_state;
const char *kt_cache_state_name(kt_cache_state state);
int kt_cache_state_parse(const char *name); /* -1 = unknown */

typedef struct kt_workload {
    kt_shapes shapes;
    kt_mix mix;         /* the one in use */
    kt_routing routing; /* its trace, if any, is this workload's */
    kt_trace trace;     /* owned */
    int threads[KT_MAX_THREAD_COUNTS];
    int n_threads; /* 0 = the workload does not say */
    kt_cache_state cache;
} kt_workload;

/* What a command line may say; NULL = as the workload has it. */
typedef struct kt_workload_request {
    const char *
        workload; /* name of datasets/workloads, a file, or a recorded trace, whose model it names */
    const char *model;   /* whose matrices, when not the workload's own: folder or name */
    const char *mix;     /* one of its mixes; else its "mix", else all evenly */
    const char *routing; /* as kt_routing_parse */
} kt_workload_request;

/* At least one of workload and model is given. Without a workload: a built-in mix of decode and
 * prefill steps and Zipf 0.6. Errors name file, key, what was found and what was expected. */
kt_status kt_workload_find(const kt_workload_request *request, kt_workload *out, kt_err *err);
void kt_workload_deinit(kt_workload *w); /* accepts a zeroed one */

/* Cells of the workload: KT_MIX_SHARE of the weight by its mix and routing, the rest over all buckets
 * (kt_cells_of_shapes), so that what the mix does not have is decided as well, but later. Time of a
 * step goes to its matrices by bytes read and rows multiplied; the rows of each expert are drawn. */
#define KT_MIX_SHARE 0.9
kt_status kt_cells_of_workload(const kt_workload *w, kt_serving_format format, kt_profile profile,
                               const int *threads, int n_threads, kt_cell_list *out, kt_err *err);

/* The m bucket that stands for m rows: the nearest by ratio. */
int64_t kt_bucket_of(int64_t m);

#endif
