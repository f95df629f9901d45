/* From router logits to chosen experts and their weights. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROUTER_SELECT_H
#define KT_KERNELS_ROUTER_SELECT_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

#define KT_ROUTER_MAX_TOPK 64
#define KT_ROUTER_MAX_EXPERTS 1024 /* kt_router_select keeps their scores on the stack */
#define KT_ROUTER_MAX_GROUPS 64

/* How experts are chosen and weighted (Qwen; GLM, Kimi, MiniMax; DeepSeek). */
typedef enum kt_router_score {
    KT_ROUTER_SOFTMAX = 0,   /* largest logits; weights are softmax probabilities */
    KT_ROUTER_SIGMOID_BIAS,  /* largest sigmoid(logit) + bias; weights are sigmoid(logit) */
    KT_ROUTER_SIGMOID_GROUP, /* the same within the top_groups best of `groups` groups */
    KT_ROUTER_SQRT_SOFTPLUS, /* as SIGMOID_BIAS with sqrt(log(1 + exp(logit))): DeepSeek-V4 */
    KT_ROUTER_SCORE_COUNT
} kt_router_score;

/* Members that a rule does not need are zero. */
typedef struct kt_router_rule {
    kt_router_score score;
    int64_t experts;     /* 1 to KT_ROUTER_MAX_EXPERTS */
    int64_t topk;        /* 1 to min(experts, KT_ROUTER_MAX_TOPK) */
    bool norm_topk_prob; /* divide the weights of the chosen by their sum (sigmoid: + 1e-20) */
    const float *bias;   /* f32 [experts], borrowed; NULL = zeros. Sigmoid: for the choice only;
                          * softmax: added to the logits */
    int64_t groups;      /* equal, consecutive groups of at least two experts, or one group */
    int64_t top_groups;  /* groups that may be chosen from; together they hold topk experts */
    float scale;         /* the weights are multiplied by it at the end; 0 counts as 1 */
} kt_router_rule;

/* Refuses sizes out of range, groups that do not divide the experts or leave too few of them, and
 * members that the score does not use. The bias's values are not looked at. */
kt_status kt_router_rule_check(const kt_router_rule *rule, kt_err *err);

/* One token: the topk best scores, the lower index first among equals, in descending order.
 *
 * logits        f32 [experts].
 * expert_id     int32 [topk], gets distinct ids.
 * route_weight  f32 [topk], gets their weights, divided and multiplied in double and rounded once.
 *
 * Softmax probabilities are over all experts, their sum is in double. Sigmoids and what is
 * compared, sigmoid + bias, are f32. A group's score is the sum of its two largest sigmoid + bias,
 * and ties of groups go to the lower group; experts of other groups are no candidates, as if theirs
 * were minus infinity.
 *
 * A score of NaN (from the logit or from the bias) ranks behind all others, and so does a group
 * with fewer than two numbers. A chosen expert whose logit is NaN has a weight of NaN, and so have
 * all others of the token when weights are divided by a sum that it is part of.
 *
 * The rule must have passed kt_router_rule_check. Thread-safe; neither allocates nor fails. */
void kt_router_select(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                      float *route_weight);

/* The weights alone of experts that something else chose: the same numbers, for a rule with scores
 * that do not depend on each other (sigmoid, square root of softplus). */
void kt_router_weigh(const kt_router_rule *rule, const float *logits, const int32_t *expert_id,
                     float *route_weight);

#endif
