/* What families of gated DeltaNet layers (linear attention with a state) between layers of gated
 * grouped-query attention share: Qwen3-Next and Qwen3.5-MoE. They differ in how the inputs of a
 * DeltaNet layer are projected. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_HYBRID_H
#define KT_DISPATCH_HYBRID_H

#include "dispatch/model/gqa.h"

/* Numbers of these families (a kt_family's numbers are this struct). */
typedef struct kt_hybrid {
    kt_gqa_numbers attention;
    kt_delta_rule delta;
    int64_t taps, experts, topk, inner, shared, interval;
    bool is_normalised, is_tied, has_output_gate;
    bool is_full[KT_MAX_LAYERS];
} kt_hybrid;

#define KT_HYBRID_NUMBERS 18
extern const kt_number kt_hybrid_numbers[KT_HYBRID_NUMBERS];

kt_status kt_hybrid_settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                           kt_err *err);

/* What a DeltaNet layer takes in: qkv, the columns of q of all key heads, k of all, v of all value
 * heads; z, as many as v; ba, one b for each value head, then one a for each. */
typedef struct kt_hybrid_inputs {
    kt_view qkv, z, ba;
} kt_hybrid_inputs;

typedef kt_hybrid_inputs kt_hybrid_project(kt_build *b, const kt_hybrid *c, kt_view h);

/* One layer; after the last one. */
void kt_hybrid_layer(kt_build *b, const kt_hybrid *c, int l, kt_hybrid_project *project);
/* The draft head: a layer of full attention, whatever its number. */
void kt_hybrid_draft(kt_build *b, const void *numbers, int l, int64_t declared);
void kt_hybrid_end(kt_build *b, const void *numbers);

#endif
