/* Decisions about whole expert layers, measured in the layer as it is served: plan cells, and what a table's
 * rows are worth there. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LAYER_CELLS_H
#define KT_TUNER_LAYER_CELLS_H

#include "dispatch/plan/plan.h"
#include "tuner/measure/banks.h"
#include "tuner/space/layer_list.h"
#include "tuner/store/ledger.h"

typedef struct kt_layer_session_setup {
    const kt_registry *registry;   /* borrowed, and so is all below */
    const kt_fingerprint *machine; /* with ceilings */
    const kt_table *table;         /* whose rows choose the kernels; of this machine */
    const kt_shapes *shapes;       /* the matrices of a step beside the experts */
    kt_serving_format format;
    kt_ledger *ledger; /* NULL = nothing is kept */
    bool is_fresh;     /* take over nothing from the ledger */
    double widest;     /* half interval of a decision that is taken over; 0 = KT_ROW_WIDE */
    size_t rotation_bytes;
    int threads;
    int64_t deadline_ns; /* INT64_MAX = none */
    uint64_t seed;
    bool (*stop)(void *arg); /* may be NULL */
    void *stop_arg;
} kt_layer_session_setup;

typedef struct kt_layer_session kt_layer_session;

kt_status kt_layer_session_create(const kt_layer_session_setup *setup, kt_layer_session **out,
                                  kt_err *err);
void kt_layer_session_destroy(kt_layer_session *s);

/* What the session's cells took. */
typedef struct kt_layer_spent {
    double kernel_seconds, setup_seconds; /* in samples; packing weights */
    int n_samples, n_replayed;            /* taken; whole rungs from the journal */
} kt_layer_spent;

kt_layer_spent kt_layer_session_spent(const kt_layer_session *s);

/* Decide one plan cell: race, holdout against what runs without a decision, row. KT_E_CANCELLED when time
 * or patience ended; KT_E_UNSUPPORTED for a refused one. */
kt_status kt_layer_session_decide(kt_layer_session *s, const kt_plan_cell *cell, kt_table_plan *out,
                                  kt_err *err);

/* What the table's choices by rows per expert lose at one routing, against the best that any one of its
 * choices (or the default) reaches when all experts run it. Picked in a race, measured in fresh rounds. */
typedef struct kt_skew_regret {
    int64_t tokens;
    char routing[40];
    double imbalance;
    double regret;    /* time / best time - 1, at least 0 */
    double low, high; /* its 95 % interval, which may go below 0 */
    char best[KT_CONTENDER_NAME_BYTES];
} kt_skew_regret;

kt_status kt_layer_session_skew(kt_layer_session *s, const kt_problem *experts, int64_t tokens,
                                const char *routing, kt_skew_regret *out, kt_err *err);

/* Of a decided layer_gain cell: the part of the predicted gain (in logarithms) that was there; NAN where
 * the prediction is below 1 % or twice the noise, so that the quotient would mean nothing. */
double kt_realised_gain(const kt_table_plan *gain, double aa_noise_p95);

#endif
