/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/gguf_twin.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "base/numeric.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/tiny_gguf.h"

typedef struct twin {
    kt_checkpoint *from;
    const kt_json *config;
    const char *prefix; /* of all names in `from` */
    kt_tiny_gguf *head;
    uint8_t *data;
    size_t bytes, room;
} twin;

static void die(const char *what) {
    fprintf(stderr, "gguf twin: %s\n", what);
    abort();
}

static int64_t size_of(const twin *t, const char *key) {
    return kt_json_int(kt_json_get(t->config, key), 0);
}

/* ---- numbers of the source ---- */

static const kt_tensor *find(const twin *t, const char *name, const char *ending) {
    char full[240];

    snprintf(full, sizeof full, "%s%s%s", t->prefix, name, ending);
    return kt_checkpoint_find(t->from, full);
}

static float decoded(const kt_tensor *packed, const kt_tensor *scale, int64_t i) {
    const uint32_t *words = (const void *)packed->data;
    const uint16_t *scales = (const void *)scale->data;
    const int code = (int)(words[i / 8] >> 4 * (i % 8) & 15) - 8;

    return (float)code * kt_bf16_to_f32(scales[i / 32]);
}

/* Numbers of a tensor or of a matrix in INT4; *is_packed says which. Freed by the caller. */
static float *numbers(const twin *t, const char *name, int64_t *count, bool *is_packed) {
    const kt_tensor *whole = find(t, name, ".weight"), *scale = find(t, name, ".weight_scale");
    const kt_tensor *packed = find(t, name, ".weight_packed");
    float *out;

    if (!whole) whole = find(t, name, "");
    if (!whole && !packed) die(name);
    *is_packed = !whole;
    *count = 1;
    for (int d = 0; d < (whole ? whole : packed)->rank; d++)
        *count *= (whole ? whole : packed)->shape[d];
    if (!whole) *count *= 8;
    out = malloc((size_t)*count * sizeof *out);
    for (int64_t i = 0; i < *count; i++)
        out[i] = packed ? decoded(packed, scale, i)
                 : whole->dtype == KT_DTYPE_F32
                     ? ((const float *)(const void *)whole->data)[i]
                     : kt_bf16_to_f32(((const uint16_t *)(const void *)whole->data)[i]);
    return out;
}

/* ---- tensors of the file ---- */

static void put(twin *t, const float *x, int64_t count, int type) {
    const size_t each = type == KT_GGML_F32 ? 4 : 2, size = (size_t)count * each;

    if (t->bytes + size + KT_TINY_GGUF_ALIGN > t->room) {
        t->room = 2 * (t->room + size);
        t->data = realloc(t->data, t->room);
        if (!t->data) die("no memory");
    }
    for (int64_t i = 0; i < count; i++) {
        const uint16_t half = type == KT_GGML_F16 ? kt_f32_to_f16(x[i]) : kt_f32_to_bf16(x[i]);
        memcpy(t->data + t->bytes + (size_t)i * each,
               type == KT_GGML_F32 ? (const void *)&x[i] : &half, each);
    }
    t->bytes += size;
}

static void pad(twin *t) {
    while (t->bytes % KT_TINY_GGUF_ALIGN) t->data[t->bytes++] = 0;
}

/* A vector (n = 0), or a matrix [n, k]. */
static void add(twin *t, const char *from, const char *to, int64_t k, int64_t n, bool is_f32) {
    bool is_packed;
    int64_t count;
    float *x = numbers(t, from, &count, &is_packed);
    const int type = is_f32 || !n ? KT_GGML_F32 : is_packed ? KT_GGML_F16 : KT_GGML_BF16;

    if (count != k * (n ? n : 1)) die(from);
    kt_tiny_gguf_tensor(t->head, to, type, k, n, 0);
    put(t, x, count, type);
    pad(t);
    free(x);
}

