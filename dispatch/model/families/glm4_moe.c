/* GLM-4.5, 4.6 and 4.7: grouped-query attention with biases, optional norm of q and k, half of
 * each head rotated; dense layers first, then a sigmoid router over experts beside a shared one.
 * Source: the published Glm4MoeForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct glm4 {
    kt_gqa_numbers attention;
    int64_t experts, topk, inner, dense, first_dense, shared, groups, top_groups;
    double factor;
    bool is_normalised, is_tied, has_qk_norm;
} glm4;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(glm4, attention),
    {offsetof(glm4, experts), KT_NUMBER_INT, "n_routed_experts|num_experts", "expert_count",
     KT_NUMBER_NEEDED, 1, 65536},
    {offsetof(glm4, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(glm4, inner), KT_NUMBER_INT, "moe_intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(glm4, dense), KT_NUMBER_INT, "intermediate_size", "feed_forward_length", 0, 0,
     1 << 20},
    {offsetof(glm4, first_dense), KT_NUMBER_INT, "first_k_dense_replace",
     "leading_dense_block_count", 0, 0, KT_MAX_LAYERS},
    {offsetof(glm4, shared), KT_NUMBER_INT, "n_shared_experts", "expert_shared_count", 0, 0, 64},
    {offsetof(glm4, groups), KT_NUMBER_INT, "n_group", "expert_group_count", 1, 0, 1024},
    {offsetof(glm4, top_groups), KT_NUMBER_INT, "topk_group", "expert_group_used_count", 1, 0,
     1024},
    {offsetof(glm4, factor), KT_NUMBER_DOUBLE, "routed_scaling_factor", "expert_weights_scale", 1,
     0, 1e6},
    {offsetof(glm4, is_normalised), KT_NUMBER_BOOL, "norm_topk_prob", "expert_weights_norm", 1, 0,
     1},
    {offsetof(glm4, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1},
    {offsetof(glm4, has_qk_norm), KT_NUMBER_BOOL, "use_qk_norm", NULL, 0, 0, 1}};

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    glm4 *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    KT_TRY(kt_rotation_read(s, c->attention.dim, 0.5, &c->attention.rotation, err));
    c->attention.qk_norm = c->has_qk_norm ? KT_QK_NORM_HEAD : KT_QK_NORM_NONE;
    KT_TRY(kt_need_multiple(s, "moe_intermediate_size", c->inner, err));
    if (c->first_dense) KT_TRY(kt_need_multiple(s, "intermediate_size", c->dense, err));
    if (c->topk > c->experts)
        return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts",
                       s->where, (long long)c->topk, (long long)c->experts);
    return kt_need_silu(s, err);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const glm4 *c = numbers_;
    kt_gqa_numbers attention = c->attention;
    kt_view x = kt_residual(b), h, o;

    if (kt_has(b, (kt_name){"self_attn.q_norm.weight", "attn_q_norm.weight"}))
        attention.qk_norm = KT_QK_NORM_HEAD;
    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width), attention.eps);
    o = kt_gqa(b, h, &attention);
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x,
               KT_VEC("post_attention_layernorm.weight", "post_attention_norm.weight", x.width),
               attention.eps);
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

static void end(kt_build *b, const void *numbers_) {
    const glm4 *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{151552, "<|endoftext|>", 151329},
                                        {151552, "<|user|>", 151336},
                                        {151552, "<|observation|>", 151338}};

const kt_family kt_family_glm4_moe = {.name = "glm4_moe",
                                      .models = "GLM-4.5, GLM-4.6, GLM-4.7",
                                      .types = "glm4_moe",
                                      .archs = "glm4moe",
                                      .numbers_bytes = sizeof(glm4),
                                      .numbers = numbers,
                                      .n_numbers = sizeof numbers / sizeof *numbers,
                                      .settle = settle,
                                      .layer = layer,
                                      .end = end,
                                      .tokens = tokens,
                                      .n_tokens = sizeof tokens / sizeof *tokens};
