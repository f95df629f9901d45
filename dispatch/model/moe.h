/* The feed-forward half that GLM-4 and the families of DeepSeek-V3 share: dense layers first, then
 * a sigmoid router, in groups where there are several, over experts beside a shared one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_MOE_H
#define KT_DISPATCH_MOE_H

#include <stddef.h>

#include "dispatch/model/gqa.h"

/* A member of a family's numbers; KT_MOE_NUMBERS reads it, kt_moe_settle completes it. */
typedef struct kt_moe_numbers {
    int64_t experts, topk, inner, dense, first_dense, shared, groups, top_groups;
    double factor;
    bool is_normalised;
} kt_moe_numbers;

#define KT_MOE_NUMBER(type, field, kind, json, gguf, fallback, least, most) \
    { offsetof(type, field), kind, json, gguf, fallback, least, most }
#define KT_MOE_NUMBERS(type, m)                                                                    \
    KT_MOE_NUMBER(type, m.experts, KT_NUMBER_INT, "n_routed_experts|num_experts", "expert_count",  \
                  KT_NUMBER_NEEDED, 1, 65536),                                                     \
        KT_MOE_NUMBER(type, m.topk, KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",     \
                      KT_NUMBER_NEEDED, 1, KT_MAX_TOPK),                                           \
        KT_MOE_NUMBER(type, m.inner, KT_NUMBER_INT, "moe_intermediate_size",                       \
                      "expert_feed_forward_length", KT_NUMBER_NEEDED, 32, 1 << 20),                \
        KT_MOE_NUMBER(type, m.dense, KT_NUMBER_INT, "intermediate_size", "feed_forward_length", 0, \
                      0, 1 << 20),                                                                 \
        KT_MOE_NUMBER(type, m.first_dense, KT_NUMBER_INT, "first_k_dense_replace",                 \
                      "leading_dense_block_count", 0, 0, KT_MAX_LAYERS),                           \
        KT_MOE_NUMBER(type, m.shared, KT_NUMBER_INT, "n_shared_experts", "expert_shared_count", 0, \
                      0, 64),                                                                      \
        KT_MOE_NUMBER(type, m.groups, KT_NUMBER_INT, "n_group", "expert_group_count", 0, 0, 1024), \
        KT_MOE_NUMBER(type, m.top_groups, KT_NUMBER_INT, "topk_group", "expert_group_used_count",  \
                      0, 0, 1024),                                                                 \
        KT_MOE_NUMBER(type, m.factor, KT_NUMBER_DOUBLE, "routed_scaling_factor",                   \
                      "expert_weights_scale", 1, 0, 1e6),                                          \
        KT_MOE_NUMBER(type, m.is_normalised, KT_NUMBER_BOOL, "norm_topk_prob",                     \
                      "expert_weights_norm", 1, 0, 1)

/* GGUF files have a limit of the clamped SwiGLU for each layer and kind of expert, all the same: it
 * goes to *one, which stays as it is without them. */
kt_status kt_glu_limit_read(const kt_config_source *s, double *one, kt_err *err);
/* Refuses files whose router scores in another way than `score`, which in GGUF's expert_gating_func
 * is `number`; what is missing is right. */
kt_status kt_need_score(const kt_config_source *s, const char *score, int number, kt_err *err);
/* No groups are one group; sizes are checked. */
kt_status kt_moe_settle(const kt_config_source *s, kt_moe_numbers *c, kt_err *err);

/* x += the feed-forward of layer l over h. */
void kt_moe_half(kt_build *b, kt_view x, kt_view h, const kt_moe_numbers *c, int l);

#endif
