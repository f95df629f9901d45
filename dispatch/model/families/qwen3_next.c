/* Qwen3-Next: three of four layers are gated DeltaNet (linear attention with a state), the
 * fourth is gated grouped-query attention; softmax router over small experts beside a gated
 * shared one. Source: the published Qwen3NextForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct next {
    kt_gqa_numbers attention;
    kt_delta_rule delta;
    int64_t taps, experts, topk, inner, shared, interval;
    bool is_normalised, is_tied;
    bool is_full[KT_MAX_LAYERS];
} next;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(next, attention),
    {offsetof(next, delta.heads), KT_NUMBER_INT, "linear_num_value_heads", "ssm.time_step_rank",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(next, delta.key_heads), KT_NUMBER_INT, "linear_num_key_heads", "ssm.group_count",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(next, delta.k), KT_NUMBER_INT, "linear_key_head_dim", "ssm.state_size",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(next, delta.v), KT_NUMBER_INT, "linear_value_head_dim", "ssm.state_size",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(next, taps), KT_NUMBER_INT, "linear_conv_kernel_dim", "ssm.conv_kernel",
     KT_NUMBER_NEEDED, 2, 16},
    {offsetof(next, experts), KT_NUMBER_INT, "num_experts", "expert_count", KT_NUMBER_NEEDED, 1,
     65536},
    {offsetof(next, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(next, inner), KT_NUMBER_INT, "moe_intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(next, shared), KT_NUMBER_INT, "shared_expert_intermediate_size",
     "expert_shared_feed_forward_length", 0, 0, 1 << 20},
    {offsetof(next, interval), KT_NUMBER_INT, "full_attention_interval", "full_attention_interval",
     4, 1, KT_MAX_LAYERS},
    {offsetof(next, is_normalised), KT_NUMBER_BOOL, "norm_topk_prob", NULL, 1, 0, 1},
    {offsetof(next, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1}};

/* layer_types says it, else every interval-th layer is full attention. */
static void read_layer_kinds(const kt_config_source *s, const kt_model_numbers *m, next *c) {
    const kt_json *types = kt_json_get(s->json, "layer_types");

    for (int64_t i = 0; i < m->layers; i++) {
        const char *type = kt_json_string(kt_json_at(types, (size_t)i), NULL);
        c->is_full[i] = (i + 1) % c->interval == 0;
        if (type) c->is_full[i] = strcmp(type, "full_attention") == 0;
    }
}

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    next *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    KT_TRY(kt_rotation_read(s, c->attention.dim, 0.25, &c->attention.rotation, err));
    KT_TRY(kt_need_multiple(s, "moe_intermediate_size", c->inner, err));
    if (c->shared) KT_TRY(kt_need_multiple(s, "shared_expert_intermediate_size", c->shared, err));
    if (c->delta.heads % c->delta.key_heads != 0)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: linear_num_value_heads %lld is not a multiple of "
                       "linear_num_key_heads %lld",
                       s->where, (long long)c->delta.heads, (long long)c->delta.key_heads);
    if (c->topk > c->experts)
        return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts",
                       s->where, (long long)c->topk, (long long)c->experts);
    read_layer_kinds(s, m, c);
    return kt_need_silu(s, err);
}

/* Each head of q stands beside its gate; o is multiplied by the gate's sigmoid. */
static kt_view full_attention(kt_build *b, const next *c, kt_view h) {
    const kt_gqa_numbers *a = &c->attention;
    const int64_t kv = a->kv_heads * a->dim, halves[] = {a->dim, a->dim};
    const kt_mat mats[3] = {KT_MAT("self_attn.q_proj", "attn_q", 2 * a->heads * a->dim, h.width),
                            KT_MAT("self_attn.k_proj", "attn_k", kv, h.width),
                            KT_MAT("self_attn.v_proj", "attn_v", kv, h.width)};
    kt_view v[3], q[2], o;

    kt_linear(b, "qkv", h, 3, mats, v);
    kt_regroup(b, v[0], a->heads, 2, halves, q);
    kt_rms_heads(b, q[0], a->dim,
                 KT_VEC_PLUS("self_attn.q_norm.weight", "attn_q_norm.weight", a->dim), a->eps);
    kt_rms_heads(b, v[1], a->dim,
                 KT_VEC_PLUS("self_attn.k_norm.weight", "attn_k_norm.weight", a->dim), a->eps);
    kt_rope(b, q[0], a->dim, &a->rotation);
    kt_rope(b, v[1], a->dim, &a->rotation);
    o = kt_attend(b, q[0], kt_keep(b, v[1], v[2], a->kv_heads),
                  &(kt_attention){.heads = a->heads,
                                  .kv_heads = a->kv_heads,
                                  .k = a->dim,
                                  .v = a->dim,
                                  .scale = 1.0 / sqrt((double)a->dim)});
    kt_gate(b, o, q[1]);
    return o;
}

/* q, k, v side by side, and z: grouped by key head in safetensors and old GGUF files (ssm_in),
 * sorted in new ones. */
