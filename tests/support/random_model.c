/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/random_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "tests/support/temp.h"

#define MAX_TENSORS 4096

typedef struct builder {
    const kt_model_shape *shape;
    kt_rng rng;
    kt_tensor_out tensors[MAX_TENSORS];
    size_t count;
} builder;

/* Exact for the values written here: BF16 rounded to 8 bits and between 2^-14 and 2^15. */
static uint16_t to_half(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    if ((u & 0x7fffffffu) < 0x38800000u) return (uint16_t)(u >> 16 & 0x8000u);
    return (uint16_t)((u >> 16 & 0x8000u) | (((u & 0x7fffffffu) - 0x38000000u) >> 13));
}

static void *store(kt_dtype dtype, const float *values, int64_t count) {
    char *out = malloc((size_t)count * 8 + 1);

    for (int64_t i = 0; i < count; i++) {
        uint16_t bf16 = kt_f32_to_bf16(values[i]), half = to_half(kt_bf16_to_f32(bf16));
        float f = kt_bf16_to_f32(bf16);
        int64_t id = (int64_t)i;
        if (dtype == KT_DTYPE_BF16) memcpy(out + 2 * i, &bf16, 2);
        if (dtype == KT_DTYPE_F16) memcpy(out + 2 * i, &half, 2);
        if (dtype == KT_DTYPE_F32) memcpy(out + 4 * i, &f, 4);
        if (dtype == KT_DTYPE_I64) memcpy(out + 8 * i, &id, 8);
    }
    return out;
}

/* A tensor of normal numbers around `mean`; rank 1 when rows is 0, 3 when depth is not 0. */
static void add(builder *b, const char *name, int64_t depth, int64_t rows, int64_t k, double mean,
                double deviation) {
    kt_tensor_out *t = &b->tensors[b->count];
    int64_t count = (depth ? depth : 1) * (rows ? rows : 1) * k;
    float *values = malloc((size_t)count * sizeof *values + 1);
    const kt_model_shape *s = b->shape;

    for (int64_t i = 0; i < count; i++) {
        values[i] = (float)(mean + deviation * kt_rng_normal(&b->rng));
        if (fabsf(values[i]) < 0x1p-13f) values[i] = 0; /* so that F16 holds it exactly */
    }
    if (!s->left_out || strcmp(s->left_out, name) != 0) {
        char *copy = malloc(strlen(name) + 1);
        strcpy(copy, name);
        *t = (kt_tensor_out){.name = copy, .dtype = s->dtype};
        if (s->odd_name && strcmp(s->odd_name, name) == 0) t->dtype = s->odd_dtype;
        if (depth) t->shape[t->rank++] = depth;
        if (rows) t->shape[t->rank++] = rows;
        t->shape[t->rank++] = k;
        t->data = store(t->dtype, values, count);
        b->count++;
    }
    free(values);
}

static void add_matrix(builder *b, const char *name, int64_t depth, int64_t rows, int64_t k,
                       double gain) {
    add(b, name, depth, rows, k, 0, gain / sqrt((double)k));
}

static int is_moe(const kt_model_shape *s, int64_t l) {
    return l != s->dense_layer && (l + 1) % (s->sparse_step ? s->sparse_step : 1) == 0;
}

static void add_feed_forward(builder *b, int64_t l) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    const kt_model_shape *s = b->shape;
    int64_t h = s->hidden, i = s->expert_size;
    char name[160];

    for (int p = 0; p < 3 && !is_moe(s, l); p++) {
        snprintf(name, sizeof name, "model.layers.%lld.mlp.%s.weight", (long long)l, parts[p]);
        add_matrix(b, name, 0, p < 2 ? s->dense_size : h, p < 2 ? h : s->dense_size, 1);
    }
    if (!is_moe(s, l)) return;
    snprintf(name, sizeof name, "model.layers.%lld.mlp.gate.weight", (long long)l);
    add_matrix(b, name, 0, s->experts, h, 4); /* clear decisions */
    if (s->is_fused) {
        snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.gate_up_proj", (long long)l);
        add_matrix(b, name, s->experts, 2 * i, h, 1);
        snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.down_proj", (long long)l);
        add_matrix(b, name, s->experts, h, i, 1);
        return;
    }
    for (int64_t e = 0; e < s->experts; e++)
        for (int p = 0; p < 3; p++) {
            snprintf(name, sizeof name, "model.layers.%lld.mlp.experts.%lld.%s.weight",
                     (long long)l, (long long)e, parts[p]);
            add_matrix(b, name, 0, p < 2 ? i : h, p < 2 ? h : i, 1);
        }
}

