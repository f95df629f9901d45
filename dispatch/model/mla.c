/* Source: the published DeepseekV3ForCausalLM and, for the indexer, DeepseekV32ForCausalLM.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/mla.h"

#include <math.h>
#include <stddef.h>

#include "base/err.h"
#include "dispatch/model/draft_head.h"
#include "dispatch/model/gqa.h"

#define LATENT_EPS 1e-6 /* of q_a and kv_a norms, whatever rms_norm_eps is (models.md 4.3) */

const kt_number kt_mla_numbers[KT_MLA_NUMBERS] = {
    {offsetof(kt_mla, heads), KT_NUMBER_INT, "num_attention_heads", "attention.head_count",
     KT_NUMBER_NEEDED, 1, 4096},
    {offsetof(kt_mla, q_lora), KT_NUMBER_INT, "q_lora_rank", "attention.q_lora_rank", 0, 0,
     1 << 20},
    {offsetof(kt_mla, kv_lora), KT_NUMBER_INT, "kv_lora_rank", "attention.kv_lora_rank",
     KT_NUMBER_NEEDED, 32, 1 << 20},
    {offsetof(kt_mla, nope), KT_NUMBER_INT, "qk_nope_head_dim", NULL, KT_NUMBER_NEEDED, 32, 4096},
    {offsetof(kt_mla, rope), KT_NUMBER_INT, "qk_rope_head_dim", "rope.dimension_count",
     KT_NUMBER_NEEDED, 2, 4096},
    {offsetof(kt_mla, v), KT_NUMBER_INT, "v_head_dim", NULL, KT_NUMBER_NEEDED, 32, 4096},
    {offsetof(kt_mla, eps), KT_NUMBER_DOUBLE, "rms_norm_eps", "attention.layer_norm_rms_epsilon",
     KT_NUMBER_NEEDED, 0, 1},
    KT_MOE_NUMBERS(kt_mla, moe),
    {offsetof(kt_mla, index_heads), KT_NUMBER_INT, "index_n_heads", "attention.indexer.head_count",
     0, 0, 4096},
    {offsetof(kt_mla, index_dim), KT_NUMBER_INT, "index_head_dim", "attention.indexer.key_length",
     0, 0, 4096},
    {offsetof(kt_mla, index_topk), KT_NUMBER_INT, "index_topk", "attention.indexer.top_k", 0, 0,
     1 << 24},
    {offsetof(kt_mla, is_tied), KT_NUMBER_BOOL, "tie_word_embeddings", NULL, 0, 0, 1}};

/* Head sizes by the keys of the new layout, or of the old one where a head's own sizes stand
 * there. */
static kt_status read_gguf_sizes(const kt_config_source *s, kt_mla *c, kt_err *err) {
    double key = kt_config_gguf_number(s, "attention.key_length", 0);
    double value = kt_config_gguf_number(s, "attention.value_length", 0);

    key = kt_config_gguf_number(s, "attention.key_length_mla", key);
    value = kt_config_gguf_number(s, "attention.value_length_mla", value);
    if (!(key >= 32 && key <= 8192 && value >= 32 && value <= 4096))
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: heads with keys of %g numbers and values of %g, expected 32 to "
                       "8192 and 32 to 4096",
                       s->where, key, value);
    c->nope = (int64_t)key - c->rope;
    c->v = (int64_t)value;
    if (c->moe.groups == 0 && c->moe.experts == 256)
        c->moe.groups = 8, c->moe.top_groups = 4; /* files of old */
    return KT_OK;
}

/* YaRN with mscale: the softmax's scale grows by its square, cosine and sine by the quotient. */
static void read_mscale(const kt_config_source *s, kt_mla *c) {
    const kt_json *scaling = kt_json_get(s->json, "rope_scaling");
    double of_all, of_angles = 1, log_multiplier, mscale;

    c->scale = 1 / sqrt((double)(c->nope + c->rope));
    if (c->rotation.scaling != KT_ROPE_YARN) return;
    if (kt_json_type_of(scaling) == KT_JSON_NULL) scaling = kt_json_get(s->json, "rope_parameters");
    if (s->json) {
        of_all = kt_json_double(kt_json_get(scaling, "mscale_all_dim"), 0);
        of_angles = kt_json_double(kt_json_get(scaling, "mscale"), 1);
        mscale = of_all ? kt_yarn_mscale(c->rotation.factor, of_all) : 1;
        c->rotation.attention_factor = kt_yarn_mscale(c->rotation.factor, of_angles) / mscale;
    } else {
        log_multiplier = kt_config_gguf_number(s, "rope.scaling.yarn_log_multiplier", 0.1);
        mscale = 1 + log_multiplier * log(c->rotation.factor);
        c->rotation.attention_factor = 1;
    }
    c->scale *= mscale * mscale;
}

