/* Which machines can hold a published model, and as what: `kt plan --families`.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SHAPE_FIT_H
#define KT_RUNTIME_SHAPE_FIT_H

#include <stdbool.h>

#include "dispatch/plan/plan.h"
#include "kt/problem.h"

#define KT_FIT_MACHINES 4

/* Of a machine's memory the system keeps this, the rest is a model's. */
#define KT_FIT_RESERVE ((uint64_t)4 << 30)

typedef struct kt_shape_fit_request {
    const char *shape;                  /* a name of datasets/workloads with its config */
    uint64_t machines[KT_FIT_MACHINES]; /* bytes of memory */
    int n_machines;
    int64_t context;        /* tokens that have to fit beside the weights, or the model's most */
    kt_weight_format cache; /* of keys and values */
    int threads;
    int64_t logit_rows; /* kt_memory_request */
} kt_shape_fit_request;

/* The best weights that fit a machine; or, when none does, the smallest. */
typedef struct kt_machine_fit {
    bool fits;
    const char *weights; /* "native", "int8", "int4", "w4g128": of --weights or --to; "q3_k" to
                            "iq1_m": a GGUF file whose feed-forwards are such blocks; static */
    bool is_gguf;
    size_t weight_bytes, needed; /* all weights in memory; with what runs them */
    int64_t longest;             /* context that fits */
} kt_machine_fit;

typedef struct kt_shape_fit {
    const char *family;     /* static */
    size_t published_bytes; /* of the checkpoint's matrices as published, MTP and vision left out */
    int64_t context;        /* that was asked to fit */
    kt_machine_fit machine[KT_FIT_MACHINES];
} kt_shape_fit;

/* Count, from the published configuration alone. Weights are tried from the best to the smallest;
 * what a checkpoint stores in few bits already is not quantised, but may be had as GGUF.
 * KT_E_NOT_FOUND: a shape without a config. */
kt_status kt_shape_fit_count(kt_planner *planner, const kt_shape_fit_request *request,
                             kt_shape_fit *out, kt_err *err);

#endif
