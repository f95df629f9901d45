/* MiniMax-M2 and M2.1: grouped-query attention whose q and k are normalised over all heads of a
 * row together, half of each head rotated, sigmoid router with a bias that chooses but does not
 * weigh, no shared expert. Source: the published configuration and modelling code.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct minimax {
    kt_gqa_numbers attention;
    int64_t experts, topk, inner;
    bool is_tied;
} minimax;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(minimax, attention),
    {offsetof(minimax, experts), KT_NUMBER_INT, "num_local_experts|num_experts", "expert_count",
     KT_NUMBER_NEEDED, 1, 65536},
    {offsetof(minimax, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(minimax, inner), KT_NUMBER_INT, "intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(minimax, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1}};

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    minimax *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    c->attention.qk_norm = KT_QK_NORM_ROW;
    KT_TRY(kt_need_multiple(s, "intermediate_size", c->inner, err));
    if (c->topk > c->experts)
        return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts",
                       s->where, (long long)c->topk, (long long)c->experts);
    if (kt_json_int(kt_json_get(s->json, "shared_intermediate_size"), 0) != 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: shared_intermediate_size is not 0: no published model has that",
                       s->where);
    return kt_need_silu(s, err);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const minimax *c = numbers_;
    kt_view x = kt_residual(b), h, o;

    (void)l;
    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width),
               c->attention.eps);
    o = kt_gqa(b, h, &c->attention);
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x, KT_VEC("post_attention_layernorm.weight", "ffn_norm.weight", x.width),
               c->attention.eps);
    kt_route(b, h, KT_MAT("block_sparse_moe.gate", "ffn_gate_inp", c->experts, x.width),
             KT_VEC("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", c->experts),
             &(kt_routing_rule){.score = KT_ROUTER_SIGMOID_BIAS,
                                .experts = c->experts,
                                .topk = c->topk,
                                .is_normalised = true,
                                .scale = 1});
    kt_experts(b, x, h,
               &(kt_expert_set){.role = "experts",
                                .gate = {"block_sparse_moe.experts.{e}.w1", "ffn_gate_exps"},
                                .up = {"block_sparse_moe.experts.{e}.w3", "ffn_up_exps"},
                                .down = {"block_sparse_moe.experts.{e}.w2", "ffn_down_exps"},
                                .count = c->experts,
                                .n = c->inner,
                                .k = x.width},
               c->topk);
}

static void end(kt_build *b, const void *numbers_) {
    const minimax *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{200064, "[e~[", 200020}, {200064, "]~!b[", 200034}};

static const kt_known_hash hashes[] = {
    {200064, "f4f37b6c8eb9ea29b3eac6bb8c8487c5ab7885f8d8022e67edc1c68ce8403e95", 0, {0}}};

const kt_family kt_family_minimax_m2 = {.name = "minimax_m2",
                                        .models = "MiniMax-M2, M2.1, M2.5",
                                        .types = "minimax_m2|minimax",
                                        .archs = "minimax-m2",
                                        .numbers_bytes = sizeof(minimax),
                                        .numbers = numbers,
                                        .n_numbers = sizeof numbers / sizeof *numbers,
                                        .settle = settle,
                                        .layer = layer,
                                        .end = end,
                                        .tokens = tokens,
                                        .n_tokens = sizeof tokens / sizeof *tokens,
                                        .hashes = hashes,
                                        .n_hashes = sizeof hashes / sizeof *hashes};
