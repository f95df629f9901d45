/* MiniMax-M3: grouped-query attention with norms of each head of q and k, half of each head
 * rotated; from some layer on its heads meet blocks of keys that an index picks for each kv head.
 * Dense layers first, then a sigmoid router with a bias that chooses but does not weigh, over
 * experts beside a shared one, whose sum is not scaled. Norms are stored as w - 1, and all
 * feed-forwards clamp. Source: the published configuration and modelling code.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"
#include "dispatch/model/block_selection.h"

typedef struct minimax3 {
    kt_gqa_numbers attention;
    int64_t experts, topk, inner, dense, shared, n_shared, first_dense;
    double factor, alpha, limit;
    bool is_tied, has_gemma_norm, has_qk_norm, has_output_gate, has_routing_bias;
    kt_key_blocks blocks;
    bool is_dense[KT_MAX_LAYERS];
} minimax3;

static const kt_number numbers[] = {
    KT_GQA_NUMBERS(minimax3, attention),
    {offsetof(minimax3, experts), KT_NUMBER_INT, "num_local_experts|num_experts", "expert_count",
     KT_NUMBER_NEEDED, 1, 65536},
    {offsetof(minimax3, topk), KT_NUMBER_INT, "num_experts_per_tok", "expert_used_count",
     KT_NUMBER_NEEDED, 1, KT_MAX_TOPK},
    {offsetof(minimax3, inner), KT_NUMBER_INT, "intermediate_size", "expert_feed_forward_length",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(minimax3, dense), KT_NUMBER_INT, "dense_intermediate_size", "feed_forward_length", 0,
     0, 1 << 20},
    {offsetof(minimax3, shared), KT_NUMBER_INT, "shared_intermediate_size", NULL, 0, 0, 1 << 20},
    {offsetof(minimax3, n_shared), KT_NUMBER_INT, "n_shared_experts", "expert_shared_count", 0, 0,
     64},
    {offsetof(minimax3, first_dense), KT_NUMBER_INT, "first_k_dense_replace",
     "leading_dense_block_count", 0, 0, KT_MAX_LAYERS},
    {offsetof(minimax3, factor), KT_NUMBER_DOUBLE, "routed_scaling_factor", "expert_weights_scale",
     1, 0, 1e6},
    {offsetof(minimax3, alpha), KT_NUMBER_DOUBLE, "swiglu_alpha", NULL, 1.702, 1e-6, 1e6},
    {offsetof(minimax3, limit), KT_NUMBER_DOUBLE, "swiglu_limit", NULL, 7, 1e-6, 1e6},
    {offsetof(minimax3, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1},
    {offsetof(minimax3, has_gemma_norm), KT_NUMBER_BOOL, "use_gemma_norm", NULL, 1, 0, 1},
    {offsetof(minimax3, has_qk_norm), KT_NUMBER_BOOL, "use_qk_norm", NULL, 1, 0, 1},
    {offsetof(minimax3, has_output_gate), KT_NUMBER_BOOL, "attention_output_gate", NULL, 0, 0, 1},
    {offsetof(minimax3, has_routing_bias), KT_NUMBER_BOOL, "use_routing_bias", NULL, 1, 0, 1}};

/* ---- reading ---- */

static kt_status need_flag(const kt_config_source *s, const char *key, bool found, bool want,
                           kt_err *err) {
    if (found == want) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s is %s, expected %s", s->where, key,
                   found ? "true" : "false", want ? "true" : "false");
}

