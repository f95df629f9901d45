/* Plain models as GGUF files: names, orders and metadata as the published converter writes them.
 * Blocks are drawn, and what they decode to becomes the model's numbers; how blocks decode is
 * compared with published numbers in test_gguf_blocks.c. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"
#include "runtime/model/synthetic_blocks.h"
#include "tests/support/plain_impl.h"
#include "tests/support/plain_store.h"
#include "tests/support/tiny_gguf.h"

static const struct {
    int type;
    kt_weight_format format;
} blocks[] = {{2, KT_W_Q4_0},     {3, KT_W_Q4_1},    {6, KT_W_Q5_0},     {7, KT_W_Q5_1},
              {8, KT_W_Q8_0},     {10, KT_W_Q2_K},   {11, KT_W_Q3_K},    {12, KT_W_Q4_K},
              {13, KT_W_Q5_K},    {14, KT_W_Q6_K},   {16, KT_W_IQ2_XXS}, {17, KT_W_IQ2_XS},
              {18, KT_W_IQ3_XXS}, {19, KT_W_IQ1_S},  {20, KT_W_IQ4_NL},  {21, KT_W_IQ3_S},
              {22, KT_W_IQ2_S},   {23, KT_W_IQ4_XS}, {29, KT_W_IQ1_M},   {34, KT_W_TQ1_0},
              {35, KT_W_TQ2_0},   {39, KT_W_MXFP4},  {40, KT_W_NVFP4}};
enum { N_BLOCKS = sizeof blocks / sizeof *blocks };

typedef struct gguf {
    kt_plain_model *m;
    const kt_plain_shape *s;
    kt_rng rng;
    uint64_t salt;
    bool splits_pairs; /* gate and up may differ */
    kt_tiny_gguf *head;
    uint8_t *data;
    size_t bytes, room;
    double **at; /* where the numbers of the tensor at hand are, in the order of the file */
    int64_t n_at, most;
    int64_t layer;
} gguf;

static plain_tensor *of_layer(const gguf *g, const char *part) {
    char name[200];

    snprintf(name, sizeof name, "model.layers.%d.%s", (int)g->layer, part);
    return kt_plain_find(g->m, name);
}

static void *more(gguf *g, size_t size) {
    uint8_t *p;

    if (g->bytes + size + KT_TINY_GGUF_ALIGN > g->room) {
        g->room = 2 * (g->room + size) + KT_TINY_GGUF_ALIGN;
        g->data = realloc(g->data, g->room);
        if (!g->data) abort();
    }
    p = g->data + g->bytes;
    g->bytes += size;
    return p;
}

static void meet(gguf *g, double *x, int64_t count) {
    if (g->n_at + count > g->most) {
        g->most = 2 * (g->most + count);
        g->at = realloc(g->at, (size_t)g->most * sizeof *g->at);
        if (!g->at) abort();
    }
    for (int64_t i = 0; i < count; i++) g->at[g->n_at++] = x + i;
}

/* ---- numbers to bytes ---- */

static void put_floats(gguf *g, int type) {
    const size_t each = type == KT_GGML_F32 ? 4 : 2;
    uint8_t *to = more(g, (size_t)g->n_at * each);

    for (int64_t i = 0; i < g->n_at; i++, to += each) {
        const float x = (float)*g->at[i];
        const uint16_t half = type == KT_GGML_F16 ? kt_f32_to_f16(x) : kt_f32_to_bf16(x);
        memcpy(to, type == KT_GGML_F32 ? (const void *)&x : &half, each);
        if (type == KT_GGML_F16) *g->at[i] = kt_f16_to_f32(half);
    }
}

