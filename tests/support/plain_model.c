/* Drawing and writing. The forward pass is plain_forward.c. SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/plain_model.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "dispatch/model/checkpoint.h"
#include "tests/support/plain_impl.h"
#include "tests/support/temp.h"

plain_tensor *kt_plain_find(kt_plain_model *m, const char *name) {
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->tensor[i].name, name) == 0) return &m->tensor[i];
    fprintf(stderr, "plain model: no tensor '%s'\n", name);
    abort();
}

const double *kt_plain_tensor(const kt_plain_model *m, const char *format, ...) {
    char name[200];
    va_list args;

    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    return kt_plain_find((kt_plain_model *)(uintptr_t)m, name)->value;
}

void kt_plain_draw(plain_drawing *d, const char *name, int64_t rows, int64_t k, double mean,
                   double deviation, kt_dtype dtype) {
    kt_plain_model *m = d->model;
    plain_tensor *t = &m->tensor[m->count];
    const int64_t count = (rows ? rows : 1) * k;

    if (m->count++ == KT_PLAIN_TENSORS) abort();
    snprintf(t->name, sizeof t->name, "%s%s", d->prefix, name);
    t->rows = rows;
    t->k = k;
    t->dtype = dtype;
    t->value = malloc((size_t)count * sizeof *t->value);
    for (int64_t i = 0; i < count; i++)
        t->value[i] = dtype == KT_DTYPE_I64
                          ? (double)kt_rng_below(&d->rng, (uint64_t)deviation)
                          : kt_bf16_to_f32(
                                kt_f32_to_bf16((float)(mean + deviation * kt_rng_normal(&d->rng))));
}

static void matrix(plain_drawing *d, const char *name, int64_t rows, int64_t k, double gain) {
    kt_plain_draw(d, name, rows, k, 0, gain / sqrt((double)k), KT_DTYPE_BF16);
}

static void norm(plain_drawing *d, const char *name, int64_t k) {
    const double mean = kt_plain_is_hybrid(&d->model->shape) ? 0 : 1;
    kt_plain_draw(d, name, 0, k, mean, 0.2, KT_DTYPE_BF16);
}

static void feed_forward(plain_drawing *d, const char *of, const char *const part[3],
                         int64_t size) {
    const int64_t h = d->model->shape.hidden;
    char name[128];

    for (int p = 0; p < 3; p++) {
        snprintf(name, sizeof name, "%s.%s.weight", of, part[p]);
        matrix(d, name, p < 2 ? size : h, p < 2 ? h : size, 1);
    }
}

static void experts(plain_drawing *d, int64_t l) {
    static const char *const usual[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const minimax[] = {"w1", "w3", "w2"};
    const kt_plain_shape *s = &d->model->shape;
    const bool is_minimax = s->family == KT_PLAIN_MINIMAX_M2;
    const char *block = is_minimax ? "block_sparse_moe" : "mlp";
    char name[64];

    if (l < s->dense_layers) {
        feed_forward(d, "mlp", usual, s->dense_size);
        return;
    }
    snprintf(name, sizeof name, "%s.gate.weight", block);
    matrix(d, name, s->experts, s->hidden, 4); /* clear decisions */
    snprintf(name, sizeof name, "%s.e_score_correction_bias", is_minimax ? block : "mlp.gate");
    if (!kt_plain_is_softmax(s)) kt_plain_draw(d, name, 0, s->experts, 0, 0.1, KT_DTYPE_F32);
    for (int64_t e = 0; e < s->experts; e++) {
        snprintf(name, sizeof name, "%s.experts.%d", block, (int)e);
        feed_forward(d, name, is_minimax ? minimax : usual, s->expert_size);
    }
    if (!s->shared_size) return;
    if (!kt_plain_is_hybrid(s)) {
        feed_forward(d, "mlp.shared_experts", usual, s->shared_size);
        return;
    }
    feed_forward(d, "mlp.shared_expert", usual, s->shared_size);
    matrix(d, "mlp.shared_expert_gate.weight", 1, s->hidden, 1);
}

