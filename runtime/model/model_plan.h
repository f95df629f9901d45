/* Which kernels run a model: one answer of the planner per kind of matrix and per simple op.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_MODEL_PLAN_H
#define KT_RUNTIME_MODEL_PLAN_H

#include "dispatch/plan/plan.h"
#include "runtime/model/quant.h"
#include "runtime/model/family.h"

/* Kinds of weight matrices; all layers share the answer. */
typedef enum kt_part {
    KT_PART_QKV = 0,
    KT_PART_O,
    KT_PART_EXPERT, /* one routed expert */
    KT_PART_DENSE,  /* the feed-forward of a dense layer, run as a layer of one expert */
    KT_PART_HEAD,
    KT_PART_COUNT
} kt_part;

typedef struct kt_part_plan {
    kt_problem problem; /* m = 0 */
    kt_choice_map choices;
    kt_choice encode; /* of the part's input rows */
    kt_plan_source source;
    size_t bytes; /* packed, one matrix or one expert, rounded up to 64 */
    int is_used;
} kt_part_plan;

typedef struct kt_model_plan {
    kt_part_plan part[KT_PART_COUNT];
    kt_choice norm_hidden, norm_head, rope, attn;
    kt_choice router_bf16, router_f32;
    kt_problem attn_problem, router_problem; /* m = 0 */
    kt_layer_plan layer; /* how expert layers are cut, threads of a step, spin */
    int64_t max_rows;
    int threads;
} kt_model_plan;

/* Weight format of a part under --weights. */
kt_weight_format kt_part_format(kt_part part, const kt_model_config *config, kt_quant weights);

/* Resolve everything for steps of at most max_rows rows and sequences of at most max_context, whose caches
 * are in format kv. */
kt_status kt_model_plan_make(kt_planner *planner, const kt_model_config *config, kt_quant weights,
                             kt_weight_format kv, int threads, int64_t max_rows,
                             int64_t max_context, kt_model_plan *out, kt_err *err);

/* Packed bytes of the whole model (embedding, norms and routers included, as stored types). */
size_t kt_model_plan_weight_bytes(const kt_model_plan *plan, const kt_model_config *config);

#endif