/* Matrix `part` of all experts, one behind the other. */
static void add_experts(twin *t, int l, const char *part, const char *to, int64_t k, int64_t n) {
    const int64_t experts = size_of(t, "n_routed_experts");
    char from[128];
    int type = 0;

    for (int64_t e = 0; e < experts; e++) {
        bool is_packed;
        int64_t count;
        float *x;
        snprintf(from, sizeof from, "model.layers.%d.mlp.experts.%d.%s_proj", l, (int)e, part);
        x = numbers(t, from, &count, &is_packed);
        if (count != n * k) die(from);
        type = is_packed ? KT_GGML_F16 : KT_GGML_BF16;
        put(t, x, count, type);
        free(x);
    }
    pad(t);
    kt_tiny_gguf_tensor(t->head, to, type, k, n, experts);
}

/* kv_b [heads (nope + v), latent]: keys turned to [heads, latent, nope], values [heads, v, latent].
 */
static void add_halves(twin *t, int l) {
    const int64_t heads = size_of(t, "num_attention_heads"), latent = size_of(t, "kv_lora_rank");
    const int64_t nope = size_of(t, "qk_nope_head_dim"), v = size_of(t, "v_head_dim");
    char name[96];
    bool is_packed;
    int64_t count;
    float *x, *turned = malloc((size_t)(nope * latent) * sizeof *turned);

    snprintf(name, sizeof name, "model.layers.%d.self_attn.kv_b_proj", l);
    x = numbers(t, name, &count, &is_packed);
    if (count != heads * (nope + v) * latent || !turned) die(name);
    snprintf(name, sizeof name, "blk.%d.attn_k_b.weight", l);
    kt_tiny_gguf_tensor(t->head, name, KT_GGML_BF16, nope, latent, heads);
    for (int64_t h = 0; h < heads; h++) {
        for (int64_t i = 0; i < nope * latent; i++)
            turned[i % latent * nope + i / latent] = x[h * (nope + v) * latent + i];
        put(t, turned, nope * latent, KT_GGML_BF16);
    }
    pad(t);
    snprintf(name, sizeof name, "blk.%d.attn_v_b.weight", l);
    kt_tiny_gguf_tensor(t->head, name, KT_GGML_BF16, latent, v, heads);
    for (int64_t h = 0; h < heads; h++)
        put(t, x + (h * (nope + v) + nope) * latent, v * latent, KT_GGML_BF16);
    pad(t);
    free(turned);
    free(x);
}

/* A tensor of layer l. */
static void add_of(twin *t, int l, const char *from, const char *to, int64_t k, int64_t n,
                   bool is_f32) {
    char source[128], name[96];

    snprintf(source, sizeof source, "model.layers.%d.%s", l, from);
    snprintf(name, sizeof name, "blk.%d.%s", l, to);
    add(t, source, name, k, n, is_f32);
}

static void add_feed_forward(twin *t, int l) {
    static const char *const part[] = {"gate", "up", "down"};
    const int64_t h = size_of(t, "hidden_size"), inner = size_of(t, "moe_intermediate_size");
    const bool is_dense = l < size_of(t, "first_k_dense_replace");
    const int64_t size = is_dense ? size_of(t, "intermediate_size") : inner;
    char from[64], to[64];

    for (int p = 0; p < 3; p++) {
        snprintf(from, sizeof from, "mlp.%s%s_proj", is_dense ? "" : "shared_experts.", part[p]);
        snprintf(to, sizeof to, "ffn_%s%s.weight", part[p], is_dense ? "" : "_shexp");
        add_of(t, l, from, to, p < 2 ? h : size, p < 2 ? size : h, false);
        snprintf(to, sizeof to, "blk.%d.ffn_%s_exps.weight", l, part[p]);
        if (!is_dense) add_experts(t, l, part[p], to, p < 2 ? h : inner, p < 2 ? inner : h);
    }
    if (is_dense) return;
    add_of(t, l, "mlp.gate", "ffn_gate_inp.weight", h, size_of(t, "n_routed_experts"), true);
    add_of(t, l, "mlp.gate.e_score_correction_bias", "exp_probs_b.bias",
           size_of(t, "n_routed_experts"), 0, true);
}

