/* DeepSeek-V4-Flash and V4-Pro: four residual streams (residual_streams.h); attention of one shared
 * key over the last tokens and over entries that stand for 4 or 128 tokens (compressed.h), rotated
 * back behind; experts that the token itself chooses in the first layers. Source: models_2026.md 3.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/compressed.h"
#include "dispatch/model/residual_streams.h"
#include "dispatch/model/moe.h"
#include "kernels/hyper/hyper.h"

typedef struct v4 {
    kt_moe_numbers moe;
    int64_t heads, dim, rope, q_lora, groups, o_lora, window;
    int64_t hash_layers;
    kt_index_rule index; /* sizes */
    double eps, limit, stretched_base;
    bool is_tied;
    kt_stream_rule streams;
    kt_rope_rule plain, stretched; /* of layers without and with entries */
    int64_t ratio[KT_MAX_LAYERS];
} v4;

#define INT(field, json, gguf, fallback, least, most) \
    { offsetof(v4, field), KT_NUMBER_INT, json, gguf, fallback, least, most }
#define REAL(field, json, gguf, fallback, least, most) \
    { offsetof(v4, field), KT_NUMBER_DOUBLE, json, gguf, fallback, least, most }

static const kt_number numbers[] = {
    KT_MOE_NUMBERS(v4, moe),
    INT(heads, "num_attention_heads", "attention.head_count", KT_NUMBER_NEEDED, 1, 4096),
    INT(dim, "head_dim", "attention.key_length", KT_NUMBER_NEEDED, 32, 4096),
    INT(rope, "qk_rope_head_dim", "rope.dimension_count", KT_NUMBER_NEEDED, 2, KT_ROPE_BACK_MOST),
    INT(q_lora, "q_lora_rank", "attention.q_lora_rank", KT_NUMBER_NEEDED, 32, 1 << 20),
    INT(groups, "o_groups", "attention.output_group_count", KT_NUMBER_NEEDED, 1, 4096),
    INT(o_lora, "o_lora_rank", "attention.output_lora_rank", KT_NUMBER_NEEDED, 32, 1 << 20),
    INT(window, "sliding_window", "attention.sliding_window", KT_NUMBER_NEEDED, 1, 1 << 16),
    INT(index.heads, "index_n_heads", "attention.indexer.head_count", 0, 0, 4096),
    INT(index.dim, "index_head_dim", "attention.indexer.key_length", 0, 0, 4096),
    INT(index.topk, "index_topk", "attention.indexer.top_k", 0, 0, 1 << 24),
    INT(hash_layers, "num_hash_layers", "hash_layer_count", 0, 0, KT_MAX_LAYERS),
    INT(streams.count, "hc_mult", "hyper_connection.count", KT_NUMBER_NEEDED, 1, KT_HYPER_MOST),
    INT(streams.iterations, "hc_sinkhorn_iters", "hyper_connection.sinkhorn_iterations",
        KT_NUMBER_NEEDED, 1, 1000),
    REAL(streams.eps, "hc_eps", "hyper_connection.epsilon", KT_NUMBER_NEEDED, 0, 1),
    REAL(eps, "rms_norm_eps", "attention.layer_norm_rms_epsilon", KT_NUMBER_NEEDED, 0, 1),
    REAL(limit, "swiglu_limit", NULL, 10, 1e-3, 1e6),
    REAL(stretched_base, "compress_rope_theta", "attention.compress_rope_freq_base",
         KT_NUMBER_NEEDED, 1, 1e12),
    {offsetof(v4, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1}};

/* ---- what the configuration says ---- */

static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    v4 *c = numbers_;

    if (c->heads % c->groups != 0 || c->rope > c->dim)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: %lld heads of %lld, %lld of them rotated, in %lld groups", s->where,
                       (long long)c->heads, (long long)c->dim, (long long)c->rope,
                       (long long)c->groups);
    KT_TRY(kt_need_multiple(s, "head_dim", c->dim, err));
    KT_TRY(kt_need_multiple(s, "q_lora_rank", c->q_lora, err));
    KT_TRY(kt_need_multiple(s, "o_lora_rank", c->o_lora, err));
    KT_TRY(kt_need_multiple(s, "heads of a group", c->heads / c->groups * c->dim, err));
    KT_TRY(kt_need_score(s, "sqrtsoftplus", 4, err));
    KT_TRY(kt_moe_settle(s, &c->moe, err));
    KT_TRY(kt_glu_limit_read(s, &c->limit, err));
    KT_TRY(kt_entry_ratios_read(s, m->layers, c->ratio, err));
    KT_TRY(kt_entry_index_check(s, c->ratio, m->layers, c->rope, &c->index, err));
    KT_TRY(kt_rotation_read(s, c->rope, 1, &c->stretched, err));
    c->stretched.interleaved = true;
    c->stretched.attention_factor = 1; /* scores are not scaled */
    c->plain = c->stretched;
    c->plain.scaling = KT_ROPE_PLAIN;
    c->stretched.base = c->stretched_base;
    c->streams.norm_eps = c->eps;
    return kt_need_silu(s, err);
}

