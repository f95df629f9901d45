/* Router logits variants and the choice of experts by softmax.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/router/router_gate.h"
#include "kernels/router/router_select.h"
#include "tests/kernels/variants_of.h"
#include "tests/support/guard.h"
#include "tests/support/skip.h"

ParameterizedTestParameters(router, every_variant_is_within_its_bound) {
    return kt_variants_of(KT_OP_ROUTER);
}

ParameterizedTest(size_t *index, router, every_variant_is_within_its_bound) {
    static const int64_t shapes[][3] = {{1, 1, 1},      {1, 8, 32},   {5, 9, 31},     {4, 4, 48},
                                        {13, 17, 100},  {3, 60, 192}, {9, 128, 2048}, {6, 67, 509},
                                        {2, 27, 2061}, /* rows of weights over a small page */
                                        {14, 70, 1039}, {8, 5, 513}}; /* tiles, groups, chunks */
    const kt_variant *v = kt_builtin_variants[*index];
    kt_config config = {{0}};
    kt_err err;

    kt_skip_without_isa(v->isa, v->name);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int w = 0; w < 2; w++) {
            kt_problem p = {.op = KT_OP_ROUTER,
                            .weights = w ? KT_W_F32 : KT_W_BF16,
                            .m = shapes[i][0],
                            .n = shapes[i][1],
                            .k = shapes[i][2]};
            for (uint64_t seed = 1; seed <= 3; seed++)
                cr_assert(kt_router_gate(v, &config, &p, seed, NULL, &err) == KT_OK, "%s",
                          err.message);
        }
}

ParameterizedTestParameters(router, stays_inside_its_buffers) {
    return kt_variants_of(KT_OP_ROUTER);
}

ParameterizedTest(size_t *index, router, stays_inside_its_buffers) {
    const kt_variant *v = kt_builtin_variants[*index];

    kt_skip_without_isa(v->isa, v->name);
    for (int64_t k = 1; k <= 2090; k += k < 70 ? 1 : 2020)
        for (int w = 0; w < 2; w++) {
            kt_problem p = {
                .op = KT_OP_ROUTER, .weights = w ? KT_W_F32 : KT_W_BF16, .m = 5, .n = 11, .k = k};
            size_t wide = w ? sizeof(float) : sizeof(uint16_t);
            float *x = kt_guard_alloc((size_t)(5 * k) * sizeof *x, 4, 0);
            void *weights = kt_guard_alloc((size_t)(11 * k) * wide, wide, 0);
            float *logits = kt_guard_alloc(5 * 11 * sizeof *logits, 4, 0x11), canary = logits[0];
            kt_router_call call = {.problem = &p,
                                   .x = x,
                                   .ldx = k,
                                   .w = weights,
                                   .logits = logits,
                                   .ldl = 11,
                                   .row_begin = 0,
                                   .row_end = 5,
                                   .expert_begin = 2,
                                   .expert_end = 11};
            v->router(&call);
            for (int i = 0; i < 55; i++)
                cr_assert_eq(logits[i], i % 11 < 2 ? canary : 0.0f, "%s: k=%lld index %d", v->name,
                             (long long)k, i);
            kt_guard_free(x);
            kt_guard_free(weights);
            kt_guard_free(logits);
        }
}

Test(router, equal_logits_choose_the_lower_index) {
    const kt_router_rule rule = {.experts = 6, .topk = 3, .norm_topk_prob = true};
    const float all_equal[6] = {2, 2, 2, 2, 2, 2}, late[6] = {0, 1, 5, 1, 5, 1};
    int32_t id[3];
    float weight[3];

    kt_router_select(&rule, all_equal, id, weight);
    cr_assert(id[0] == 0 && id[1] == 1 && id[2] == 2);
    cr_assert_eq(weight[0], 1.0f / 3.0f);
    kt_router_select(&rule, late, id, weight);
    cr_assert(id[0] == 2 && id[1] == 4 && id[2] == 1);
}

Test(router, weights_are_softmax_probabilities) {
    const float logits[5] = {1.0f, -3.0f, 4.0f, 0.5f, 90.0f};
    double sum = 0.0, two = 0.0;
    for (int norm = 0; norm < 2; norm++) {
        const kt_router_rule rule = {.experts = 5, .topk = 2, .norm_topk_prob = norm};
        int32_t id[2];
        float weight[2];
        kt_router_select(&rule, logits, id, weight);
        sum = 0.0;
        for (int i = 0; i < 5; i++) sum += exp((double)logits[i] - 90.0);
        two = 1.0 + exp(4.0 - 90.0);
        cr_assert(id[0] == 4 && id[1] == 2);
        for (int j = 0; j < 2; j++) {
            double want = exp((double)logits[id[j]] - 90.0) / (norm ? two : sum);
            cr_assert(fabs(weight[j] - want) <= 0x1p-22 * want, "got %g, want %g", weight[j], want);
        }
    }
}

Test(router, nan_logits_still_give_distinct_experts) {
    const kt_router_rule rule = {.experts = 4, .topk = 3, .norm_topk_prob = true};
    const float logits[4] = {NAN, 1.0f, NAN, NAN};
    int32_t id[3];
    float weight[3];
    kt_router_select(&rule, logits, id, weight);
    cr_assert(id[0] == 1 && id[1] == 0 && id[2] == 2);
}

Test(router, refuses_rules_it_cannot_follow) {
    kt_router_rule rule = {.experts = 8, .topk = 9, .norm_topk_prob = true};
    cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_E_UNSUPPORTED);
    rule.topk = 0;
    cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_E_UNSUPPORTED);
    rule.topk = 8;
    cr_assert_eq(kt_router_rule_check(&rule, NULL), KT_OK);
}