/* factor[j]: of the j-th of `stack` matrices. */
static void put_blocks(gguf *g, const kt_format *f, int64_t stack, const float *factor) {
    const int64_t count = g->n_at / f->block, each = count / stack;
    uint8_t *to = more(g, (size_t)count * (size_t)f->block_bytes);
    double square = 0, decoded[256];

    for (int64_t i = 0; i < g->n_at; i++) square += *g->at[i] * *g->at[i] / (double)g->n_at;
    kt_synthetic_blocks(f, (size_t)count, sqrt(square), &g->rng, to);
    for (int64_t b = 0; b < count; b++) {
        const kt_matrix w = {.format = f->id, .n = count, .k = f->block, .data = to};
        f->decode_row(&w, b, decoded);
        for (int i = 0; i < f->block; i++)
            *g->at[b * f->block + i] = decoded[i] * (double)factor[b / each];
    }
}

static void pad(gguf *g) {
    while (g->bytes % KT_TINY_GGUF_ALIGN) *(uint8_t *)more(g, 1) = 0;
}

/* The same type for what has the same role. */
static uint64_t draw_of(const gguf *g, const char *name) {
    uint64_t role = kt_plain_role(name, false);

    if (!g->splits_pairs && strstr(name, "ffn_up")) {
        char pair[96];
        snprintf(pair, sizeof pair, "%s", name);
        memcpy(strstr(pair, "ffn_up"), "ffn_gate", 8);
        snprintf(strstr(pair, "ffn_gate") + 8, 60, "%s", strstr(name, "ffn_up") + 6);
        role = kt_plain_role(pair, false);
    }
    role = (role ^ g->salt) * 0x9e3779b97f4a7c15u;
    return role ^ role >> 29;
}

/* NVFP4 may have a factor beside it, for the whole or one for each matrix of the stack. */
static void add_factors(gguf *g, const char *name, int64_t stack, float *factor) {
    const uint64_t form = kt_rng_below(&g->rng, 3);
    const int64_t count = form == 1 ? 1 : stack;
    char other[96];

    for (int64_t j = 0; j < stack; j++) factor[j] = 1;
    if (form == 0) return;
    for (int64_t j = 0; j < stack; j++)
        factor[j] = j && count == 1 ? factor[0] : 0.5f + (float)kt_rng_double(&g->rng);
    snprintf(other, sizeof other, "%.*s.scale", (int)(strlen(name) - strlen(".weight")), name);
    kt_tiny_gguf_tensor(g->head, other, KT_GGML_F32, count, 0, 0);
    memcpy(more(g, (size_t)count * sizeof *factor), factor, (size_t)count * sizeof *factor);
    pad(g);
}

/* What was met becomes tensor `name`; may_encode: in a type that is drawn. */
static void finish(gguf *g, const char *name, int64_t k, int64_t n, int64_t stack,
                   bool may_encode) {
    static const int plain[] = {KT_GGML_F32, KT_GGML_F16, KT_GGML_BF16};
    const uint64_t draw = draw_of(g, name);
    float factor[64] = {1};
    int type = KT_GGML_F32, which = -1;

    for (int i = 0; i < 64; i++) factor[i] = 1;
    if (may_encode) type = plain[draw % 3];
    for (int tries = 0; may_encode && draw % 8 && which < 0 && tries < 400; tries++) {
        const int i = (int)((draw / 8 + (uint64_t)tries) % N_BLOCKS);
        if (k % kt_format_find(blocks[i].format)->block == 0) which = i;
    }
    if (which >= 0 && strcmp(name, "token_embd.weight") && blocks[which].format == KT_W_NVFP4)
        add_factors(g, name, stack ? stack : 1, factor);
    if (which < 0) {
        kt_tiny_gguf_tensor(g->head, name, type, k, n, stack);
        put_floats(g, type);
    } else {
        const kt_format *f = kt_format_find(blocks[which].format);
        kt_tiny_gguf_blocks(g->head, name, blocks[which].type, k, n, stack,
                            (size_t)(g->n_at / f->block * f->block_bytes));
        put_blocks(g, f, stack ? stack : 1, factor);
    }
    pad(g);
    g->n_at = 0;
}

static void name_in_layer(const gguf *g, const char *name, char out[96]) {
    snprintf(out, 96, "blk.%d.%s", (int)g->layer, name);
}

