/* One cell set up for timing as it is served: fused layer, GEMM job, operation of a sequence, norm
 * or router, serving pool, cold weights, hot activations. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TRIAL_H
#define KT_TUNER_TRIAL_H

#include "base/pool.h"
#include "kernels/router/router_select.h"
#include "tuner/measure/banks.h"
#include "tuner/measure/rounds.h"

/* Who is timed, and on what. Everything is borrowed until the trial is destroyed. */
/* MOE_FFN cells of so many rows and more: a sample has fewer experts than the layer chooses. */
#define KT_TRIAL_FEW_ROWS 64

typedef struct kt_trial_setup {
    kt_problem problem; /* m = rows of one call (GEMM) or of each active expert (MOE_FFN) */
    kt_pool *pool;
    const kt_variant *encode; /* KT_OP_ENCODE variant for problem.acts, of packed weights */
    kt_banks *banks;
    const kt_choice *choices; /* contenders; all accept the problem, all passed the gate */
    int n_choices;
    /* MOE_FFN only: 0 = m tokens that all go to the same few experts, which move through the bank
     * from call to call (a cell). Else this many tokens spread evenly over all experts. */
    int64_t spread_tokens;
    kt_norm_kind norm;          /* NORM: what becomes of rows */
    const kt_router_rule *rule; /* ROUTER: how experts are chosen then; NULL = logits alone */
} kt_trial_setup;

typedef struct kt_trial kt_trial;

kt_status kt_trial_create(const kt_trial_setup *setup, kt_trial **out, kt_err *err);
void kt_trial_destroy(kt_trial *t);

/* The trial as a source of samples; contender i is choices[i]. A sample lasts at least 100 us (several
 * calls when one is shorter) and gives ns per unit. Disturbances are counted; stop stays NULL. */
kt_stopwatch kt_trial_stopwatch(kt_trial *t);

/* Units that one call does: active experts of a MOE_FFN cell (a table row is per expert), 1 for a GEMM
 * and for spread tokens. */
double kt_trial_units(const kt_trial *t);

/* Bytes of packed weights, or of what is kept of a sequence, that one call moves, and its
 * operations. */
double kt_trial_bytes(const kt_trial *t, int contender);
double kt_trial_operations(const kt_trial *t);

#endif
