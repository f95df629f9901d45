/* Qwen3-MoE (Qwen3-30B-A3B, Qwen3-235B-A22B and relatives): grouped-query attention with
 * per-head RMSNorm of q and k, half-split RoPE, softmax router over SwiGLU experts, dense layers
 * in between where the config asks for them. Source of names and formulas: the published
 * Qwen3MoeForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct qwen3 {
    kt_gqa_numbers attention;
    int64_t experts, topk, inner, dense, step;
    bool is_normalised, is_tied, has_sliding_window;
    bool is_dense[KT_MAX_LAYERS];
} qwen3;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(qwen3, attention),
    {offsetof(qwen3, experts), KT_NUMBER_INT, "num_experts|n_routed_experts|num_local_experts",
     "expert_count", KT_NUMBER_NEEDED, 0, 65536},
    {offsetof(qwen3, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(qwen3, inner), KT_NUMBER_INT, "moe_intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(qwen3, dense), KT_NUMBER_INT, "intermediate_size", "feed_forward_length", 0, 0,
     1 << 20},
    {offsetof(qwen3, step), KT_NUMBER_INT, "decoder_sparse_step", NULL, 1, 1, INT32_MAX},
    {offsetof(qwen3, is_normalised), KT_NUMBER_BOOL, "norm_topk_prob", NULL, 0, 0, 1},
    {offsetof(qwen3, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1},
    {offsetof(qwen3, has_sliding_window), KT_NUMBER_BOOL, "use_sliding_window", NULL, 0, 0, 1}};

/* Layer i has experts iff it is not in mlp_only_layers and (i + 1) % decoder_sparse_step == 0. */
static kt_status read_layer_kinds(const kt_config_source *s, const kt_model_numbers *m, qwen3 *c,
                                  kt_err *err) {
    const kt_json *only = kt_json_get(s->json, "mlp_only_layers");
    int64_t n_dense = 0;

    for (int64_t i = 0; i < m->layers; i++)
        c->is_dense[i] = c->experts == 0 || (i + 1) % c->step != 0;
    for (size_t i = 0; i < kt_json_length(only); i++) {
        int64_t layer = kt_json_int(kt_json_at(only, i), -1);
        if (layer < 0)
            return kt_fail(err, KT_E_FORMAT, "%.200s: mlp_only_layers[%zu] is not a layer",
                           s->where, i);
        if (layer < m->layers) c->is_dense[layer] = true;
    }
    for (int64_t i = 0; i < m->layers; i++) n_dense += c->is_dense[i];
    if (n_dense) KT_TRY(kt_need_multiple(s, "intermediate_size", c->dense, err));
    if (n_dense < m->layers && c->topk > c->experts)
        return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts",
                       s->where, (long long)c->topk, (long long)c->experts);
    return KT_OK;
}

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    qwen3 *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    KT_TRY(kt_need_multiple(s, "moe_intermediate_size", c->inner, err));
    KT_TRY(read_layer_kinds(s, m, c, err));
    if (c->has_sliding_window)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: use_sliding_window true is not supported",
                       s->where);
    if (s->gguf) c->is_normalised = true; /* the format has no key for anything else */
    return kt_need_silu(s, err);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const qwen3 *c = numbers_;
    kt_view x = kt_residual(b), h, o;

    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width),
               c->attention.eps);
    o = kt_gqa(b, h, &c->attention);
    if (c->attention.has_bias)
        kt_bias(b, x, KT_VEC("self_attn.o_proj.bias", "attn_output.bias", x.width));
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x, KT_VEC("post_attention_layernorm.weight", "ffn_norm.weight", x.width),
               c->attention.eps);
    if (c->is_dense[l]) {
        kt_ffn(b, x, h, &KT_DENSE_FFN("dense_ffn", "mlp", "", c->dense, x.width));
        return;
    }
    kt_route(b, h, KT_MAT("mlp.gate", "ffn_gate_inp", c->experts, x.width), (kt_vec){.n = 0},
             &(kt_routing_rule){.score = KT_ROUTER_SOFTMAX,
                                .experts = c->experts,
                                .topk = c->topk,
                                .is_normalised = c->is_normalised});
    kt_experts(b, x, h, &KT_EXPERTS("mlp.experts", c->experts, c->inner, x.width), c->topk);
}

static void end(kt_build *b, const void *numbers_) {
    const qwen3 *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{151936, "<|endoftext|>", 151643},
                                        {151936, "<|im_start|>", 151644},
                                        {151936, "<|im_end|>", 151645}};

static const kt_known_hash hashes[] = {
    {151936, "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea", 0, {0}}};

const kt_family kt_family_qwen3_moe = {.name = "qwen3_moe",
                                       .models = "Qwen3-30B-A3B, Qwen3-235B-A22B",
                                       .types = "qwen3_moe",
                                       .archs = "qwen3moe",
                                       .numbers_bytes = sizeof(qwen3),
                                       .numbers = numbers,
                                       .n_numbers = sizeof numbers / sizeof *numbers,
                                       .settle = settle,
                                       .layer = layer,
                                       .end = end,
                                       .tokens = tokens,
                                       .n_tokens = sizeof tokens / sizeof *tokens,
                                       .hashes = hashes,
                                       .n_hashes = sizeof hashes / sizeof *hashes};