static void add_matrix(gguf *g, const char *from, const char *to) {
    plain_tensor *t = of_layer(g, from);
    char name[96];

    meet(g, t->value, t->rows * t->k);
    name_in_layer(g, to, name);
    finish(g, name, t->k, t->rows, 0, true);
}

/* A vector or a matrix that stays F32; plus: added to each number. */
static void add_floats(gguf *g, const char *from, const char *to, double plus) {
    const plain_tensor *t = of_layer(g, from);
    const int64_t count = (t->rows ? t->rows : 1) * t->k;
    double *x = malloc((size_t)count * sizeof *x);
    char name[96];

    for (int64_t i = 0; i < count; i++) x[i] = t->value[i] + plus;
    meet(g, x, count);
    name_in_layer(g, to, name);
    finish(g, name, t->k, t->rows, 0, false);
    free(x);
}

/* ---- feed-forward ---- */

static void add_experts(gguf *g, const char *block, const char *const part[3]) {
    static const char *const to[] = {"gate", "up", "down"};
    const kt_plain_shape *s = g->s;
    const bool is_joined = kt_plain_is_hybrid(s) && g->salt % 3 == 0;
    char name[96];

    for (int p = 0; p < 3; p++) {
        for (int e = 0; e < s->experts; e++)
            for (int half = 0; half < (is_joined && p < 2 ? 2 : 1); half++) {
                plain_tensor *t;
                snprintf(name, sizeof name, "%s.experts.%d.%s.weight", block, e, part[p + half]);
                t = of_layer(g, name);
                meet(g, t->value, t->rows * t->k);
            }
        snprintf(name, sizeof name, "blk.%d.ffn_%s_exps.weight", (int)g->layer,
                 is_joined && p < 2 ? "gate_up" : to[p]);
        finish(g, name, p < 2 ? s->hidden : s->expert_size,
               p < 2 ? (is_joined ? 2 : 1) * s->expert_size : s->hidden, s->experts, true);
        p += is_joined && p == 0;
    }
}

static void add_three(gguf *g, const char *of, const char *ending) {
    static const char *const to[] = {"gate", "up", "down"};
    char from[96], name[64];

    for (int p = 0; p < 3; p++) {
        snprintf(from, sizeof from, "%s.%s_proj.weight", of, to[p]);
        snprintf(name, sizeof name, "ffn_%s%s.weight", to[p], ending);
        add_matrix(g, from, name);
    }
}