static void project(kt_build *b, const next *c, kt_view h, kt_view *qkv, kt_view *z) {
    const kt_delta_rule *d = &c->delta;
    const int64_t keys = d->key_heads * d->k, values = d->heads * d->v;
    const int64_t of_group = d->heads / d->key_heads * d->v;
    const int64_t parts[] = {d->k, d->k, of_group, of_group};
    const kt_mat joined =
        KT_MAT("linear_attn.in_proj_qkvz", "ssm_in", 2 * keys + 2 * values, h.width);
    const kt_mat sorted[2] = {KT_MAT(NULL, "attn_qkv", 2 * keys + values, h.width),
                              KT_MAT(NULL, "attn_gate", values, h.width)};
    kt_view u, out[4];

    if (kt_is_gguf(b) && !kt_has(b, (kt_name){NULL, "ssm_in.weight"})) {
        kt_linear(b, "linear_qkvz", h, 2, sorted, out);
        *qkv = out[0];
        *z = out[1];
        return;
    }
    kt_linear(b, "linear_qkvz", h, 1, &joined, &u);
    kt_regroup(b, u, d->key_heads, 4, parts, out);
    *qkv = (kt_view){out[0].value, 0, 2 * keys + values};
    *z = out[3];
}

static kt_view linear_attention(kt_build *b, const next *c, kt_view h) {
    const kt_delta_rule *d = &c->delta;
    const int64_t of_group = d->heads / d->key_heads, parts[] = {of_group, of_group};
    const kt_mat mat = KT_MAT("linear_attn.in_proj_ba", "ssm_ba", 2 * d->heads, h.width);
    kt_vec taps = KT_VEC("linear_attn.conv1d.weight", "ssm_conv1d.weight", 0);
    kt_vec decay = KT_VEC("linear_attn.A_log", "ssm_a", d->heads);
    kt_view qkv, z, ba, sorted[2];

    project(b, c, h, &qkv, &z);
    kt_linear(b, "linear_ba", h, 1, &mat, &ba);
    kt_regroup(b, ba, d->key_heads, 2, parts, sorted);
    taps.n = qkv.width * c->taps;
    taps.taps = c->taps;
    decay.negative_exp = true;
    ba = (kt_view){sorted[0].value, 0, 2 * d->heads};
    return kt_delta(b, kt_conv(b, qkv, taps), ba, z, d, decay,
                    KT_VEC("linear_attn.dt_bias", "ssm_dt.bias", d->heads),
                    KT_VEC("linear_attn.norm.weight", "ssm_norm.weight", d->v), c->attention.eps);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const next *c = numbers_;
    const double eps = c->attention.eps;
    kt_view x = kt_residual(b), h, o, gate = {0};

    h = kt_rms(b, x, KT_VEC_PLUS("input_layernorm.weight", "attn_norm.weight", x.width), eps);
    if (c->is_full[l]) {
        o = full_attention(b, c, h);
        kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    } else {
        o = linear_attention(b, c, h);
        kt_linear_into(b, "linear_out", x, o,
                       KT_MAT("linear_attn.out_proj", "ssm_out", x.width, o.width));
    }
    h = kt_rms(
        b, x, KT_VEC_PLUS("post_attention_layernorm.weight", "post_attention_norm.weight", x.width),
        eps);
    if (c->shared) /* before the routing, which gives the shared expert its weight */
        gate = kt_dot(
            b, h, KT_VEC("mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", x.width));
    kt_route(b, h, KT_MAT("mlp.gate", "ffn_gate_inp", c->experts, x.width), (kt_vec){.n = 0},
             &(kt_routing_rule){.score = KT_ROUTER_SOFTMAX,
                                .experts = c->experts,
                                .topk = c->topk,
                                .is_normalised = c->is_normalised});
    kt_experts(b, x, h, &KT_EXPERTS("mlp.experts", c->experts, c->inner, x.width), c->topk);
    if (c->shared)
        kt_ffn_gated(b, x, h, gate,
                     &KT_DENSE_FFN("shared", "mlp.shared_expert", "_shexp", c->shared, x.width));
}

static void end(kt_build *b, const void *numbers_) {
    const next *c = numbers_;

    kt_head(b, KT_VEC_PLUS("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{151936, "<|endoftext|>", 151643},
                                        {151936, "<|im_start|>", 151644},
                                        {151936, "<|im_end|>", 151645}};

static const kt_known_hash hashes[] = {
    {151936, "e636dc30a262dcc0d8c323492e32ae2b70728f4df7dfe9737d9f920a282b8aea", 0, {0}}};

const kt_family kt_family_qwen3_next = {.name = "qwen3_next",
                                        .models = "Qwen3-Next-80B-A3B",
                                        .types = "qwen3_next",
                                        .archs = "qwen3next",
                                        .numbers_bytes = sizeof(next),
                                        .numbers = numbers,
                                        .n_numbers = sizeof numbers / sizeof *numbers,
                                        .settle = settle,
                                        .layer = layer,
                                        .end = end,
                                        .tokens = tokens,
                                        .n_tokens = sizeof tokens / sizeof *tokens,
                                        .hashes = hashes,
                                        .n_hashes = sizeof hashes / sizeof *hashes};