static kt_status check_sizes(const kt_config_source *s, int64_t layers, const minimax3 *c,
                             kt_err *err) {
    bool is_any_dense = false;

    for (int64_t l = 0; l < layers; l++) is_any_dense |= c->is_dense[l];
    KT_TRY(kt_need_multiple(s, "intermediate_size", c->inner, err));
    if (is_any_dense) KT_TRY(kt_need_multiple(s, "dense_intermediate_size", c->dense, err));
    if (c->n_shared) KT_TRY(kt_need_multiple(s, "shared_intermediate_size", c->shared, err));
    if (c->topk <= c->experts) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%.200s: num_experts_per_tok %lld of %lld experts", s->where,
                   (long long)c->topk, (long long)c->experts);
}

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    minimax3 *c = numbers_;

    KT_TRY(kt_gqa_settle(s, m, &c->attention, err));
    KT_TRY(need_flag(s, "use_gemma_norm", c->has_gemma_norm, true, err));
    KT_TRY(need_flag(s, "use_qk_norm", c->has_qk_norm, true, err));
    KT_TRY(need_flag(s, "use_routing_bias", c->has_routing_bias, true, err));
    KT_TRY(need_flag(s, "attention_output_gate", c->has_output_gate, false, err));
    KT_TRY(kt_need_word(s, s->json, "qk_norm_type", "per_head", err));
    KT_TRY(kt_need_word(s, s->json, "scoring_func", "sigmoid", err));
    KT_TRY(kt_need_word(s, s->json, "hidden_act", "swigluoai", err));
    if (s->json) {
        bool has_experts[KT_MAX_LAYERS];
        KT_TRY(kt_read_flags(s, s->json, "moe_layer_freq", m->layers, true, has_experts, err));
        for (int64_t l = 0; l < m->layers; l++) c->is_dense[l] = !has_experts[l];
        if (c->n_shared > 1)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: n_shared_experts is %lld, expected 0 or 1", s->where,
                           (long long)c->n_shared);
    } else {
        c->shared = c->n_shared * c->inner;
        for (int64_t l = 0; l < m->layers; l++) c->is_dense[l] = l < c->first_dense;
    }
    KT_TRY(kt_key_blocks_read(s, m->layers, c->first_dense, &c->attention, &c->blocks, err));
    return check_sizes(s, m->layers, c, err);
}

/* ---- layers ---- */

/* Index queries, one for each kv head, and the index key, normed and rotated as q and k are. */
static kt_index_rule index_of(kt_build *b, const minimax3 *c, kt_view h) {
    const int64_t dim = c->blocks.index.dim;
    const kt_mat mats[2] = {
        KT_MAT("self_attn.index_q_proj", "indexer.q_proj", c->blocks.index.heads * dim, h.width),
        KT_MAT("self_attn.index_k_proj", "indexer.k_proj", dim, h.width)};
    kt_index_rule index = c->blocks.index;
    kt_view v[2];

    kt_linear(b, "indexer", h, 2, mats, v);
    kt_rms_heads(b, v[0], dim,
                 KT_VEC_PLUS("self_attn.index_q_norm.weight", "indexer.q_norm.weight", dim),
                 c->attention.eps);
    kt_rms_heads(b, v[1], dim,
                 KT_VEC_PLUS("self_attn.index_k_norm.weight", "indexer.k_norm.weight", dim),
                 c->attention.eps);
    kt_rope(b, v[0], dim, &c->attention.rotation);
    kt_rope(b, v[1], dim, &c->attention.rotation);
    index.queries = v[0];
    index.keys = v[1];
    return index;
}

