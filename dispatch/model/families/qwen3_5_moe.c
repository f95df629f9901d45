/* Qwen3.5-MoE and Qwen3.6-MoE, the language model: as Qwen3-Next (dispatch/model/hybrid.h), but q,
 * k and v of a DeltaNet layer, its gate z, b and a are matrices of their own, sorted by head, and
 * there may be four value heads to a key head. The release is multimodal (dispatch/model/nested.h).
 * GGUF files have the value heads in another order. Source: the published
 * Qwen3_5MoeForConditionalGeneration. SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"
#include "dispatch/model/hybrid.h"

/* In GGUF files value head i * key_heads + g is original head g * (heads / key_heads) + i, in all
 * that has value heads: each uses key head h % key_heads instead of the one of its group. */
static kt_status settle(const kt_config_source *s, const kt_model_numbers *m, void *numbers,
                        kt_err *err) {
    kt_hybrid *c = numbers;

    KT_TRY(kt_hybrid_settle(s, m, numbers, err));
    c->delta.is_tiled = s->gguf && c->delta.heads > c->delta.key_heads && c->delta.key_heads > 1;
    return KT_OK;
}

static kt_hybrid_inputs project(kt_build *b, const kt_hybrid *c, kt_view h) {
    const kt_delta_rule *d = &c->delta;
    const int64_t keys = d->key_heads * d->k, values = d->heads * d->v;
    const kt_mat qkvz[2] = {
        KT_MAT("linear_attn.in_proj_qkv", "attn_qkv", 2 * keys + values, h.width),
        KT_MAT("linear_attn.in_proj_z", "attn_gate", values, h.width)};
    const kt_mat ba[2] = {KT_MAT("linear_attn.in_proj_b", "ssm_beta", d->heads, h.width),
                          KT_MAT("linear_attn.in_proj_a", "ssm_alpha", d->heads, h.width)};
    kt_view wide[2], narrow[2];

    kt_linear(b, "linear_qkvz", h, 2, qkvz, wide);
    kt_linear(b, "linear_ba", h, 2, ba, narrow);
    return (kt_hybrid_inputs){
        .qkv = wide[0], .z = wide[1], .ba = {narrow[0].value, narrow[0].at, 2 * d->heads}};
}

static void layer(kt_build *b, const void *numbers, int l) {
    kt_hybrid_layer(b, numbers, l, project);
}

/* The id that ends a text; which text has it is not certain. */
static const kt_known_token tokens[] = {{248320, NULL, 248044}};

static const kt_known_hash hashes[] = {
    {248320, "d30d75d9059f1aa2c19359de71047b3ae408c70875e8a3ccf8c5fba56c9d8af4", 0, {0}}};

const kt_family kt_family_qwen3_5_moe = {
    .name = "qwen3_5_moe",
    .models = "Qwen3.5-35B-A3B, 122B-A10B, 397B-A17B, Qwen3.6-35B-A3B",
    .types = "qwen3_5_moe|qwen3_5_moe_text",
    .archs = "qwen35moe",
    .numbers_bytes = sizeof(kt_hybrid),
    .numbers = kt_hybrid_numbers,
    .n_numbers = KT_HYBRID_NUMBERS,
    .settle = settle,
    .layer = layer,
    .end = kt_hybrid_end,
    .draft = kt_hybrid_draft,
    .tokens = tokens,
    .n_tokens = sizeof tokens / sizeof *tokens,
    .hashes = hashes,
    .n_hashes = sizeof hashes / sizeof *hashes};
