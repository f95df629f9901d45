/* The fused MoE layer as phases of the thread pool: bucket tokens by expert and encode them, gate+up
 * with SwiGLU, down with the weighted sum. Two synchronisations after the tokens are encoded.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_MOE_LAYER_H
#define KT_KERNELS_MOE_LAYER_H

#include "base/pool.h"
#include "kt/variant.h"

#define KT_MOE_PHASES 3

/* What stays the same from call to call: one layer's weights and how to run them. Borrowed by jobs. */
typedef struct kt_moe_layer {
    kt_problem problem;           /* m ignored; n intermediate, k hidden, experts, topk */
    const void *const *experts;   /* [experts] packed bytes, 64-byte aligned */
    const kt_choice_map *choices; /* by rows per expert; same layout and acts throughout */
    const kt_variant *encode;     /* KT_OP_ENCODE variant for problem.acts */
} kt_moe_layer;

/* One call. Set the public members, then kt_moe_job_init; reusable. The job must outlive the run. */
typedef struct kt_moe_job {
    const kt_moe_layer *layer;
    const float *x; /* [tokens, ldx] layer input after the norm */
    int64_t ldx;
    int64_t tokens;
    const int32_t *expert_id;  /* [tokens, topk]; ids of a token distinct; -1 = slot unused */
    const float *route_weight; /* [tokens, topk] */
    float *out;                /* [tokens, ldo]; overwritten, or added to when accumulate is set */
    int64_t ldo;
    int accumulate;
    void *workspace;            /* kt_moe_workspace_bytes, 64-byte aligned; borrowed */
    struct kt_moe_state *state; /* inside workspace; set by init */
} kt_moe_job;

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

#endif
