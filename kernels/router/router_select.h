/* From router logits to chosen experts and their weights. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROUTER_SELECT_H
#define KT_KERNELS_ROUTER_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

#define KT_ROUTER_MAX_TOPK 64

/* How scores come from logits (Qwen; GLM, Kimi, MiniMax; DeepSeek). */
typedef enum kt_router_score {
    KT_ROUTER_SOFTMAX = 0,
    KT_ROUTER_SIGMOID_BIAS,
    KT_ROUTER_SIGMOID_GROUP,
    KT_ROUTER_SCORE_COUNT
} kt_router_score;

typedef struct kt_router_rule {
    kt_router_score score;
    int64_t experts, topk; /* 1 <= topk <= min(experts, KT_ROUTER_MAX_TOPK) */
    bool norm_topk_prob;   /* divide the chosen probabilities by their sum */
} kt_router_rule;

/* Refuses sizes out of range and scores that kt_router_select does not compute yet (all but softmax). */
kt_status kt_router_rule_check(const kt_router_rule *rule, kt_err *err);

/* One token: the topk largest logits, the lower index first among equals, in descending order.
 * expert_id [topk] gets distinct ids, route_weight [topk] softmax probabilities over all experts,
 * summed in double. NaN logits rank last and make the weights NaN. The rule must have passed
 * kt_router_rule_check. Thread-safe; neither allocates nor fails. */
void kt_router_select(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                      float *route_weight);

#endif