static void grouped_attention(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;
    const bool is_gated = kt_plain_is_hybrid(s);
    const bool is_whole = s->family == KT_PLAIN_MINIMAX_M2;
    const int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const int64_t wide[] = {is_gated ? 2 * q : q, kv, kv};
    char name[32];

    for (int i = 0; i < 3; i++) {
        snprintf(name, sizeof name, "self_attn.%c_proj.weight", "qkv"[i]);
        matrix(d, name, wide[i], s->hidden, 1);
        snprintf(name, sizeof name, "self_attn.%c_proj.bias", "qkv"[i]);
        if (s->family == KT_PLAIN_GLM4_MOE)
            kt_plain_draw(d, name, 0, wide[i], 0, 0.5, KT_DTYPE_BF16);
    }
    matrix(d, "self_attn.o_proj.weight", s->hidden, q, 1);
    if (s->family == KT_PLAIN_GLM4_MOE && !s->has_qk_norm) return;
    norm(d, "self_attn.q_norm.weight", is_whole ? q : s->head_dim);
    norm(d, "self_attn.k_norm.weight", is_whole ? kv : s->head_dim);
}

static void latent_attention(plain_drawing *d, int64_t l) {
    const kt_plain_shape *s = &d->model->shape;
    const int64_t q = s->heads * (s->nope + s->rope), cq = s->q_lora ? s->q_lora : s->hidden;

    if (s->q_lora) {
        matrix(d, "self_attn.q_a_proj.weight", s->q_lora, s->hidden, 1);
        norm(d, "self_attn.q_a_layernorm.weight", s->q_lora);
    }
    matrix(d, s->q_lora ? "self_attn.q_b_proj.weight" : "self_attn.q_proj.weight", q, cq, 1);
    matrix(d, "self_attn.kv_a_proj_with_mqa.weight", s->kv_lora + s->rope, s->hidden, 1);
    norm(d, "self_attn.kv_a_layernorm.weight", s->kv_lora);
    matrix(d, "self_attn.kv_b_proj.weight", s->heads * (s->nope + s->v), s->kv_lora, 1);
    matrix(d, "self_attn.o_proj.weight", s->hidden, s->heads * s->v, 1);
    if (!kt_plain_has_indexer(s, l)) return;
    matrix(d, "self_attn.indexer.wq_b.weight", s->index_heads * s->index_dim, s->q_lora, 1);
    matrix(d, "self_attn.indexer.wk.weight", s->index_dim, s->hidden, 1);
    kt_plain_draw(d, "self_attn.indexer.k_norm.weight", 0, s->index_dim, 1, 0.2, KT_DTYPE_F32);
    kt_plain_draw(d, "self_attn.indexer.k_norm.bias", 0, s->index_dim, 0, 0.2, KT_DTYPE_F32);
    matrix(d, "self_attn.indexer.weights_proj.weight", s->index_heads, s->hidden, 1);
}

static void delta_net(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;
    const int64_t k = s->key_heads * s->key_dim, v = s->value_heads * s->value_dim;

    if (s->family == KT_PLAIN_QWEN3_5) {
        matrix(d, "linear_attn.in_proj_qkv.weight", 2 * k + v, s->hidden, 1);
        matrix(d, "linear_attn.in_proj_z.weight", v, s->hidden, 1);
        matrix(d, "linear_attn.in_proj_b.weight", s->value_heads, s->hidden, 1);
        matrix(d, "linear_attn.in_proj_a.weight", s->value_heads, s->hidden, 1);
    } else {
        matrix(d, "linear_attn.in_proj_qkvz.weight", 2 * k + 2 * v, s->hidden, 1);
        matrix(d, "linear_attn.in_proj_ba.weight", 2 * s->value_heads, s->hidden, 1);
    }
    matrix(d, "linear_attn.conv1d.weight", 2 * k + v, 4, 1);
    kt_plain_draw(d, "linear_attn.A_log", 0, s->value_heads, 0, 0.5, KT_DTYPE_BF16);
    kt_plain_draw(d, "linear_attn.dt_bias", 0, s->value_heads, 0, 0.5, KT_DTYPE_BF16);
    kt_plain_draw(d, "linear_attn.norm.weight", 0, s->value_dim, 1, 0.2, KT_DTYPE_BF16);
    matrix(d, "linear_attn.out_proj.weight", s->hidden, v, 1);
}

