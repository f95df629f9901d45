/* Qwen3-Next: three of four layers are gated DeltaNet (linear attention with a state), the
 * fourth is gated grouped-query attention; softmax router over small experts beside a gated
 * shared one (dispatch/model/hybrid.h). Source: the published Qwen3NextForCausalLM.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/hybrid.h"

/* q, k, v side by side, and z: grouped by key head in safetensors and old GGUF files (ssm_in),
 * sorted in new ones. */
static void project_qkvz(kt_build *b, const kt_hybrid *c, kt_view h, kt_view *qkv, kt_view *z) {
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

/* b and a, too, are grouped by key head. */
static kt_hybrid_inputs project(kt_build *b, const kt_hybrid *c, kt_view h) {
    const kt_delta_rule *d = &c->delta;
    const int64_t of_group = d->heads / d->key_heads, parts[] = {of_group, of_group};
    const kt_mat mat = KT_MAT("linear_attn.in_proj_ba", "ssm_ba", 2 * d->heads, h.width);
    kt_hybrid_inputs in;
    kt_view ba, sorted[2];

    project_qkvz(b, c, h, &in.qkv, &in.z);
    kt_linear(b, "linear_ba", h, 1, &mat, &ba);
    kt_regroup(b, ba, d->key_heads, 2, parts, sorted);
    in.ba = (kt_view){sorted[0].value, 0, 2 * d->heads};
    return in;
}

static void layer(kt_build *b, const void *numbers, int l) {
    kt_hybrid_layer(b, numbers, l, project);
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
                                        .numbers_bytes = sizeof(kt_hybrid),
                                        .numbers = kt_hybrid_numbers,
                                        .n_numbers = KT_HYBRID_NUMBERS,
                                        .settle = kt_hybrid_settle,
                                        .layer = layer,
                                        .end = kt_hybrid_end,
                                        .draft = kt_hybrid_draft,
                                        .tokens = tokens,
                                        .n_tokens = sizeof tokens / sizeof *tokens,
                                        .hashes = hashes,
                                        .n_hashes = sizeof hashes / sizeof *hashes};
