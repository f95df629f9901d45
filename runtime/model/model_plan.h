/* Which kernel runs every operation of a model: one answer for each distinct problem.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MODEL_PLAN_H
#define KT_RUNTIME_MODEL_PLAN_H

#include "dispatch/model/needs.h"
#include "dispatch/plan/plan.h"
#include "kernels/attn/attn_job.h"

/* What multiplies with one packed form of weights. */
typedef struct kt_problem_plan {
    const char *role;   /* of the first weight that asked */
    kt_problem problem; /* m = 0 */
    kt_choice_map choices;
    kt_choice_map *down_choices; /* of experts whose down has another format, or NULL */
    kt_choice encode;            /* of the input rows */
    kt_plan_source source;
    size_t bytes; /* packed, one matrix or one expert, rounded up to 64 */
} kt_problem_plan;

/* An operation without packed weights: norm, rotation, attention, router. */
typedef struct kt_simple_plan {
    kt_problem problem;
    kt_choice choice;
    kt_attn_choices by_size; /* of attention of one row or many over a cache, from the table */
} kt_simple_plan;

/* What of a weight the CPU does not hold, because another device does. */
typedef struct kt_away {
    bool is_whole;
    const uint8_t *expert; /* [count] of EXPERTS: 1 = away; NULL = none */
    int64_t n_experts;     /* that are away */
} kt_away;

typedef struct kt_model_plan {
    const kt_graph *graph; /* borrowed */
    kt_quant quant;
    kt_weight_format kv;
    kt_problem_plan *problems;
    int n_problems;
    kt_simple_plan *simple;
    int n_simple;
    int (*of_run)[KT_WEIGHT_PARTS]; /* [weights]: problems of the runs */
    kt_layer_plan layer;            /* how expert layers are cut, threads of a step, spin */
    int64_t max_rows, max_context;
    /* Latent attention: rows of a sequence in a step from which on its keys and values are made
     * wide (runtime/exec/expand.h); 0 = never. */
    int64_t expand_rows;
    int threads;
    const kt_away *away; /* [weights], borrowed; NULL = everything is here (kt_model_plan_make) */
    kt_arena arena;
} kt_model_plan;

/* Resolve everything for steps of at most max_rows rows and sequences of at most max_context,
 * whose caches are in format kv. *out is ended with kt_model_plan_deinit, also after an error. */
kt_status kt_model_plan_make(kt_planner *planner, const kt_graph *graph, kt_quant quant,
                             kt_weight_format kv, int threads, int64_t max_rows,
                             int64_t max_context, kt_model_plan *out, kt_err *err);
void kt_model_plan_deinit(kt_model_plan *plan); /* accepts a zeroed one */

/* From now on latent attention is expanded from so many rows on (expand_rows), at most max_rows;
 * before the weights are loaded. 0 = never. Does nothing where the plan cannot expand: without
 * latent attention, in deterministic plans, or with kernels that want another layout than p64. */
void kt_model_plan_set_expand(kt_model_plan *plan, int64_t rows);

/* The plan of a run of a weight (kt_weight_runs). */
const kt_problem_plan *kt_model_plan_run(const kt_model_plan *plan, int weight, int run);
/* The plan of the first weight with this role, its first run; NULL = there is none. */
const kt_problem_plan *kt_model_plan_role(const kt_model_plan *plan, const char *role);
/* Of experts: their layer as it runs, without cuts and weights. */
kt_moe_layer kt_problem_plan_layer(const kt_problem_plan *plan);
/* The choice for an operation that the graph has; problem as the plan asked (kt_simple_problem). */
const kt_choice *kt_model_plan_simple(const kt_model_plan *plan, const kt_problem *problem);
/* Of attention: the choices for spans by their sizes; n = 0 where nothing was tuned. NULL: there is
 * no such operation. */
const kt_attn_choices *kt_model_plan_attn(const kt_model_plan *plan, const kt_problem *problem);

/* Problems of nodes without packed weights; others are in dispatch/model/node_problems.h. */
kt_problem kt_norm_problem(int64_t width);
kt_problem kt_rope_problem(int64_t heads, int64_t size);
/* Of latent attention whose keys and values are wide: of all heads, and of one alone; the product
 * that takes latents to keys; and its plan, NULL = there is none. */
kt_problem kt_expand_attn_problem(const kt_model_plan *plan, const kt_node *attend);
kt_problem kt_expand_head_problem(const kt_problem *attn);
kt_problem kt_expand_keys_problem(const kt_graph *g, const kt_node *attend);
const kt_problem_plan *kt_model_plan_expand_keys(const kt_model_plan *plan, const kt_node *attend);
kt_problem kt_router_problem(const kt_weight *router, int64_t topk);

/* Bytes that a weight takes in memory, without what is away; of the whole model: the only count.
 * SIZE_MAX when it overflows. */
size_t kt_model_plan_bytes(const kt_model_plan *plan, int weight);
size_t kt_model_plan_weight_bytes(const kt_model_plan *plan);

#endif