kt_status kt_mla_settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers_,
                        kt_err *err) {
    kt_mla *c = numbers_;

    (void)m;
    if (s->gguf) KT_TRY(read_gguf_sizes(s, c, err));
    if (c->index_topk && (c->index_heads < 1 || c->index_dim < c->rope || !c->q_lora))
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: an indexer of %lld heads of %lld, expected at least one of %lld or "
                       "more, and q_lora_rank",
                       s->where, (long long)c->index_heads, (long long)c->index_dim,
                       (long long)c->rope);
    KT_TRY(kt_need_multiple(s, "qk_nope_head_dim", c->nope, err));
    KT_TRY(kt_need_multiple(s, "v_head_dim", c->v, err));
    KT_TRY(kt_need_multiple(s, "kv_lora_rank", c->kv_lora, err));
    if (c->q_lora) KT_TRY(kt_need_multiple(s, "q_lora_rank", c->q_lora, err));
    KT_TRY(kt_need_score(s, "sigmoid", 2, err));
    KT_TRY(kt_moe_settle(s, &c->moe, err));
    KT_TRY(kt_rotation_read(s, c->rope, 1, &c->rotation, err));
    c->rotation.interleaved = true;
    if (!kt_json_bool(kt_json_get(s->json, "rope_interleave"), true))
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: rope_interleave is false, expected true",
                       s->where);
    read_mscale(s, c);
    return kt_need_silu(s, err);
}

/* Queries: through a small bottleneck, where there is one; latent and shared key beside it. */
static void project(kt_build *b, const kt_mla *c, kt_view h, bool has_index, kt_view *q,
                    kt_view *kv, kt_view *index_q) {
    const int64_t q_width = c->heads * (c->nope + c->rope), kv_width = c->kv_lora + c->rope;
    const kt_mat latent =
        KT_MAT("self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa", kv_width, h.width);
    kt_mat mats[2] = {KT_MAT("self_attn.q_a_proj", "attn_q_a", c->q_lora, h.width), latent};
    kt_view out[2], cq;

    if (!c->q_lora) mats[0] = KT_MAT("self_attn.q_proj", "attn_q", q_width, h.width);
    kt_linear(b, "qkv", h, 2, mats, out);
    *kv = out[1];
    *q = out[0];
    if (!c->q_lora) return;
    cq = kt_rms(b, out[0],
                KT_VEC("self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", c->q_lora),
                LATENT_EPS);
    mats[0] = KT_MAT("self_attn.q_b_proj", "attn_q_b", q_width, c->q_lora);
    mats[1] = KT_MAT("self_attn.indexer.wq_b", "indexer.attn_q_b", c->index_heads * c->index_dim,
                     c->q_lora);
    kt_linear(b, "q_b", cq, has_index ? 2 : 1, mats, out);
    *q = out[0];
    if (has_index) *index_q = out[1];
}

/* Halves of kv_b: keys (turned) and values. GGUF has them apart, or (old files) together too. */
static kt_head_mats half(const kt_build *b, const kt_mla *c, int is_value) {
    const kt_name old = {NULL, "attn_kv_b.weight"};
    const bool is_joined = !kt_is_gguf(b) || kt_has(b, old);
    kt_head_mats m = {.role = is_value ? "v_b" : "k_b",
                      .name = {"self_attn.kv_b_proj", is_joined  ? "attn_kv_b"
                                                      : is_value ? "attn_v_b"
                                                                 : "attn_k_b"},
                      .heads = c->heads,
                      .n = is_value ? c->v : c->kv_lora,
                      .k = is_value ? c->kv_lora : c->nope,
                      .tail = is_value ? 0 : c->rope};

    if (!is_joined) return m;
    m.head_rows = c->nope + c->v;
    m.head_at = is_value ? c->nope : 0;
    m.is_transposed = !is_value;
    return m;
}