static void add_layer(twin *t, int l) {
    const int64_t h = size_of(t, "hidden_size"), heads = size_of(t, "num_attention_heads");
    const int64_t q = size_of(t, "q_lora_rank"), kv = size_of(t, "kv_lora_rank");
    const int64_t rope = size_of(t, "qk_rope_head_dim"), nope = size_of(t, "qk_nope_head_dim");

    add_of(t, l, "input_layernorm", "attn_norm.weight", h, 0, true);
    add_of(t, l, "post_attention_layernorm", "ffn_norm.weight", h, 0, true);
    add_of(t, l, "self_attn.q_a_proj", "attn_q_a.weight", h, q, false);
    add_of(t, l, "self_attn.q_a_layernorm", "attn_q_a_norm.weight", q, 0, true);
    add_of(t, l, "self_attn.q_b_proj", "attn_q_b.weight", q, heads * (nope + rope), false);
    add_of(t, l, "self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa.weight", h, kv + rope, false);
    add_of(t, l, "self_attn.kv_a_layernorm", "attn_kv_a_norm.weight", kv, 0, true);
    add_halves(t, l);
    add_of(t, l, "self_attn.o_proj", "attn_output.weight", heads * size_of(t, "v_head_dim"), h,
           false);
    add_feed_forward(t, l);
}

/* ---- metadata ---- */

static void add_numbers(twin *t) {
    static const char *const same[][2] = {{"num_hidden_layers", "block_count"},
                                          {"max_position_embeddings", "context_length"},
                                          {"hidden_size", "embedding_length"},
                                          {"intermediate_size", "feed_forward_length"},
                                          {"num_attention_heads", "attention.head_count"},
                                          {"n_routed_experts", "expert_count"},
                                          {"num_experts_per_tok", "expert_used_count"},
                                          {"n_group", "expert_group_count"},
                                          {"topk_group", "expert_group_used_count"},
                                          {"first_k_dense_replace", "leading_dense_block_count"},
                                          {"vocab_size", "vocab_size"},
                                          {"q_lora_rank", "attention.q_lora_rank"},
                                          {"kv_lora_rank", "attention.kv_lora_rank"},
                                          {"v_head_dim", "attention.value_length_mla"},
                                          {"kv_lora_rank", "attention.value_length"},
                                          {"moe_intermediate_size", "expert_feed_forward_length"},
                                          {"n_shared_experts", "expert_shared_count"},
                                          {"qk_rope_head_dim", "rope.dimension_count"}};
    const int64_t rope = size_of(t, "qk_rope_head_dim");
    char key[96];

    for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
        snprintf(key, sizeof key, "deepseek2.%s", same[i][1]);
        kt_tiny_gguf_int(t->head, key, (int32_t)size_of(t, same[i][0]));
    }
    kt_tiny_gguf_int(t->head, "deepseek2.attention.head_count_kv", 1);
    kt_tiny_gguf_int(t->head, "deepseek2.attention.key_length",
                     (int32_t)(size_of(t, "kv_lora_rank") + rope));
    kt_tiny_gguf_int(t->head, "deepseek2.attention.key_length_mla",
                     (int32_t)(size_of(t, "qk_nope_head_dim") + rope));
}

static float real_of(const kt_json *object, const char *key) {
    return (float)kt_json_double(kt_json_get(object, key), 0);
}