bool kt_plain_is_delta(const kt_plain_shape *s, int64_t l) {
    return kt_plain_is_hybrid(s) && (l + 1) % s->full_every != 0;
}

/* The layer is always one of attention and experts; its tensors and the head's own are drawn under
 * the names of a layer behind the last. */
static void draw_draft(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;

    snprintf(d->prefix, sizeof d->prefix, "model.layers.%d.", (int)s->layers);
    norm(d, "enorm.weight", s->hidden);
    norm(d, "hnorm.weight", s->hidden);
    norm(d, "shared_head.norm.weight", s->hidden);
    matrix(d, "eh_proj.weight", s->hidden, 2 * s->hidden, 1);
    norm(d, "input_layernorm.weight", s->hidden);
    norm(d, "post_attention_layernorm.weight", s->hidden);
    if (s->kv_lora)
        latent_attention(d, s->layers);
    else
        grouped_attention(d);
    experts(d, s->layers);
    d->prefix[0] = '\0';
}

static void draw_all(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;

    if (s->family == KT_PLAIN_DEEPSEEK_V4) {
        kt_plain_v4_draw(d);
        return;
    }
    matrix(d, "model.embed_tokens.weight", s->vocab, s->hidden, sqrt((double)s->hidden));
    for (int64_t l = 0; l < s->layers; l++) {
        snprintf(d->prefix, sizeof d->prefix, "model.layers.%d.", (int)l);
        norm(d, "input_layernorm.weight", s->hidden);
        norm(d, "post_attention_layernorm.weight", s->hidden);
        if (kt_plain_is_delta(s, l))
            delta_net(d);
        else if (s->kv_lora)
            latent_attention(d, l);
        else
            grouped_attention(d);
        experts(d, l);
    }
    d->prefix[0] = '\0';
    norm(d, "model.norm.weight", s->hidden);
    if (!s->is_tied) matrix(d, "lm_head.weight", s->vocab, s->hidden, 3);
    if (s->has_draft) draw_draft(d);
}

