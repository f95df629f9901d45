/* gpt-oss (20b and 120b): grouped-query attention with biases and a sink per head, every other
 * layer within a window; softmax over the chosen experts, whose gate and up are clamped and which
 * have biases. Source: the published GptOssForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct gpt_oss {
    kt_gqa_numbers attention;
    int64_t experts, topk, inner, window;
    double limit, alpha;
    bool is_tied;
    bool is_sliding[KT_MAX_LAYERS];
} gpt_oss;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(gpt_oss, attention),
    {offsetof(gpt_oss, experts), KT_NUMBER_INT, "num_local_experts|num_experts", "expert_count",
     KT_NUMBER_NEEDED, 1, 65536},
    {offsetof(gpt_oss, topk), KT_NUMBER_INT, "num_experts_per_tok|experts_per_token",
     "expert_used_count", KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(gpt_oss, inner), KT_NUMBER_INT, "intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(gpt_oss, window), KT_NUMBER_INT, "sliding_window", "attention.sliding_window", 128, 1,
     1 << 24},
    {offsetof(gpt_oss, limit), KT_NUMBER_DOUBLE, "swiglu_limit", NULL, 7, 0x1p-10, 0x1p20},
    {offsetof(gpt_oss, alpha), KT_NUMBER_DOUBLE, "swiglu_alpha", NULL, 1.702, 0x1p-10, 0x1p10},
    {offsetof(gpt_oss, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1}};

/* layer_types names each layer; without it even layers slide. */
static kt_status read_types(const kt_config_source *s, const kt_model_numbers *m, gpt_oss *c,
                            kt_err *err) {
    const kt_json *types = kt_json_get(s->json, "layer_types");
    const bool is_list = kt_json_type_of(types) != KT_JSON_NULL;

    if (is_list && kt_json_length(types) < (size_t)m->layers)
        return kt_fail(err, KT_E_FORMAT, "%.200s: layer_types has %zu entries for %lld layers",
                       s->where, kt_json_length(types), (long long)m->layers);
    for (int64_t i = 0; i < m->layers; i++) {
        const char *type = kt_json_string(kt_json_at(types, (size_t)i), NULL);
        if (!type) type = "";
        c->is_sliding[i] = is_list ? strcmp(type, "sliding_attention") == 0 : i % 2 == 0;
        if (is_list && !c->is_sliding[i] && strcmp(type, "full_attention") != 0)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: layer_types[%lld] is '%.40s', expected 'sliding_attention' or "
                           "'full_attention'",
                           s->where, (long long)i, type);
    }
    return KT_OK;
}

/* GGUF: of each `period` layers all but the last slide, or a truth for each layer. */
static kt_status read_pattern(const kt_config_source *s, const kt_model_numbers *m, gpt_oss *c,
                              kt_err *err) {
    const char *const key = "gpt-oss.attention.sliding_window_pattern";
    const kt_gguf_value *v = kt_gguf_find(s->gguf, key);
    const int64_t period = kt_gguf_int(s->gguf, key, 2);
    const bool is_list = v && v->type == KT_GGUF_ARRAY;

    if (is_list && (v->element_type != KT_GGUF_BOOL || v->count < (uint64_t)m->layers))
        return kt_fail(err, KT_E_FORMAT, "%.200s: '%s' has %llu elements, expected %lld truths",
                       s->where, key, (unsigned long long)v->count, (long long)m->layers);
    if (period < 1)
        return kt_fail(err, KT_E_FORMAT, "%.200s: '%s' is %lld, expected 1 or more", s->where, key,
                       (long long)period);
    for (int64_t i = 0; i < m->layers; i++)
        c->is_sliding[i] = is_list ? v->data[i] != 0 : i % period < period - 1;
    return KT_OK;
}

/* GGUF files do not say how the ramp of their YaRN ends: as published. */
static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    gpt_oss *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    c->attention.qk_norm = KT_QK_NORM_NONE;
    c->attention.has_sinks = true;
    if (s->gguf) c->attention.rotation.is_exact = true;
    if (s->gguf || kt_json_type_of(kt_json_get(s->json, "attention_bias")) == KT_JSON_NULL)
        c->attention.has_bias = true;
    KT_TRY(kt_need_multiple(s, "intermediate_size", c->inner, err));
    if (c->topk > c->experts)
        return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts",
                       s->where, (long long)c->topk, (long long)c->experts);
    KT_TRY(s->json ? read_types(s, m, c, err) : read_pattern(s, m, c, err));
    return kt_need_silu(s, err);
}

/* Safetensors hold gate and up in turn. */
static kt_vec half_of_bias(const char *gguf, int64_t n, int64_t at) {
    return (kt_vec){.name = {"mlp.experts.gate_up_proj_bias", gguf}, .n = n, .step = 2, .at = at};
}

static void experts(kt_build *b, kt_view x, kt_view h, const gpt_oss *c) {
    kt_expert_set set = KT_EXPERTS("mlp.experts", c->experts, c->inner, x.width);

    kt_route(b, h, KT_MAT("mlp.router", "ffn_gate_inp", c->experts, x.width),
             KT_VEC("mlp.router.bias", "ffn_gate_inp.bias", c->experts),
             &(kt_routing_rule){.score = KT_ROUTER_SOFTMAX,
                                .experts = c->experts,
                                .topk = c->topk,
                                .is_normalised = true});
    set.is_fused_transposed = true;
    set.glu = (kt_glu_rule){KT_GLU_OAI, (float)c->limit, (float)c->alpha};
    set.gate_bias = half_of_bias("ffn_gate_exps.bias", c->experts * c->inner, 0);
    set.up_bias = half_of_bias("ffn_up_exps.bias", c->experts * c->inner, 1);
    set.down_bias =
        KT_VEC("mlp.experts.down_proj_bias", "ffn_down_exps.bias", c->experts * x.width);
    kt_experts(b, x, h, &set, c->topk);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const gpt_oss *c = numbers_;
    kt_gqa_numbers attention = c->attention;
    kt_view x = kt_residual(b), h, o;

    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width), attention.eps);
    if (c->is_sliding[l]) attention.window = c->window;
    o = kt_gqa(b, h, &attention);
    if (attention.has_bias)
        kt_bias(b, x, KT_VEC("self_attn.o_proj.bias", "attn_output.bias", x.width));
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x,
               KT_VEC("post_attention_layernorm.weight", "post_attention_norm.weight", x.width),
               attention.eps);
    experts(b, x, h, c);
}

static void end(kt_build *b, const void *numbers_) {
    const gpt_oss *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

const kt_family kt_family_gpt_oss = {.name = "gpt_oss",
                                     .models = "gpt-oss-20b, gpt-oss-120b",
                                     .types = "gpt_oss",
                                     .archs = "gpt-oss",
                                     .numbers_bytes = sizeof(gpt_oss),
                                     .numbers = numbers,
                                     .n_numbers = sizeof numbers / sizeof *numbers,
                                     .settle = settle,
                                     .layer = layer,
                                     .end = end};