static kt_view attend(kt_build *b, const minimax3 *c, kt_view h, int l) {
    const kt_gqa_numbers *a = &c->attention;
    const int64_t q = a->heads * a->dim, kv = a->kv_heads * a->dim;
    const kt_mat mats[3] = {KT_MAT("self_attn.q_proj", "attn_q", q, h.width),
                            KT_MAT("self_attn.k_proj", "attn_k", kv, h.width),
                            KT_MAT("self_attn.v_proj", "attn_v", kv, h.width)};
    const kt_attention attention = {.heads = a->heads,
                                    .kv_heads = a->kv_heads,
                                    .k = a->dim,
                                    .v = a->dim,
                                    .scale = 1.0 / sqrt((double)a->dim)};
    kt_index_rule index;
    kt_view v[3];
    int plane;

    kt_linear(b, "qkv", h, 3, mats, v);
    kt_rms_heads(b, v[0], a->dim,
                 KT_VEC_PLUS("self_attn.q_norm.weight", "attn_q_norm.weight", a->dim), a->eps);
    kt_rms_heads(b, v[1], a->dim,
                 KT_VEC_PLUS("self_attn.k_norm.weight", "attn_k_norm.weight", a->dim), a->eps);
    kt_rope(b, v[0], a->dim, &a->rotation);
    kt_rope(b, v[1], a->dim, &a->rotation);
    plane = kt_keep(b, v[1], v[2], a->kv_heads);
    if (c->blocks.is_sparse[l]) {
        index = index_of(b, c, h);
        return kt_attend_blocks(b, v[0], plane, &attention, &index);
    }
    return kt_attend(b, v[0], plane, &attention);
}

static void feed_forward(kt_build *b, const minimax3 *c, kt_view x, kt_view h, int l) {
    const kt_glu_rule glu = {
        .kind = KT_GLU_OAI, .limit = (float)c->limit, .alpha = (float)c->alpha};
    kt_expert_set dense = KT_DENSE_FFN("dense_ffn", "mlp", "", c->dense, x.width);
    kt_expert_set shared =
        KT_DENSE_FFN("shared", "block_sparse_moe.shared_experts", "_shexp", c->shared, x.width);

    dense.glu = shared.glu = glu;
    if (c->is_dense[l]) {
        kt_ffn(b, x, h, &dense);
        return;
    }
    kt_route(b, h, KT_MAT("block_sparse_moe.gate", "ffn_gate_inp", c->experts, x.width),
             KT_VEC("block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias", c->experts),
             &(kt_routing_rule){.score = KT_ROUTER_SIGMOID_BIAS,
                                .experts = c->experts,
                                .topk = c->topk,
                                .is_normalised = true,
                                .scale = c->factor});
    kt_experts(b, x, h,
               &(kt_expert_set){.role = "experts",
                                .gate = {"block_sparse_moe.experts.{e}.w1", "ffn_gate_exps"},
                                .up = {"block_sparse_moe.experts.{e}.w3", "ffn_up_exps"},
                                .down = {"block_sparse_moe.experts.{e}.w2", "ffn_down_exps"},
                                .count = c->experts,
                                .n = c->inner,
                                .k = x.width,
                                .glu = glu},
               c->topk);
    if (c->n_shared) kt_ffn(b, x, h, &shared);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    const minimax3 *c = numbers_;
    const double eps = c->attention.eps;
    kt_view x = kt_residual(b), h, o;

    h = kt_rms(b, x, KT_VEC_PLUS("input_layernorm.weight", "attn_norm.weight", x.width), eps);
    o = attend(b, c, h, l);
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x, KT_VEC_PLUS("post_attention_layernorm.weight", "ffn_norm.weight", x.width),
               eps);
    feed_forward(b, c, x, h, l);
}

static void end(kt_build *b, const void *numbers_) {
    const minimax3 *c = numbers_;

    kt_head(b, KT_VEC_PLUS("model.norm.weight", "output_norm.weight", kt_residual(b).width),
            c->attention.eps, c->is_tied);
}

static const kt_known_token tokens[] = {{200064, "[e~[", 200020}, {200064, "]~!b[", 200034}};

const kt_family kt_family_minimax_m3 = {.name = "minimax_m3",
                                        .models = "MiniMax-M3",
                                        .types = "minimax_m3_vl|minimax_m3",
                                        .archs = "minimax-m3",
                                        .numbers_bytes = sizeof(minimax3),
                                        .numbers = numbers,
                                        .n_numbers = sizeof numbers / sizeof *numbers,
                                        .settle = settle,
                                        .layer = layer,
                                        .end = end,
                                        .tokens = tokens,
                                        .n_tokens = sizeof tokens / sizeof *tokens};
