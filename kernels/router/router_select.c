/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router_select.h"

#include <math.h>
#include <string.h>

#include "base/err.h"

/* What is padded to whole blocks has room for that. */
enum { BLOCK = 16, MOST_BLOCKS = KT_ROUTER_MAX_EXPERTS / BLOCK };
_Static_assert(KT_ROUTER_MAX_EXPERTS % BLOCK == 0 && KT_ROUTER_MAX_GROUPS % BLOCK == 0, "blocks");

enum { RANK_CLOSED = INT32_MIN, RANK_NAN }; /* no candidate, and the last of the candidates */

/* Groups of one expert are refused: their score would be a sum of two that they do not have. */
static kt_status check_groups(const kt_router_rule *rule, kt_err *err) {
    if (rule->groups < 1 || rule->groups > KT_ROUTER_MAX_GROUPS ||
        rule->experts % rule->groups != 0 || (rule->groups > 1 && rule->experts / rule->groups < 2))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "router: %lld groups of %lld experts, expected 1 to %d equal groups of two "
                       "or more",
                       (long long)rule->groups, (long long)rule->experts, KT_ROUTER_MAX_GROUPS);
    if (rule->top_groups < 1 || rule->top_groups > rule->groups)
        return kt_fail(err, KT_E_INVALID, "router: %lld groups chosen, expected 1 to %lld",
                       (long long)rule->top_groups, (long long)rule->groups);
    if (rule->topk > rule->experts / rule->groups * rule->top_groups)
        return kt_fail(err, KT_E_INVALID,
                       "router: %lld experts per token, %lld groups of %lld have fewer",
                       (long long)rule->topk, (long long)rule->top_groups,
                       (long long)(rule->experts / rule->groups));
    return KT_OK;
}

kt_status kt_router_rule_check(const kt_router_rule *rule, kt_err *err) {
    if ((unsigned)rule->score >= KT_ROUTER_SCORE_COUNT)
        return kt_fail(err, KT_E_INVALID, "router: score function %d, expected 0 to %d",
                       (int)rule->score, KT_ROUTER_SCORE_COUNT - 1);
    if (rule->experts < 1 || rule->experts > KT_ROUTER_MAX_EXPERTS)
        return kt_fail(err, KT_E_UNSUPPORTED, "router: %lld experts, expected 1 to %d",
                       (long long)rule->experts, KT_ROUTER_MAX_EXPERTS);
    if (rule->topk < 1 || rule->topk > rule->experts || rule->topk > KT_ROUTER_MAX_TOPK)
        return kt_fail(
            err, KT_E_UNSUPPORTED, "router: %lld experts per token, expected 1 to %lld",
            (long long)rule->topk,
            (long long)(rule->experts < KT_ROUTER_MAX_TOPK ? rule->experts : KT_ROUTER_MAX_TOPK));
    if (!(rule->scale >= 0.0f && rule->scale < INFINITY))
        return kt_fail(err, KT_E_INVALID, "router: weights multiplied by %g", (double)rule->scale);
    if (rule->score == KT_ROUTER_SIGMOID_GROUP) return check_groups(rule, err);
    if (rule->groups > 1 || rule->top_groups > 1)
        return kt_fail(err, KT_E_INVALID, "router: %lld groups, which score function %d lacks",
                       (long long)rule->groups, (int)rule->score);
    return KT_OK;
}

/* An integer in place of a score: larger ones rank before, -0 is 0, and NaN is below all
 * numbers. */
static inline int32_t rank_of(float score) {
    int32_t bits, size, sign;
    memcpy(&bits, &score, sizeof bits);
    size = bits & INT32_MAX;
    sign = bits >> 31;
    return size > 0x7f800000 ? RANK_NAN : (size ^ sign) - sign;
}

static inline int32_t largest(const int32_t *rank, int64_t n) {
    int32_t top = RANK_CLOSED;
    for (int64_t i = 0; i < n; i++) top = rank[i] > top ? rank[i] : top;
    return top;
}

/* The topk first of the ranks, the lower index first among equals. Each pick looks at the largest
 * rank of every block and then at one block: few branches that depend on scores, which a sorted
 * list would have at every candidate (512 experts, 10 chosen: 2.5 times as long). Blocks of 8 to 32
 * are equally fast. rank is used up, and is padded to whole blocks. */
static void choose(int32_t *rank, int64_t experts, int64_t topk, int32_t *id) {
    int32_t best[MOST_BLOCKS];
    int64_t blocks = (experts + BLOCK - 1) / BLOCK;

    for (int64_t e = experts; e < blocks * BLOCK; e++) rank[e] = RANK_CLOSED;
    for (int64_t b = 0; b < blocks; b++) best[b] = largest(rank + b * BLOCK, BLOCK);
    for (int64_t j = 0; j < topk; j++) {
        int32_t top = largest(best, blocks);
        int64_t b = 0, i = 0;
        while (best[b] != top) b++;
        while (rank[b * BLOCK + i] != top) i++;
        id[j] = (int32_t)(b * BLOCK + i);
        rank[id[j]] = RANK_CLOSED;
        best[b] = largest(rank + b * BLOCK, BLOCK);
    }
}