static void add_rope(twin *t) {
    const kt_json *scaling = kt_json_get(t->config, "rope_scaling");

    kt_tiny_gguf_real(t->head, "deepseek2.rope.freq_base", real_of(t->config, "rope_theta"));
    if (kt_json_type_of(scaling) != KT_JSON_OBJECT) return;
    kt_tiny_gguf_text(t->head, "deepseek2.rope.scaling.type", "yarn");
    kt_tiny_gguf_real(t->head, "deepseek2.rope.scaling.factor", real_of(scaling, "factor"));
    kt_tiny_gguf_int(t->head, "deepseek2.rope.scaling.original_context_length",
                     (int32_t)real_of(scaling, "original_max_position_embeddings"));
    kt_tiny_gguf_real(t->head, "deepseek2.rope.scaling.yarn_beta_fast",
                      real_of(scaling, "beta_fast"));
    kt_tiny_gguf_real(t->head, "deepseek2.rope.scaling.yarn_beta_slow",
                      real_of(scaling, "beta_slow"));
    kt_tiny_gguf_real(t->head, "deepseek2.rope.scaling.yarn_log_multiplier",
                      0.1f * real_of(scaling, "mscale_all_dim"));
}

static void add_metadata(twin *t, int names_score) {
    kt_tiny_gguf_text(t->head, "general.architecture", "deepseek2");
    add_numbers(t);
    kt_tiny_gguf_real(t->head, "deepseek2.attention.layer_norm_rms_epsilon",
                      real_of(t->config, "rms_norm_eps"));
    kt_tiny_gguf_real(t->head, "deepseek2.expert_weights_scale",
                      real_of(t->config, "routed_scaling_factor"));
    kt_tiny_gguf_int(t->head, "deepseek2.expert_weights_norm", 1);
    if (names_score) kt_tiny_gguf_int(t->head, "deepseek2.expert_gating_func", 2);
    add_rope(t);
    kt_tiny_gguf_text(t->head, "tokenizer.ggml.model", "gpt2");
    kt_tiny_gguf_text(t->head, "tokenizer.ggml.pre", names_score ? "kimi-k2" : "glm4");
    kt_tiny_gguf_bytes(t->head, "tokenizer.ggml.tokens", (int)size_of(t, "vocab_size"));
    kt_tiny_gguf_bytes(t->head, "tokenizer.ggml.merges", 0);
}

/* ---- the whole ---- */

static void write_all(twin *t, const char *path) {
    const size_t head = kt_tiny_gguf_head(t->head);
    FILE *f = fopen(path, "wb");

    if (!f || t->head->data_bytes != t->bytes) die(path);
    if (fwrite(t->head->file, 1, head, f) != head || fwrite(t->data, 1, t->bytes, f) != t->bytes ||
        fclose(f) != 0)
        die(path);
}

void kt_gguf_twin(const char *folder, int names_score, const char *path) {
    twin t = {.head = calloc(1, sizeof *t.head), .prefix = ""};
    const kt_json *text;
    kt_json_doc *doc;
    char file[4200], *json;
    size_t size;
    kt_err err = {KT_OK, ""};

    snprintf(file, sizeof file, "%s/config.json", folder);
    if (kt_file_read(file, 1 << 20, &json, &size, &err) != KT_OK ||
        kt_json_parse(json, size, NULL, &doc, &err) != KT_OK)
        die(err.message);
    free(json);
    text = kt_json_get(kt_json_root(doc), "text_config");
    t.config = text ? text : kt_json_root(doc);
    if (text) t.prefix = "language_model.";
    snprintf(file, sizeof file, "%s/model.safetensors", folder);
    if (kt_checkpoint_open_file(file, &t.from, &err) != KT_OK) die(err.message);
    add_metadata(&t, names_score);
    add(&t, "model.embed_tokens", "token_embd.weight", size_of(&t, "hidden_size"),
        size_of(&t, "vocab_size"), false);
    for (int l = 0; l < size_of(&t, "num_hidden_layers"); l++) add_layer(&t, l);
    add(&t, "model.norm", "output_norm.weight", size_of(&t, "hidden_size"), 0, true);
    add(&t, "lm_head", "output.weight", size_of(&t, "hidden_size"), size_of(&t, "vocab_size"),
        false);
    write_all(&t, path);
    kt_checkpoint_close(t.from);
    kt_json_destroy(doc);
    free(t.data);
    free(t.head);
}
