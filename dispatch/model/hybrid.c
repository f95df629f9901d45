/* Source: the published Qwen3NextForCausalLM. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/hybrid.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/draft_head.h"

const kt_number kt_hybrid_numbers[KT_HYBRID_NUMBERS] = {
    KT_GQA_NUMBERS(kt_hybrid, attention),
    {offsetof(kt_hybrid, delta.heads), KT_NUMBER_INT, "linear_num_value_heads",
     "ssm.time_step_rank", KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(kt_hybrid, delta.key_heads), KT_NUMBER_INT, "linear_num_key_heads", "ssm.group_count",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(kt_hybrid, delta.k), KT_NUMBER_INT, "linear_key_head_dim", "ssm.state_size",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(kt_hybrid, delta.v), KT_NUMBER_INT, "linear_value_head_dim", "ssm.state_size",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(kt_hybrid, taps), KT_NUMBER_INT, "linear_conv_kernel_dim", "ssm.conv_kernel",
     KT_NUMBER_NEEDED, 2, 16},
    {offsetof(kt_hybrid, experts), KT_NUMBER_INT, "num_experts", "expert_count", KT_NUMBER_NEEDED,
     1, 65536},
    {offsetof(kt_hybrid, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(kt_hybrid, inner), KT_NUMBER_INT, "moe_intermediate_size",
     "expert_feed_forward_length", KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(kt_hybrid, shared), KT_NUMBER_INT, "shared_expert_intermediate_size",
     "expert_shared_feed_forward_length", 0, 0, 1 << 20},
    {offsetof(kt_hybrid, interval), KT_NUMBER_INT, "full_attention_interval",
     "full_attention_interval", 4, 1, KT_MAX_LAYERS},
    {offsetof(kt_hybrid, is_normalised), KT_NUMBER_BOOL, "norm_topk_prob", NULL, 1, 0, 1},
    {offsetof(kt_hybrid, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1},
    {offsetof(kt_hybrid, has_output_gate), KT_NUMBER_BOOL, "attn_output_gate", NULL, 1, 0, 1}};

/* layer_types says it, else every interval-th layer is full attention. */
static void read_layer_kinds(const kt_config_source *s, const kt_model_numbers *m, kt_hybrid *c) {
    const kt_json *types = kt_json_get(s->json, "layer_types");

    for (int64_t i = 0; i < m->layers; i++) {
        const char *type = kt_json_string(kt_json_at(types, (size_t)i), NULL);
        c->is_full[i] = (i + 1) % c->interval == 0;
        if (type) c->is_full[i] = strcmp(type, "full_attention") == 0;
    }
}

kt_status kt_hybrid_settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                           kt_err *err) {
    kt_hybrid *c = numbers;

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
    if (!c->has_output_gate)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: attn_output_gate is false, expected true",
                       s->where);
    if (kt_json_length(kt_json_get(s->json, "mlp_only_layers")))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: mlp_only_layers has %zu layers: no published model has any",
                       s->where, kt_json_length(kt_json_get(s->json, "mlp_only_layers")));
    read_layer_kinds(s, m, c);
    return kt_need_silu(s, err);
}

/* Each head of q stands beside its gate; o is multiplied by the gate's sigmoid. */
static kt_view full_attention(kt_build *b, const kt_hybrid *c, kt_view h) {
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

static kt_view linear_attention(kt_build *b, const kt_hybrid *c, kt_view h,
                                kt_hybrid_project *project) {
    const kt_delta_rule *d = &c->delta;
    const kt_hybrid_inputs in = project(b, c, h);
    kt_vec taps = KT_VEC("linear_attn.conv1d.weight", "ssm_conv1d.weight", 0);
    kt_vec decay = KT_VEC("linear_attn.A_log", "ssm_a", d->heads);

    taps.n = in.qkv.width * c->taps;
    taps.taps = c->taps;
    decay.negative_exp = true;
    return kt_delta(b, kt_conv(b, in.qkv, taps), in.ba, in.z, d, decay,
                    KT_VEC("linear_attn.dt_bias", "ssm_dt.bias", d->heads),
                    KT_VEC("linear_attn.norm.weight", "ssm_norm.weight", d->v), c->attention.eps);
}

/* project is needed of layers that are not full alone. */
static void hybrid_layer(kt_build *b, const kt_hybrid *c, bool is_full,
                         kt_hybrid_project *project) {
    const double eps = c->attention.eps;
    kt_view x = kt_residual(b), h, o, gate = {0};

    h = kt_rms(b, x, KT_VEC_PLUS("input_layernorm.weight", "attn_norm.weight", x.width), eps);
    if (is_full) {
        o = full_attention(b, c, h);
        kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    } else {
        o = linear_attention(b, c, h, project);
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

void kt_hybrid_layer(kt_build *b, const kt_hybrid *c, int l, kt_hybrid_project *project) {
    hybrid_layer(b, c, c->is_full[l], project);
}

void kt_hybrid_draft(kt_build *b, const void *numbers, int l, int64_t declared) {
    const kt_hybrid *c = numbers;
    const int64_t h = kt_residual(b).width;
    const kt_draft_head head = {
        .embedding_norm = KT_VEC_PLUS("mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight", h),
        .hidden_norm = KT_VEC_PLUS("mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight", h),
        .norm = KT_VEC_PLUS("mtp.norm.weight", "nextn.shared_head_norm.weight", h),
        .join = KT_MAT("mtp.fc", "nextn.eh_proj", h, 2 * h),
        .eps = c->attention.eps,
        .body = "mtp.layers.0."};

    (void)l;
    if (!kt_draft_head_is_there(b, &head, declared)) return;
    kt_draft_begin(b, &head);
    hybrid_layer(b, c, true, NULL);
    kt_draft_end(b, &head);
}

void kt_hybrid_end(kt_build *b, const void *numbers) {
    const kt_hybrid *c = numbers;

    kt_head(b, KT_VEC_PLUS("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}