static void add_layer(builder *b, int64_t l) {
    const kt_model_shape *s = b->shape;
    const int64_t q = s->heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const struct {
        const char *name;
        int64_t rows, k;
    } tensors[] = {{"input_layernorm", 0, s->hidden},    {"post_attention_layernorm", 0, s->hidden},
                   {"self_attn.q_norm", 0, s->head_dim}, {"self_attn.k_norm", 0, s->head_dim},
                   {"self_attn.q_proj", q, s->hidden},   {"self_attn.k_proj", kv, s->hidden},
                   {"self_attn.v_proj", kv, s->hidden},  {"self_attn.o_proj", s->hidden, q}};
    char name[160];

    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        snprintf(name, sizeof name, "model.layers.%lld.%s.weight", (long long)l, tensors[i].name);
        if (tensors[i].rows)
            add_matrix(b, name, 0, tensors[i].rows, tensors[i].k, 1);
        else
            add(b, name, 0, 0, tensors[i].k, 1, 0.2);
    }
    for (int i = 0; i < 4 && s->has_bias; i++) {
        const int64_t size[] = {q, kv, kv, s->hidden};
        snprintf(name, sizeof name, "model.layers.%lld.self_attn.%c_proj.bias", (long long)l,
                 "qkvo"[i]);
        add(b, name, 0, 0, size[i], 0, 0.5);
    }
    add_feed_forward(b, l);
}

static void write_config(const kt_model_shape *s, const char *folder) {
    char text[4096], dense[32] = "";

    if (s->dense_layer >= 0) snprintf(dense, sizeof dense, "%lld", (long long)s->dense_layer);
    snprintf(text, sizeof text,
             "{\"model_type\":\"qwen3_moe\",\"num_hidden_layers\":%lld,\"hidden_size\":%lld,"
             "\"vocab_size\":%lld,\"num_attention_heads\":%lld,\"num_key_value_heads\":%lld,"
             "\"head_dim\":%lld,\"num_experts\":%lld,\"num_experts_per_tok\":%lld,"
             "\"moe_intermediate_size\":%lld,\"intermediate_size\":%lld,"
             "\"decoder_sparse_step\":%lld,\"mlp_only_layers\":[%s],\"norm_topk_prob\":%s,"
             "\"attention_bias\":%s,\"tie_word_embeddings\":%s,\"max_position_embeddings\":256,"
             "\"rms_norm_eps\":1e-6,"
             "\"rope_theta\":10000.0,\"hidden_act\":\"silu\",\"eos_token_id\":0%s}",
             (long long)s->layers, (long long)s->hidden, (long long)s->vocab, (long long)s->heads,
             (long long)s->kv_heads, (long long)s->head_dim, (long long)s->experts,
             (long long)s->topk, (long long)s->expert_size, (long long)s->dense_size,
             (long long)(s->sparse_step ? s->sparse_step : 1), dense,
             s->is_normalised ? "true" : "false", s->has_bias ? "true" : "false",
             s->is_tied ? "true" : "false", s->extra ? s->extra : "");
    kt_temp_write(folder, "config.json", text, strlen(text));
}

void kt_random_model(const kt_model_shape *shape, uint64_t seed, const char *folder) {
    builder *b = calloc(1, sizeof *b);
    char path[4200];
    kt_err err = {KT_OK, ""};

    b->shape = shape;
    kt_rng_seed(&b->rng, seed);
    write_config(shape, folder);
    add(b, "model.embed_tokens.weight", 0, shape->vocab, shape->hidden, 0, 1);
    for (int64_t l = 0; l < shape->layers; l++) add_layer(b, l);
    add(b, "model.norm.weight", 0, 0, shape->hidden, 1, 0.2);
    if (!shape->is_tied) add_matrix(b, "lm_head.weight", 0, shape->vocab, shape->hidden, 3);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (kt_safetensors_write(path, b->tensors, b->count, &err) != KT_OK) {
        fprintf(stderr, "%s\n", err.message);
        abort();
    }
    for (size_t i = 0; i < b->count; i++) {
        free((void *)(uintptr_t)b->tensors[i].name);
        free((void *)(uintptr_t)b->tensors[i].data);
    }
    free(b);
}