/* As the release spells it: inside of a multimodal model with a prefix. */
const char *kt_plain_published_name(const kt_plain_shape *s, const char *name, char out[240]) {
    static const char *const qwen[][2] = {{"enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
                                          {"hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
                                          {"shared_head.norm.weight", "mtp.norm.weight"},
                                          {"eh_proj.weight", "mtp.fc.weight"}};
    const size_t model = sizeof "model." - 1;
    const bool is_body = strncmp(name, "model.", model) == 0;
    char draft[32];
    size_t before;

    before = (size_t)snprintf(draft, sizeof draft, "model.layers.%d.", (int)s->layers);
    if (kt_plain_is_hybrid(s) && strncmp(name, draft, before) == 0) {
        snprintf(out, 240, "mtp.layers.0.%s", name + before);
        for (size_t i = 0; i < 4; i++)
            if (strcmp(name + before, qwen[i][0]) == 0) snprintf(out, 240, "%s", qwen[i][1]);
        return out;
    }
    if (s->family == KT_PLAIN_KIMI_K25)
        snprintf(out, 240, "language_model.%s", name);
    else if (s->family == KT_PLAIN_QWEN3_5 && is_body)
        snprintf(out, 240, "model.language_model.%s", name + model);
    else
        snprintf(out, 240, "%s", name);
    return out;
}

static void write_tensors(const kt_plain_model *m, const char *folder) {
    kt_tensor_out *out = calloc((size_t)m->count, sizeof *out);
    char(*names)[240] = calloc((size_t)m->count, sizeof *names);
    char path[4200];
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < m->count; i++) {
        const plain_tensor *t = &m->tensor[i];
        const int64_t count = (t->rows ? t->rows : 1) * t->k;
        uint16_t *halves = malloc((size_t)count * 8);
        float *floats = (float *)(void *)halves;
        int64_t *ids = (int64_t *)(void *)halves;

        for (int64_t j = 0; j < count; j++) {
            if (t->dtype == KT_DTYPE_F32)
                floats[j] = (float)t->value[j];
            else if (t->dtype == KT_DTYPE_I64)
                ids[j] = (int64_t)t->value[j];
            else
                halves[j] = kt_f32_to_bf16((float)t->value[j]);
        }
        out[i] = (kt_tensor_out){.name = kt_plain_published_name(&m->shape, t->name, names[i]),
                                 .dtype = t->dtype,
                                 .data = halves};
        if (t->rows) out[i].shape[out[i].rank++] = t->rows;
        if (strstr(t->name, "conv1d")) out[i].shape[out[i].rank++] = 1;
        out[i].shape[out[i].rank++] = t->k;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (kt_safetensors_write(path, out, (size_t)m->count, &err) != KT_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    for (int i = 0; i < m->count; i++) free((void *)(uintptr_t)out[i].data);
    free(out), free(names);
}

/* ---- config.json ---- */

typedef struct config {
    char text[4096];
    size_t used;
} config;

__attribute__((format(printf, 2, 3))) static void say(config *c, const char *format, ...) {
    va_list args;

    va_start(args, format);
    c->used += (size_t)vsnprintf(c->text + c->used, sizeof c->text - c->used, format, args);
    va_end(args);
}

static void say_int(config *c, const char *key, int64_t value) {
    say(c, ",\"%s\":%lld", key, (long long)value);
}

static void say_latent(config *c, const kt_plain_shape *s) {
    if (s->q_lora)
        say_int(c, "q_lora_rank", s->q_lora);
    else
        say(c, ",\"q_lora_rank\":null");
    say_int(c, "kv_lora_rank", s->kv_lora);
    say_int(c, "qk_nope_head_dim", s->nope);
    say_int(c, "qk_rope_head_dim", s->rope);
    say_int(c, "v_head_dim", s->v);
    say_int(c, "moe_layer_freq", 1);
    if (s->family != KT_PLAIN_GLM4_LITE)
        say(c, ",\"scoring_func\":\"sigmoid\",\"topk_method\":\"noaux_tc\"");
    if (s->yarn > 0)
        say(c,
            ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":%g,\"beta_fast\":4,\"beta_slow\":1,"
            "\"mscale\":1.0,\"mscale_all_dim\":1.0,\"original_max_position_embeddings\":16}",
            s->yarn);
    if (!s->index_topk) return;
    say_int(c, "index_n_heads", s->index_heads);
    say_int(c, "index_head_dim", s->index_dim);
    say_int(c, "index_topk", s->index_topk);
    if (s->indexers) say(c, ",\"index_topk_pattern\":\"%s\"", s->indexers);
}

static void say_grouped(config *c, const kt_plain_shape *s) {
    say_int(c, "head_dim", s->head_dim);
    switch (s->family) {
    case KT_PLAIN_MINIMAX_M2:
        say_int(c, "rotary_dim", s->rotary);
        say(c, ",\"scoring_func\":\"sigmoid\",\"use_routing_bias\":true,\"use_qk_norm\":true,"
               "\"qk_norm_type\":\"per_layer\",\"shared_intermediate_size\":0");
        break;
    case KT_PLAIN_QWEN3_MOE:
        say(c, ",\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"attention_bias\":false");
        return;
    case KT_PLAIN_GLM4_MOE:
        say(c, ",\"attention_bias\":true,\"use_qk_norm\":%s", s->has_qk_norm ? "true" : "false");
        break;
    default:
        say(c, ",\"decoder_sparse_step\":1,\"mlp_only_layers\":[],\"linear_conv_kernel_dim\":4");
        say_int(c, "full_attention_interval", s->full_every);
        say_int(c, "linear_num_key_heads", s->key_heads);
        say_int(c, "linear_num_value_heads", s->value_heads);
        say_int(c, "linear_key_head_dim", s->key_dim);
        say_int(c, "linear_value_head_dim", s->value_dim);
        say_int(c, "shared_expert_intermediate_size", s->shared_size);
    }
    if (s->family != KT_PLAIN_MINIMAX_M2)
        say(c, ",\"partial_rotary_factor\":%.17g", (double)s->rotary / (double)s->head_dim);
}

static void write_config(const kt_plain_shape *s, const char *folder) {
    static const char *const types[] = {
        "minimax_m2",    "glm4_moe",    "deepseek_v3", "kimi_k2",     "deepseek_v32", "qwen3_next",
        "glm4_moe_lite", "glm_moe_dsa", "kimi_k25",    "qwen3_5_moe", "deepseek_v4",  "qwen3_moe"};
    const bool is_minimax = s->family == KT_PLAIN_MINIMAX_M2;
    const bool is_qwen = kt_plain_is_softmax(s);
    const bool is_nested = s->family == KT_PLAIN_KIMI_K25 || s->family == KT_PLAIN_QWEN3_5;
    config *c = calloc(1, sizeof *c);

    if (s->family == KT_PLAIN_DEEPSEEK_V4) {
        kt_temp_write(folder, "config.json", c->text,
                      kt_plain_v4_config(s, c->text, sizeof c->text));
        free(c);
        return;
    }
    say(c, "{\"model_type\":\"%s\"", types[s->family]);
    if (is_nested)
        say(c, ",\"vision_config\":{\"hidden_size\":32},\"text_config\":{\"model_type\":\"%s\"",
            s->family == KT_PLAIN_QWEN3_5 ? "qwen3_5_moe_text" : "kimi_k2");
    say_int(c, "num_hidden_layers", s->layers);
    if (s->has_draft && !kt_plain_is_hybrid(s)) say_int(c, "num_nextn_predict_layers", 1);
    say_int(c, "hidden_size", s->hidden);
    say_int(c, "vocab_size", s->vocab);
    say_int(c, "num_attention_heads", s->heads);
    say_int(c, "num_key_value_heads", s->kv_heads ? s->kv_heads : s->heads);
    say_int(c, "num_experts_per_tok", s->topk);
    say_int(c,
            is_minimax ? "num_local_experts"
            : is_qwen  ? "num_experts"
                       : "n_routed_experts",
            s->experts);
    say_int(c, is_minimax ? "intermediate_size" : "moe_intermediate_size", s->expert_size);
    if (!is_minimax) say_int(c, "intermediate_size", s->dense_size ? s->dense_size : 32);
    if (!is_minimax) say(c, ",\"norm_topk_prob\":true");
    if (!is_minimax && !is_qwen) {
        say_int(c, "first_k_dense_replace", s->dense_layers);
        say_int(c, "n_shared_experts", s->shared_size / s->expert_size);
        say_int(c, "n_group", s->groups);
        say_int(c, "topk_group", s->top_groups);
        say(c, ",\"routed_scaling_factor\":%g", s->scaling);
    }
    if (s->kv_lora)
        say_latent(c, s);
    else
        say_grouped(c, s);
    say(c,
        ",\"tie_word_embeddings\":%s,\"max_position_embeddings\":%d,\"rms_norm_eps\":1e-5,"
        "\"rope_theta\":%g,\"hidden_act\":\"silu\",\"eos_token_id\":0}%s",
        s->is_tied ? "true" : "false", s->context ? (int)s->context : 256, s->theta,
        is_nested ? "}" : "");
    kt_temp_write(folder, "config.json", c->text, c->used);
    free(c);
}

kt_plain_model *kt_plain_create(const kt_plain_shape *shape, uint64_t seed, const char *folder) {
    kt_plain_model *m = calloc(1, sizeof *m);
    plain_drawing d = {.model = m, .prefix = ""};

    m->shape = *shape;
    kt_rng_seed(&d.rng, seed);
    draw_all(&d);
    write_config(shape, folder);
    write_tensors(m, folder);
    return m;
}

void kt_plain_destroy(kt_plain_model *m) {
    for (int i = 0; m && i < m->count; i++) free(m->tensor[i].value);
    free(m);
}

const kt_plain_shape *kt_plain_shape_of(const kt_plain_model *m) {
    return &m->shape;
}
