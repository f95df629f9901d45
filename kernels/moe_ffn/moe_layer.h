/* The fused MoE layer as phases of the thread pool: bucket tokens by expert and encode them, gate+up
 * with SwiGLU, down with the weighted sum. Two synchronisations after the tokens are encoded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_MOE_LAYER_H
#define KT_KERNELS_MOE_LAYER_H

#include "base/pool.h"
#include "kt/variant.h"

#define KT_MOE_PHASES 3

/* How the work of a call is cut and ordered: the same bits, other times. */
typedef struct kt_moe_cut {
    int64_t task_bytes;   /* weights that a thread takes at once, about */
    int tasks_per_thread; /* takings, at least */
    int is_largest_first; /* gate and up of experts with many rows first, instead of by number */
} kt_moe_cut;
extern const kt_moe_cut kt_moe_cut_default;

/* Measured cuts: the one whose tokens are nearest to the call's, of those the one whose imbalance (most
 * rows of an expert over the mean of those with rows) is. */
#define KT_MOE_CUTS 48
typedef struct kt_moe_cuts {
    int n;
    struct {
        int64_t tokens;
        double imbalance;
        kt_moe_cut cut;
    } at[KT_MOE_CUTS];
} kt_moe_cuts;

const kt_moe_cut *kt_moe_cut_for(const kt_moe_cuts *cuts, int64_t tokens, double imbalance);

/* What is added to the products of each expert, f32, borrowed; NULL = none. Gate and up have both or
 * neither: expert e's numbers [problem.n] begin e * stride floats in; down's [problem.k] e * problem.k. */
typedef struct kt_moe_bias {
    const float *gate, *up, *down;
    int64_t stride;
} kt_moe_bias;

/* What stays the same from call to call: one layer's weights and how to run them. Borrowed by jobs. A job
 * may move from layer to layer of the same sizes and activations while their scratch is no larger. */
typedef struct kt_moe_layer {
    kt_problem problem;           /* m ignored; n intermediate, k hidden, experts, topk */
    const void *const *experts;   /* [experts] packed bytes, 64-byte aligned */
    const kt_choice_map *choices; /* by rows per expert; same layout and acts throughout */
    const kt_variant *encode;     /* KT_OP_ENCODE variant for problem.acts */
    const kt_moe_cuts *cuts;      /* NULL = kt_moe_cut_default always */
    /* Down projections in another format than gate and up, as GGUF files mix them: its format (KT_W_NONE
     * = the same), and what runs that half. Both halves have the activations of problem.acts, and the
     * packed down half follows the other as in an expert of one format. */
    kt_weight_format down_weights;
    const kt_choice_map *down_choices;
    kt_glu_rule glu; /* all zeros = plain SwiGLU */
    kt_moe_bias bias;
} kt_moe_layer;

/* One call. Set the public members, then kt_moe_job_init; reusable. The job must outlive the run. */
typedef struct kt_moe_job {
    const kt_moe_layer *layer;
    const float *x; /* [tokens, ldx] layer input after the norm */
    int64_t ldx;
    int64_t tokens;
    /* [tokens, topk]; ids of a token distinct; -1 = slot unused. A shared expert of the routed ones' size and format
     * is one more expert, in every token's list with weight 1 (or its gate); any other is a layer of its own, with
     * accumulate. */
    const int32_t *expert_id;
    const float *route_weight; /* [tokens, topk] */
    float *out;                /* [tokens, ldo]; overwritten, or added to when accumulate is set */
    int64_t ldo;
    int accumulate;
    void *workspace;            /* kt_moe_workspace_bytes, 64-byte aligned; borrowed */
    struct kt_moe_state *state; /* inside workspace; set by init */
} kt_moe_job;

/* The down half as variants see it: problem with the format of down. */
static inline kt_problem kt_moe_down_half(const kt_moe_layer *layer) {
    kt_problem q = layer->problem;
    if (layer->down_weights != KT_W_NONE) q.weights = layer->down_weights;
    return q;
}

/* What to ask a planner for when gate and up are stored as problem->weights and down as `down`: a problem
 * for each half. A half's inputs are multiples of its own format's block; its outputs need not be, so they
 * are rounded up here, as variants check the sizes of a whole expert. */
void kt_moe_halves(const kt_problem *problem, kt_weight_format down, kt_problem *gate_up_half,
                   kt_problem *down_half);

/* Packed bytes of one expert, and where its down half begins. */
size_t kt_moe_expert_bytes(const kt_moe_layer *layer);
size_t kt_moe_down_offset(const kt_moe_layer *layer);
/* Pack one expert with the variants of the layer's maps: gate and up in problem.weights, down in its own
 * format. */
void kt_moe_pack(const kt_moe_layer *layer, const kt_matrix *gate, const kt_matrix *up,
                 const kt_matrix *down, void *dst);

/* Bytes for calls of at most max_tokens tokens on n_threads threads. */
size_t kt_moe_workspace_bytes(const kt_moe_layer *layer, int64_t max_tokens, int n_threads);

/* Check and lay out the workspace; expert_id, route_weight and x need not be filled yet: they are
 * read when the phases run. workspace_bytes is the size behind job->workspace. */
kt_status kt_moe_job_init(kt_moe_job *job, int64_t max_tokens, int n_threads,
                          size_t workspace_bytes, kt_err *err);

/* Write KT_MOE_PHASES phases that run the job (job->tokens may change between runs, up to
 * max_tokens). Results are the same bits for any thread count. */
void kt_moe_job_phases(kt_moe_job *job, kt_phase phases[KT_MOE_PHASES]);

/* Experts with at least one row, and the largest row count, of the last run (for reports). */
void kt_moe_job_load(const kt_moe_job *job, int64_t *active_experts, int64_t *max_rows);
/* Rows of one expert in the last run. */
int64_t kt_moe_job_rows(const kt_moe_job *job, int64_t expert);
/* Row i of them between gate and down: problem.n numbers encoded as problem.acts, until the next run. */
const void *kt_moe_job_h(const kt_moe_job *job, int64_t expert, int64_t i);

#endif