/* The score that rank_of made a rank of. */
static inline float score_of(int32_t rank) {
    int32_t sign = rank >> 31, bits = ((rank ^ sign) - sign) | (sign & INT32_MIN);
    float score;
    memcpy(&score, &bits, sizeof score);
    return score;
}

/* The sum of the two largest of n scores; NaN when there are no two. */
static float best_two(const int32_t *rank, int64_t n) {
    int32_t first = largest(rank, n), second = RANK_NAN, n_first = 0;
    for (int64_t i = 0; i < n; i++) {
        int32_t other = rank[i] == first ? RANK_NAN : rank[i];
        second = other > second ? other : second;
        n_first += rank[i] == first;
    }
    return score_of(first) + score_of(n_first > 1 ? first : second);
}

/* Closes the experts of all groups but the best. */
static void close_groups(const kt_router_rule *rule, int32_t *rank) {
    int64_t size = rule->experts / rule->groups;
    int32_t group_rank[KT_ROUTER_MAX_GROUPS], id[KT_ROUTER_MAX_GROUPS];
    bool is_open[KT_ROUTER_MAX_GROUPS] = {false};

    for (int64_t g = 0; g < rule->groups; g++)
        group_rank[g] = rank_of(best_two(rank + g * size, size));
    choose(group_rank, rule->groups, rule->top_groups, id);
    for (int64_t i = 0; i < rule->top_groups; i++) is_open[id[i]] = true;
    for (int64_t g = 0; g < rule->groups; g++)
        for (int64_t e = g * size; !is_open[g] && e < (g + 1) * size; e++) rank[e] = RANK_CLOSED;
}

/* route_weight = route_weight / sum * the rule's scale. */
static void finish(const kt_router_rule *rule, double sum, float *route_weight) {
    double scale = rule->scale == 0.0f ? 1.0 : (double)rule->scale;
    for (int64_t j = 0; j < rule->topk; j++)
        route_weight[j] = (float)(route_weight[j] / sum * scale);
}

/* Logits are compared, not probabilities: exp is monotonic, and its rounding would only invent
 * ties. With norm_topk_prob the sum over all experts cancels, and only the chosen ones need exp. */
static void select_softmax(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                           float *route_weight) {
    float biased[KT_ROUTER_MAX_EXPERTS];
    int32_t rank[KT_ROUTER_MAX_EXPERTS];
    float top;
    double sum = 0.0;

    for (int64_t e = 0; rule->bias && e < rule->experts; e++) biased[e] = logits[e] + rule->bias[e];
    if (rule->bias) logits = biased;
    for (int64_t e = 0; e < rule->experts; e++) rank[e] = rank_of(logits[e]);
    choose(rank, rule->experts, rule->topk, expert_id);
    top = logits[expert_id[0]];
    for (int64_t j = 0; j < rule->topk; j++) route_weight[j] = expf(logits[expert_id[j]] - top);
    if (rule->norm_topk_prob)
        for (int64_t j = 0; j < rule->topk; j++) sum += route_weight[j];
    else
        for (int64_t e = 0; e < rule->experts; e++) sum += expf(logits[e] - top);
    finish(rule, sum, route_weight);
}

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* log(1 + e^x) without overflow. */
static inline float sqrt_softplus(float x) {
    return sqrtf(x > 20.0f ? x : log1pf(expf(x)));
}

static inline float score_alone(const kt_router_rule *rule, float logit) {
    return rule->score == KT_ROUTER_SQRT_SOFTPLUS ? sqrt_softplus(logit) : sigmoid(logit);
}

/* 1e-20 is the published code's: logits of -104 and less have sigmoids of 0, and 0 / 0 would be
 * NaN. */
void kt_router_weigh(const kt_router_rule *rule, const float *logits, const int32_t *expert_id,
                     float *route_weight) {
    double sum = 1e-20;

    for (int64_t j = 0; j < rule->topk; j++) {
        route_weight[j] = score_alone(rule, logits[expert_id[j]]);
        sum += route_weight[j];
    }
    finish(rule, rule->norm_topk_prob ? sum : 1.0, route_weight);
}

static void select_sigmoid(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                           float *route_weight) {
    float score[KT_ROUTER_MAX_EXPERTS];
    int32_t rank[KT_ROUTER_MAX_EXPERTS];

    for (int64_t e = 0; e < rule->experts; e++) score[e] = score_alone(rule, logits[e]);
    for (int64_t e = 0; rule->bias && e < rule->experts; e++) score[e] += rule->bias[e];
    for (int64_t e = 0; e < rule->experts; e++) rank[e] = rank_of(score[e]);
    if (rule->score == KT_ROUTER_SIGMOID_GROUP) close_groups(rule, rank);
    choose(rank, rule->experts, rule->topk, expert_id);
    kt_router_weigh(rule, logits, expert_id, route_weight);
}

void kt_router_select(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                      float *route_weight) {
    if (rule->score == KT_ROUTER_SOFTMAX)
        select_softmax(rule, logits, expert_id, route_weight);
    else
        select_sigmoid(rule, logits, expert_id, route_weight);
}