/* ---- a layer ---- */

/* The last channels of each head are rotated. */
static kt_view tail(const v4 *c, kt_view heads, int64_t dim) {
    return (kt_view){heads.value, heads.at + dim - c->rope, heads.width};
}

/* Queries from a small bottleneck, normed head by head; beside them those of the indexer. */
static void queries(kt_build *b, const v4 *c, kt_view cq, const kt_rope_rule *r, int n,
                    kt_view out[2]) {
    const kt_mat mats[2] = {
        KT_MAT("attn.wq_b", "attn_q_b", c->heads * c->dim, c->q_lora),
        KT_MAT("attn.indexer.wq_b", "indexer.attn_q_b", c->index.heads * c->index.dim, c->q_lora)};

    cq = kt_rms(b, cq, KT_VEC("attn.q_norm.weight", "attn_q_a_norm.weight", c->q_lora), c->eps);
    kt_linear(b, "q_b", cq, n, mats, out);
    kt_rms_heads(b, out[0], c->dim, (kt_vec){.n = 0}, c->eps);
    kt_rope(b, tail(c, out[0], c->dim), c->dim, r);
    if (n > 1) kt_rope(b, tail(c, out[1], c->index.dim), c->index.dim, r);
}

/* Entries of the layer, and their index keys where windows overlap. */
static int entries(kt_build *b, const v4 *c, kt_view h, int64_t ratio) {
    const int64_t halves = ratio == 4 ? 2 : 1, of_index = ratio == 4 ? c->index.dim : 0;
    const int plane = kt_entries(b, c->dim, of_index, ratio);
    const kt_mat mats[4] = {
        KT_MAT("attn.compressor.wkv", "attn_compressor_kv", halves * c->dim, h.width),
        KT_MAT("attn.compressor.wgate", "attn_compressor_gate", halves * c->dim, h.width),
        KT_MAT("attn.indexer.compressor.wkv", "indexer_compressor_kv", 2 * of_index, h.width),
        KT_MAT("attn.indexer.compressor.wgate", "indexer_compressor_gate", 2 * of_index, h.width)};
    kt_compressor own = {.dim = c->dim, .ratio = ratio, .eps = c->eps, .rotation = &c->stretched};
    kt_view out[4];

    kt_linear(b, "compressor", h, of_index ? 4 : 2, mats, out);
    own.values = out[0], own.gates = out[1];
    own.ape = (kt_name){"attn.compressor.ape", "attn_compressor_ape.weight"};
    own.norm = (kt_name){"attn.compressor.norm.weight", "attn_compressor_norm.weight"};
    kt_compress(b, plane, &own, false);
    if (!of_index) return plane;
    own.dim = of_index;
    own.values = out[2], own.gates = out[3];
    own.ape = (kt_name){"attn.indexer.compressor.ape", "indexer_compressor_ape.weight"};
    own.norm = (kt_name){"attn.indexer.compressor.norm.weight", "indexer_compressor_norm.weight"};
    kt_compress(b, plane, &own, true);
    return plane;
}

static kt_view attend(kt_build *b, const v4 *c, kt_view h, int l) {
    const int64_t ratio = c->ratio[l], group = c->heads / c->groups * c->dim;
    const kt_rope_rule *r = ratio ? &c->stretched : &c->plain;
    const kt_mat mats[3] = {
        KT_MAT("attn.wq_a", "attn_q_a", c->q_lora, h.width),
        KT_MAT("attn.wkv", "attn_kv", c->dim, h.width),
        KT_MAT("attn.indexer.weights_proj", "indexer.proj", c->index.heads, h.width)};
    kt_compressed_attention a = {
        .attention = {.heads = c->heads, .kv_heads = 1, .k = c->dim, .v = c->dim},
        .plane = -1,
        .window = c->window,
        .ratio = ratio,
        .topk = c->index.topk,
        .sink = {"attn.attn_sink", "attn_sinks.weight"}};
    kt_index_rule index = c->index;
    kt_view out[3] = {{0}}, q[2] = {{0}}, o;

    a.attention.scale = 1 / sqrt((double)c->dim);
    kt_linear(b, "qkv", h, ratio == 4 ? 3 : 2, mats, out);
    queries(b, c, out[0], r, ratio == 4 ? 2 : 1, q);
    kt_rms_heads(b, out[1], c->dim, KT_VEC("attn.kv_norm.weight", "attn_kv_a_norm.weight", c->dim),
                 c->eps);
    kt_rope(b, tail(c, out[1], c->dim), c->dim, r);
    a.kv = out[1];
    if (ratio) a.plane = entries(b, c, h, ratio);
    index.queries = q[1], index.weights = out[2];
    if (ratio == 4) a.picked = kt_pick_entries(b, a.plane, &index, ratio);
    o = kt_attend_entries(b, q[0], &a);
    kt_rope_back(b, tail(c, o, c->dim), c->dim, r);
    return kt_linear_heads(b, o,
                           &(kt_head_mats){.role = "o_a",
                                           .name = {"attn.wo_a", "attn_output_a"},
                                           .heads = c->groups,
                                           .n = c->o_lora,
                                           .k = group,
                                           .head_rows = c->o_lora});
}

