/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router_select.h"

#include <math.h>

#include "base/err.h"

kt_status kt_router_rule_check(const kt_router_rule *rule, kt_err *err) {
    if (rule->experts < 1 || rule->experts > INT32_MAX)
        return kt_fail(err, KT_E_INVALID, "router: %lld experts", (long long)rule->experts);
    if (rule->topk < 1 || rule->topk > rule->experts || rule->topk > KT_ROUTER_MAX_TOPK)
        return kt_fail(
            err, KT_E_UNSUPPORTED, "router: %lld experts per token, expected 1 to %lld",
            (long long)rule->topk,
            (long long)(rule->experts < KT_ROUTER_MAX_TOPK ? rule->experts : KT_ROUTER_MAX_TOPK));
    if (rule->score != KT_ROUTER_SOFTMAX)
        return kt_fail(err, KT_E_UNSUPPORTED, "router: score function %d, expected softmax (0)",
                       (int)rule->score);
    return KT_OK;
}

/* Strictly ranks before: larger, or any number against NaN. Equal ones keep the order of arrival,
 * which is the order of indices. */
static inline bool before(float a, float b) {
    return a > b || (isnan(b) && !isnan(a));
}

/* Logits are compared, not probabilities: exp is monotonic, and its rounding would only invent ties.
 * The sorted list stays short, and most logits fall at its end after one comparison. */
static void choose(const float *logits, int64_t experts, int64_t topk, int32_t *id) {
    int64_t n = 0;
    for (int64_t e = 0; e < experts; e++) {
        int64_t at = n;
        if (n == topk) {
            if (!before(logits[e], logits[id[n - 1]])) continue;
            at = n - 1;
        } else {
            n++;
        }
        for (; at > 0 && before(logits[e], logits[id[at - 1]]); at--) id[at] = id[at - 1];
        id[at] = (int32_t)e;
    }
}

/* With norm_topk_prob the sum over all experts cancels, and only the chosen ones need exp. */
void kt_router_select(const kt_router_rule *rule, const float *logits, int32_t *expert_id,
                      float *route_weight) {
    float top;
    double sum = 0.0;

    choose(logits, rule->experts, rule->topk, expert_id);
    top = logits[expert_id[0]];
    for (int64_t j = 0; j < rule->topk; j++) route_weight[j] = expf(logits[expert_id[j]] - top);
    if (rule->norm_topk_prob)
        for (int64_t j = 0; j < rule->topk; j++) sum += route_weight[j];
    else
        for (int64_t e = 0; e < rule->experts; e++) sum += expf(logits[e] - top);
    for (int64_t j = 0; j < rule->topk; j++) route_weight[j] = (float)(route_weight[j] / sum);
}