static void add_feed_forward(gguf *g) {
    static const char *const usual[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const minimax[] = {"w1", "w3", "w2"};
    const kt_plain_shape *s = g->s;
    const bool is_minimax = s->family == KT_PLAIN_MINIMAX_M2;

    if (g->layer < s->dense_layers) {
        add_three(g, "mlp", "");
        return;
    }
    add_floats(g, is_minimax ? "block_sparse_moe.gate.weight" : "mlp.gate.weight",
               "ffn_gate_inp.weight", 0);
    if (!kt_plain_is_softmax(s))
        add_floats(g,
                   is_minimax ? "block_sparse_moe.e_score_correction_bias"
                              : "mlp.gate.e_score_correction_bias",
                   "exp_probs_b.bias", 0);
    add_experts(g, is_minimax ? "block_sparse_moe" : "mlp", is_minimax ? minimax : usual);
    if (!s->shared_size) return;
    add_three(g, kt_plain_is_hybrid(s) ? "mlp.shared_expert" : "mlp.shared_experts", "_shexp");
    if (kt_plain_is_hybrid(s))
        add_floats(g, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", 0);
}

/* ---- attention ---- */

static void add_grouped(gguf *g) {
    static const char *const to[] = {"q", "k", "v"};
    char from[64], name[64];

    for (int i = 0; i < 3; i++) {
        snprintf(from, sizeof from, "self_attn.%s_proj.weight", to[i]);
        snprintf(name, sizeof name, "attn_%s.weight", to[i]);
        add_matrix(g, from, name);
        if (g->s->family != KT_PLAIN_GLM4_MOE) continue;
        snprintf(from, sizeof from, "self_attn.%s_proj.bias", to[i]);
        snprintf(name, sizeof name, "attn_%s.bias", to[i]);
        add_floats(g, from, name, 0);
    }
    add_matrix(g, "self_attn.o_proj.weight", "attn_output.weight");
    if (g->s->family == KT_PLAIN_GLM4_MOE && !g->s->has_qk_norm) return;
    add_floats(g, "self_attn.q_norm.weight", "attn_q_norm.weight", kt_plain_is_hybrid(g->s));
    add_floats(g, "self_attn.k_norm.weight", "attn_k_norm.weight", kt_plain_is_hybrid(g->s));
}

/* kv_b in one, as old files have it; or keys turned, [latent, nope] by head, and values. */
static void add_kv_b(gguf *g) {
    const kt_plain_shape *s = g->s;
    const int64_t both = s->nope + s->v, r = s->kv_lora;
    double *x = of_layer(g, "self_attn.kv_b_proj.weight")->value;
    char name[96];

    if (g->salt % 4 == 0) {
        add_matrix(g, "self_attn.kv_b_proj.weight", "attn_kv_b.weight");
        return;
    }
    for (int64_t h = 0; h < s->heads; h++)
        for (int64_t i = 0; i < r; i++)
            for (int64_t j = 0; j < s->nope; j++) meet(g, x + (h * both + j) * r + i, 1);
    name_in_layer(g, "attn_k_b.weight", name);
    finish(g, name, s->nope, r, s->heads, true);
    for (int64_t h = 0; h < s->heads; h++) meet(g, x + (h * both + s->nope) * r, s->v * r);
    name_in_layer(g, "attn_v_b.weight", name);
    finish(g, name, r, s->v, s->heads, true);
}

static void add_latent(gguf *g) {
    const kt_plain_shape *s = g->s;

    if (s->q_lora) {
        add_matrix(g, "self_attn.q_a_proj.weight", "attn_q_a.weight");
        add_floats(g, "self_attn.q_a_layernorm.weight", "attn_q_a_norm.weight", 0);
        add_matrix(g, "self_attn.q_b_proj.weight", "attn_q_b.weight");
    } else {
        add_matrix(g, "self_attn.q_proj.weight", "attn_q.weight");
    }
    add_matrix(g, "self_attn.kv_a_proj_with_mqa.weight", "attn_kv_a_mqa.weight");
    add_floats(g, "self_attn.kv_a_layernorm.weight", "attn_kv_a_norm.weight", 0);
    add_kv_b(g);
    add_matrix(g, "self_attn.o_proj.weight", "attn_output.weight");
    if (!kt_plain_has_indexer(s, g->layer)) return;
    add_matrix(g, "self_attn.indexer.wq_b.weight", "indexer.attn_q_b.weight");
    add_matrix(g, "self_attn.indexer.wk.weight", "indexer.attn_k.weight");
    add_floats(g, "self_attn.indexer.k_norm.weight", "indexer.k_norm.weight", 0);
    add_floats(g, "self_attn.indexer.k_norm.bias", "indexer.k_norm.bias", 0);
    add_matrix(g, "self_attn.indexer.weights_proj.weight", "indexer.proj.weight");
}

/* ---- gated DeltaNet ---- */

/* The model's value head that stands at place h of the file: Qwen3.5's are dealt out, one of each
 * key head in turn. */
static int64_t head_at(const gguf *g, int64_t h) {
    const int64_t keys = g->s->key_heads, ratio = g->s->value_heads / keys;

    return g->s->family == KT_PLAIN_QWEN3_5 ? h % keys * ratio + h / keys : h;
}

/* Rows of Qwen3-Next's grouped matrix: by key head its q, k, values and gates. */
static void meet_grouped(gguf *g, double *x, int part) {
    const kt_plain_shape *s = g->s;
    const int64_t dk = s->key_dim, dv = s->value_heads / s->key_heads * s->value_dim;
    const int64_t begin[] = {0, dk, 2 * dk, 2 * dk + dv}, rows[] = {dk, dk, dv, dv};

    for (int64_t h = 0; h < s->key_heads; h++)
        meet(g, x + (h * (2 * dk + 2 * dv) + begin[part]) * s->hidden, rows[part] * s->hidden);
}

static void add_next_inputs(gguf *g) {
    const kt_plain_shape *s = g->s;
    const int64_t k = s->key_heads * s->key_dim, v = s->value_heads * s->value_dim;
    double *x = of_layer(g, "linear_attn.in_proj_qkvz.weight")->value;
    char name[96];

    add_matrix(g, "linear_attn.in_proj_ba.weight", "ssm_ba.weight");
    if (g->salt % 4 == 1) {
        add_matrix(g, "linear_attn.in_proj_qkvz.weight", "ssm_in.weight");
        return;
    }
    for (int part = 0; part < 3; part++) meet_grouped(g, x, part);
    name_in_layer(g, "attn_qkv.weight", name);
    finish(g, name, s->hidden, 2 * k + v, 0, true);
    meet_grouped(g, x, 3);
    name_in_layer(g, "attn_gate.weight", name);
    finish(g, name, s->hidden, v, 0, true);
}

/* `before` rows as they are, then those of the value heads, `each` of them a head. */
static void meet_dealt(gguf *g, double *x, int64_t k, int64_t before, int64_t each) {
    meet(g, x, before * k);
    for (int64_t h = 0; h < g->s->value_heads; h++)
        meet(g, x + (before + head_at(g, h) * each) * k, each * k);
}

static void add_dealt(gguf *g, const char *from, const char *to, int64_t before, int64_t each,
                      bool may_encode) {
    plain_tensor *t = of_layer(g, from);
    char name[96];

    meet_dealt(g, t->value, t->rows ? t->k : 1, before, each);
    name_in_layer(g, to, name);
    finish(g, name, t->k, t->rows, 0, may_encode);
}

static void add_delta(gguf *g) {
    const kt_plain_shape *s = g->s;
    const int64_t k = s->key_heads * s->key_dim;
    const plain_tensor *a_log = of_layer(g, "linear_attn.A_log");
    plain_tensor *out = of_layer(g, "linear_attn.out_proj.weight");
    double *decay = malloc((size_t)s->value_heads * sizeof *decay);
    char name[96];

    if (s->family == KT_PLAIN_QWEN3_5) {
        add_dealt(g, "linear_attn.in_proj_qkv.weight", "attn_qkv.weight", 2 * k, s->value_dim,
                  true);
        add_dealt(g, "linear_attn.in_proj_z.weight", "attn_gate.weight", 0, s->value_dim, true);
        add_dealt(g, "linear_attn.in_proj_b.weight", "ssm_beta.weight", 0, 1, true);
        add_dealt(g, "linear_attn.in_proj_a.weight", "ssm_alpha.weight", 0, 1, true);
    } else {
        add_next_inputs(g);
    }
    add_dealt(g, "linear_attn.conv1d.weight", "ssm_conv1d.weight", 2 * k, s->value_dim, false);
    add_dealt(g, "linear_attn.dt_bias", "ssm_dt.bias", 0, 1, false);
    for (int64_t h = 0; h < s->value_heads; h++) decay[h] = -exp(a_log->value[head_at(g, h)]);
    meet(g, decay, s->value_heads);
    name_in_layer(g, "ssm_a", name);
    finish(g, name, s->value_heads, 0, 0, false);
    add_floats(g, "linear_attn.norm.weight", "ssm_norm.weight", 0);
    for (int64_t r = 0; r < s->hidden; r++)
        for (int64_t h = 0; h < s->value_heads; h++)
            meet(g, out->value + r * out->k + head_at(g, h) * s->value_dim, s->value_dim);
    name_in_layer(g, "ssm_out.weight", name);
    finish(g, name, out->k, s->hidden, 0, true);
    free(decay);
}

/* ---- metadata ---- */

static const char *arch_of(const kt_plain_shape *s) {
    switch (s->family) {
    case KT_PLAIN_MINIMAX_M2: return "minimax-m2";
    case KT_PLAIN_GLM4_MOE: return "glm4moe";
    case KT_PLAIN_DEEPSEEK_V32: return "deepseek32";
    case KT_PLAIN_GLM_DSA: return "glm-dsa";
    case KT_PLAIN_QWEN3_NEXT: return "qwen3next";
    case KT_PLAIN_QWEN3_5: return "qwen35moe";
    case KT_PLAIN_QWEN3_MOE: return "qwen3moe";
    default: return "deepseek2";
    }
}

static void say_int(gguf *g, const char *key, int64_t value) {
    char full[96];

    snprintf(full, sizeof full, "%s.%s", arch_of(g->s), key);
    kt_tiny_gguf_int(g->head, full, (int32_t)value);
}

static void say_real(gguf *g, const char *key, double value) {
    char full[96];

    snprintf(full, sizeof full, "%s.%s", arch_of(g->s), key);
    kt_tiny_gguf_real(g->head, full, (float)value);
}

static void say_latent(gguf *g) {
    const kt_plain_shape *s = g->s;

    say_int(g, "attention.head_count_kv", 1);
    if (s->q_lora) say_int(g, "attention.q_lora_rank", s->q_lora);
    say_int(g, "attention.kv_lora_rank", s->kv_lora);
    say_int(g, "attention.key_length", s->kv_lora + s->rope);
    say_int(g, "attention.value_length", s->kv_lora);
    say_int(g, "attention.key_length_mla", s->nope + s->rope);
    say_int(g, "attention.value_length_mla", s->v);
    say_int(g, "rope.dimension_count", s->rope);
    if (s->yarn > 0) {
        char full[96];
        snprintf(full, sizeof full, "%s.rope.scaling.type", arch_of(s));
        kt_tiny_gguf_text(g->head, full, "yarn");
        say_real(g, "rope.scaling.factor", s->yarn);
        say_int(g, "rope.scaling.original_context_length", 16);
        say_real(g, "rope.scaling.yarn_beta_fast", 4);
        say_real(g, "rope.scaling.yarn_beta_slow", 1);
        say_real(g, "rope.scaling.yarn_log_multiplier", 0.1);
    }
    if (!s->index_topk) return;
    say_int(g, "attention.indexer.head_count", s->index_heads);
    say_int(g, "attention.indexer.key_length", s->index_dim);
    say_int(g, "attention.indexer.top_k", s->index_topk);
    if (s->indexers) {
        char full[96];
        snprintf(full, sizeof full, "%s.attention.indexer.types", arch_of(s));
        kt_tiny_gguf_bools(g->head, full, s->indexers, 'F');
    }
}

static void say_hybrid(gguf *g) {
    const kt_plain_shape *s = g->s;

    say_int(g, "expert_shared_feed_forward_length", s->shared_size);
    say_int(g, "ssm.conv_kernel", 4);
    say_int(g, "ssm.state_size", s->key_dim);
    say_int(g, "ssm.group_count", s->key_heads);
    say_int(g, "ssm.time_step_rank", s->value_heads);
    say_int(g, "ssm.inner_size", s->value_heads * s->value_dim);
    say_int(g, "full_attention_interval", s->full_every);
}

static void say_all(gguf *g) {
    const kt_plain_shape *s = g->s;
    const bool is_sigmoid = !kt_plain_is_softmax(s);

    kt_tiny_gguf_text(g->head, "general.architecture", arch_of(s));
    say_int(g, "block_count", s->layers);
    say_int(g, "context_length", 256);
    say_int(g, "embedding_length", s->hidden);
    say_int(g, "feed_forward_length", s->dense_size ? s->dense_size : 32);
    say_int(g, "vocab_size", s->vocab);
    say_int(g, "attention.head_count", s->heads);
    say_real(g, "attention.layer_norm_rms_epsilon", 1e-5);
    say_real(g, "rope.freq_base", s->theta);
    say_int(g, "expert_count", s->experts);
    say_int(g, "expert_used_count", s->topk);
    say_int(g, "expert_feed_forward_length", s->expert_size);
    if (is_sigmoid) say_int(g, "expert_gating_func", 2);
    if (s->kv_lora) {
        say_latent(g);
    } else {
        say_int(g, "attention.head_count_kv", s->kv_heads);
        say_int(g, "attention.key_length", s->head_dim);
        say_int(g, "attention.value_length", s->head_dim);
        say_int(g, "rope.dimension_count", s->rotary ? s->rotary : s->head_dim);
    }
    if (kt_plain_is_hybrid(s)) say_hybrid(g);
    if (is_sigmoid && s->family != KT_PLAIN_MINIMAX_M2) {
        say_int(g, "expert_group_count", s->groups);
        say_int(g, "expert_group_used_count", s->top_groups);
        say_int(g, "expert_shared_count", s->shared_size / s->expert_size);
        say_int(g, "leading_dense_block_count", s->dense_layers);
        say_real(g, "expert_weights_scale", s->scaling);
        say_int(g, "expert_weights_norm", 1);
    }
    kt_tiny_gguf_text(g->head, "tokenizer.ggml.model", "gpt2");
    kt_tiny_gguf_text(g->head, "tokenizer.ggml.pre",
                      s->family == KT_PLAIN_GLM4_LITE ? "glm4" : "deepseek-v3");
    kt_tiny_gguf_bytes(g->head, "tokenizer.ggml.tokens", (int)s->vocab);
    kt_tiny_gguf_bytes(g->head, "tokenizer.ggml.merges", 0);
}

/* ---- the whole ---- */

static void add_layer(gguf *g) {
    const kt_plain_shape *s = g->s;
    const double plus = kt_plain_is_hybrid(s);
    const bool is_post = kt_plain_is_hybrid(s) || s->family == KT_PLAIN_GLM4_MOE;

    add_floats(g, "input_layernorm.weight", "attn_norm.weight", plus);
    add_floats(g, "post_attention_layernorm.weight",
               is_post ? "post_attention_norm.weight" : "ffn_norm.weight", plus);
    if (kt_plain_is_delta(s, g->layer))
        add_delta(g);
    else if (s->kv_lora)
        add_latent(g);
    else
        add_grouped(g);
    add_feed_forward(g);
}

static void add_outside(gguf *g) {
    const kt_plain_shape *s = g->s;
    plain_tensor *norm = kt_plain_find(g->m, "model.norm.weight");
    double *x = malloc((size_t)s->hidden * sizeof *x);

    meet(g, kt_plain_find(g->m, "model.embed_tokens.weight")->value, s->vocab * s->hidden);
    finish(g, "token_embd.weight", s->hidden, s->vocab, 0, true);
    if (!s->is_tied) {
        meet(g, kt_plain_find(g->m, "lm_head.weight")->value, s->vocab * s->hidden);
        finish(g, "output.weight", s->hidden, s->vocab, 0, true);
    }
    for (int64_t i = 0; i < s->hidden; i++) x[i] = norm->value[i] + kt_plain_is_hybrid(s);
    meet(g, x, s->hidden);
    finish(g, "output_norm.weight", s->hidden, 0, 0, false);
    free(x);
}

void kt_plain_store_gguf(kt_plain_model *m, uint64_t seed, const char *path) {
    gguf g = {.m = m, .s = &m->shape, .head = calloc(1, sizeof *g.head)};
    size_t head;
    FILE *f = fopen(path, "wb");

    kt_rng_seed(&g.rng, seed);
    g.salt = kt_rng_u64(&g.rng);
    g.splits_pairs = kt_rng_below(&g.rng, 3) == 0;
    say_all(&g);
    add_outside(&g);
    for (g.layer = 0; g.layer < m->shape.layers; g.layer++) add_layer(&g);
    head = kt_tiny_gguf_head(g.head);
    if (!f || g.head->data_bytes != g.bytes || fwrite(g.head->file, 1, head, f) != head ||
        fwrite(g.data, 1, g.bytes, f) != g.bytes || fclose(f) != 0)
        abort();
    free(g.at), free(g.data), free(g.head);
}