/* The lightning indexer: one small key per token, scored by every head of its own queries. */
static kt_index_rule index_keys(kt_build *b, const kt_mla *c, kt_view h, kt_view q) {
    const kt_mat mats[2] = {
        KT_MAT("self_attn.indexer.wk", "indexer.attn_k", c->index_dim, h.width),
        KT_MAT("self_attn.indexer.weights_proj", "indexer.proj", c->index_heads, h.width)};
    kt_rope_rule rotation = c->rotation;
    kt_view out[2];

    rotation.interleaved = c->is_index_interleaved;
    kt_linear(b, "indexer", h, 2, mats, out);
    kt_layer_norm(
        b, out[0], KT_VEC("self_attn.indexer.k_norm.weight", "indexer.k_norm.weight", c->index_dim),
        KT_VEC("self_attn.indexer.k_norm.bias", "indexer.k_norm.bias", c->index_dim), LATENT_EPS);
    kt_rope(b, out[0], c->index_dim, &rotation);
    kt_rope(b, q, c->index_dim, &rotation);
    return (kt_index_rule){.keys = out[0],
                           .queries = q,
                           .weights = out[1],
                           .heads = c->index_heads,
                           .dim = c->index_dim,
                           .topk = c->index_topk};
}

static kt_view attend(kt_build *b, const kt_mla *c, kt_view h, int l) {
    const bool has_index = c->index_topk && !c->repeats_index[l];
    const kt_head_mats keys = half(b, c, 0), values = half(b, c, 1);
    const kt_attention attention = {.heads = c->heads,
                                    .kv_heads = 1,
                                    .k = c->kv_lora + c->rope,
                                    .v = c->kv_lora,
                                    .scale = c->scale};
    kt_view q, kv, latent, k_rope, q_rope, index_q = {0}, o;
    kt_index_rule index;
    int plane;

    project(b, c, h, has_index, &q, &kv, &index_q);
    latent = (kt_view){kv.value, kv.at, c->kv_lora};
    k_rope = (kt_view){kv.value, kv.at + c->kv_lora, c->rope};
    q_rope = (kt_view){q.value, q.at + c->nope, q.width};
    kt_rms_heads(b, latent, c->kv_lora,
                 KT_VEC("self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", c->kv_lora),
                 LATENT_EPS);
    kt_rope(b, k_rope, c->rope, &c->rotation);
    kt_rope(b, q_rope, c->nope + c->rope, &c->rotation);
    plane = kt_keep(b, kv, (kt_view){0}, 1);
    if (!c->index_topk) return kt_attend_latent(b, q, plane, &attention, &keys, &values);
    q = kt_linear_heads(b, q, &keys);
    if (has_index) {
        index = index_keys(b, c, h, index_q);
        o = kt_attend_sparse(b, q, plane, &attention, &index);
    } else {
        o = kt_attend_repeated(b, q, plane, &attention);
    }
    return kt_linear_heads(b, o, &values);
}

void kt_mla_layer(kt_build *b, const void *numbers_, int l) {
    const kt_mla *c = numbers_;
    kt_view x = kt_residual(b), h, o;

    h = kt_rms(b, x, KT_VEC("input_layernorm.weight", "attn_norm.weight", x.width), c->eps);
    o = attend(b, c, h, l);
    kt_linear_into(b, "o", x, o, KT_MAT("self_attn.o_proj", "attn_output", x.width, o.width));
    h = kt_rms(b, x, KT_VEC("post_attention_layernorm.weight", "ffn_norm.weight", x.width), c->eps);
    kt_moe_half(b, x, h, &c->moe, l);
}

void kt_mla_draft(kt_build *b, const void *numbers, int l, int64_t declared) {
    const kt_draft_head head = kt_draft_head_usual(b, ((const kt_mla *)numbers)->eps);

    if (!kt_draft_head_is_there(b, &head, declared)) return;
    kt_draft_begin(b, &head);
    kt_mla_layer(b, numbers, l);
    kt_draft_end(b, &head);
}

void kt_mla_end(kt_build *b, const void *numbers_) {
    const kt_mla *c = numbers_;

    kt_head(b, KT_VEC("model.norm.weight", "output_norm.weight", kt_residual(b).width), c->eps,
            c->is_tied);
}