static void feed_forward(kt_build *b, const v4 *c, kt_view y, kt_view h, int l) {
    const kt_moe_numbers *e = &c->moe;
    const kt_mat gate = KT_MAT("ffn.gate", "ffn_gate_inp", e->experts, h.width);
    const kt_routing_rule rule = {.score = KT_ROUTER_SQRT_SOFTPLUS,
                                  .experts = e->experts,
                                  .topk = e->topk,
                                  .is_normalised = e->is_normalised,
                                  .scale = e->factor};
    kt_expert_set set = {.role = "experts",
                         .gate = {"ffn.experts.{e}.w1", "ffn_gate_exps"},
                         .up = {"ffn.experts.{e}.w3", "ffn_up_exps"},
                         .down = {"ffn.experts.{e}.w2", "ffn_down_exps"},
                         .count = e->experts,
                         .n = e->inner,
                         .k = h.width,
                         .glu = {KT_GLU_CLAMP_SILU, (float)c->limit, 0}};

    if (l < c->hash_layers)
        kt_route_hashed(b, h, gate, KT_VEC("ffn.gate.tid2eid", "ffn_gate_tid2eid.weight", 0),
                        &rule);
    else
        kt_route(b, h, gate, KT_VEC("ffn.gate.bias", "exp_probs_b.bias", e->experts), &rule);
    kt_experts(b, y, h, &set, e->topk);
    if (!e->shared) return;
    set.role = "shared";
    set.gate = (kt_name){"ffn.shared_experts.w1", "ffn_gate_shexp"};
    set.up = (kt_name){"ffn.shared_experts.w3", "ffn_up_shexp"};
    set.down = (kt_name){"ffn.shared_experts.w2", "ffn_down_shexp"};
    set.count = 1;
    set.n = e->shared * e->inner;
    kt_ffn(b, y, h, &set);
}

static void layer(kt_build *b, const void *numbers_, int l) {
    static const kt_hyper_names attn = {{"hc_attn_fn", "hc_attn_fn.weight"},
                                        {"hc_attn_base", "hc_attn_base.weight"},
                                        {"hc_attn_scale", "hc_attn_scale.weight"}},
                                ffn = {{"hc_ffn_fn", "hc_ffn_fn.weight"},
                                       {"hc_ffn_base", "hc_ffn_base.weight"},
                                       {"hc_ffn_scale", "hc_ffn_scale.weight"}};
    const v4 *c = numbers_;
    const kt_view streams = kt_hyper_streams(b, &c->streams);
    kt_hyper_half half = kt_hyper_mix(b, streams, &attn, &c->streams);
    kt_view h, o;

    h = kt_rms(b, half.x, KT_VEC("attn_norm.weight", "attn_norm.weight", half.x.width), c->eps);
    o = attend(b, c, h, l);
    kt_linear_into(b, "o", half.y, o, KT_MAT("attn.wo_b", "attn_output_b", half.y.width, o.width));
    kt_hyper_join(b, streams, &half, &c->streams, false);
    half = kt_hyper_mix(b, streams, &ffn, &c->streams);
    h = kt_rms(b, half.x, KT_VEC("ffn_norm.weight", "ffn_norm.weight", half.x.width), c->eps);
    feed_forward(b, c, half.y, h, l);
    kt_hyper_join(b, streams, &half, &c->streams, true);
}

static void end(kt_build *b, const void *numbers_) {
    static const kt_hyper_names head = {{"hc_head_fn", "output_hc_fn.weight"},
                                        {"hc_head_base", "output_hc_base.weight"},
                                        {"hc_head_scale", "output_hc_scale.weight"}};
    const v4 *c = numbers_;

    kt_hyper_end(b, kt_hyper_streams(b, &c->streams), &head, &c->streams);
    kt_head(b, KT_VEC("norm.weight", "output_norm.weight", kt_residual(b).width), c->eps,
            c->is_tied);
}

static const kt_known_token tokens[] = {{129280, "<｜begin▁of▁sentence｜>", 0},
                                        {129280, "<｜end▁of▁sentence｜>", 1}};

const kt_family kt_family_deepseek_v4 = {.name = "deepseek_v4",
                                         .models = "DeepSeek-V4-Flash, V4-Pro",
                                         .types = "deepseek_v4",
                                         .archs = "deepseek4",
                                         .head = {"head", "output"},
                                         .numbers_bytes = sizeof(v4),
                                         .numbers = numbers,
                                         .n_numbers = sizeof numbers / sizeof *numbers,
                                         .settle = settle,
                                         .layer = layer,
                                         .end = end,
                                         .tokens = tokens,
                                         .n_tokens = sizeof tokens / sizeof *tokens};
