/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/moe.h"

#include "base/err.h"

kt_status kt_moe_settle(const kt_config_source *s, kt_moe_numbers *c, kt_err *err) {
    if (c->groups < 1) c->groups = c->top_groups = 1;
    KT_TRY(kt_need_multiple(s, "moe_intermediate_size", c->inner, err));
    if (c->first_dense) KT_TRY(kt_need_multiple(s, "intermediate_size", c->dense, err));
    if (c->topk <= c->experts) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts", s->where,
                   (long long)c->topk, (long long)c->experts);
}

void kt_moe_half(kt_build *b, kt_view x, kt_view h, const kt_moe_numbers *c, int l) {
    if (l < c->first_dense) {
        kt_ffn(b, x, h, &KT_DENSE_FFN("dense_ffn", "mlp", "", c->dense, x.width));
        return;
    }
    kt_route(b, h, KT_MAT("mlp.gate", "ffn_gate_inp", c->experts, x.width),
             KT_VEC("mlp.gate.e_score_correction_bias", "exp_probs_b.bias", c->experts),
             &(kt_routing_rule){.score = c->groups > 1 ? KT_ROUTER_SIGMOID_GROUP
                                                       : KT_ROUTER_SIGMOID_BIAS,
                                .experts = c->experts,
                                .topk = c->topk,
                                .groups = c->groups,
                                .top_groups = c->top_groups,
                                .is_normalised = c->is_normalised,
                                .scale = c->factor});
    kt_experts(b, x, h, &KT_EXPERTS("mlp.experts", c->experts, c->inner, x.width), c->topk);
    if (c->shared)
        kt_ffn(
            b, x, h,
            &KT_DENSE_FFN("shared", "mlp.shared_experts", "_shexp", c->shared * c->inner, x.width));
}
