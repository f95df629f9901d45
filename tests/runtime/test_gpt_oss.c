/* gpt-oss in odd sizes against its formulas in double, written out here from the published
 * description over the numbers as a BF16 re-save of a checkpoint holds them: nothing is shared with
 * the engine, its graph or its loader. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "base/rng.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/exec/engine.h"
#include "runtime/model/node_plan.h"
#include "tests/support/temp.h"

enum { N_TOKENS = 14, MOST_TENSORS = 96, SEEDS = 200, MODELS = 1 };

/* Logits between the last chosen expert and the first that is not, at least. */
#define CLEAR 0.3

typedef struct sizes {
    int64_t layers, hidden, vocab, heads, kv_heads, dim, experts, topk, inner, window;
    double limit;
} sizes;

static const sizes shapes[] = {{3, 160, 67, 6, 2, 32, 5, 2, 96, 5, 3},
                               {2, 96, 40, 5, 1, 64, 11, 3, 160, 1, 7},
                               {2, 224, 33, 7, 7, 96, 6, 4, 32, 9, 2}};

typedef struct stored {
    char name[96];
    int64_t shape[3];
    int rank;
    double *value;
} stored;

typedef struct model {
    const sizes *s;
    stored tensor[MOST_TENSORS];
    int count;
    kt_rng rng;
} model;

/* ---- drawing ---- */

static void draw(model *m, int64_t layer, const char *name, int64_t d0, int64_t d1, int64_t d2,
                 double mean, double deviation) {
    stored *t = &m->tensor[m->count++];
    const int64_t count = d0 * (d1 ? d1 : 1) * (d2 ? d2 : 1);

    cr_assert_leq(m->count, MOST_TENSORS);
    if (layer >= 0)
        snprintf(t->name, sizeof t->name, "model.layers.%d.%s", (int)layer, name);
    else
        snprintf(t->name, sizeof t->name, "%s", name);
    t->shape[0] = d0, t->shape[1] = d1, t->shape[2] = d2;
    t->rank = d2 ? 3 : d1 ? 2 : 1;
    t->value = malloc((size_t)count * sizeof *t->value);
    for (int64_t i = 0; i < count; i++)
        t->value[i] =
            kt_bf16_to_f32(kt_f32_to_bf16((float)(mean + deviation * kt_rng_normal(&m->rng))));
}

static void draw_layer(model *m, int64_t l) {
    const sizes *s = m->s;
    const int64_t h = s->hidden, q = s->heads * s->dim, kv = s->kv_heads * s->dim;
    const double unit = 1 / sqrt((double)h);

    draw(m, l, "input_layernorm.weight", h, 0, 0, 1, 0.2);
    draw(m, l, "post_attention_layernorm.weight", h, 0, 0, 1, 0.2);
    draw(m, l, "self_attn.q_proj.weight", q, h, 0, 0, 1.5 * unit);
    draw(m, l, "self_attn.k_proj.weight", kv, h, 0, 0, 1.5 * unit);
    draw(m, l, "self_attn.v_proj.weight", kv, h, 0, 0, unit);
    draw(m, l, "self_attn.o_proj.weight", h, q, 0, 0, 1 / sqrt((double)q));
    draw(m, l, "self_attn.q_proj.bias", q, 0, 0, 0, 0.5);
    draw(m, l, "self_attn.k_proj.bias", kv, 0, 0, 0, 0.5);
    draw(m, l, "self_attn.v_proj.bias", kv, 0, 0, 0, 0.5);
    draw(m, l, "self_attn.o_proj.bias", h, 0, 0, 0, 0.5);
    draw(m, l, "self_attn.sinks", s->heads, 0, 0, 1, 2);
    draw(m, l, "mlp.router.weight", s->experts, h, 0, 0, 8 * unit);
    draw(m, l, "mlp.router.bias", s->experts, 0, 0, 0, 2);
    draw(m, l, "mlp.experts.gate_up_proj", s->experts, h, 2 * s->inner, 0, 2 * unit);
    draw(m, l, "mlp.experts.gate_up_proj_bias", s->experts, 2 * s->inner, 0, 0, 1);
    draw(m, l, "mlp.experts.down_proj", s->experts, s->inner, h, 0, 1 / sqrt((double)s->inner));
    draw(m, l, "mlp.experts.down_proj_bias", s->experts, h, 0, 0, 0.5);
}

static void draw_model(model *m, uint64_t seed) {
    const sizes *s = m->s;

    kt_rng_seed(&m->rng, seed);
    draw(m, -1, "model.embed_tokens.weight", s->vocab, s->hidden, 0, 0, 1);
    for (int64_t l = 0; l < s->layers; l++) draw_layer(m, l);
    draw(m, -1, "model.norm.weight", s->hidden, 0, 0, 1, 0.2);
    draw(m, -1, "lm_head.weight", s->vocab, s->hidden, 0, 0, 3 / sqrt((double)s->hidden));
}

static void write_model(const model *m, const char *folder) {
    const sizes *s = m->s;
    kt_tensor_out out[MOST_TENSORS] = {{0}};
    char path[PATH_MAX + 32], config[1200];
    kt_err err = {KT_OK, ""};

    for (int i = 0; i < m->count; i++) {
        const stored *t = &m->tensor[i];
        int64_t count = 1;
        uint16_t *halves;
        for (int d = 0; d < t->rank; d++) count *= out[i].shape[d] = t->shape[d];
        halves = malloc((size_t)count * sizeof *halves);
        for (int64_t j = 0; j < count; j++) halves[j] = kt_f32_to_bf16((float)t->value[j]);
        out[i].name = t->name, out[i].dtype = KT_DTYPE_BF16, out[i].data = halves;
        out[i].rank = t->rank;
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cr_assert_eq(kt_safetensors_write(path, out, (size_t)m->count, &err), KT_OK, "%s", err.message);
    for (int i = 0; i < m->count; i++) free((void *)(uintptr_t)out[i].data);
    snprintf(config, sizeof config,
             "{\"model_type\":\"gpt_oss\",\"num_hidden_layers\":%d,\"hidden_size\":%d,"
             "\"vocab_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":%d,"
             "\"head_dim\":%d,\"num_local_experts\":%d,\"num_experts_per_tok\":%d,"
             "\"intermediate_size\":%d,\"sliding_window\":%d,\"swiglu_limit\":%g,"
             "\"rope_theta\":10000,\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":8,"
             "\"beta_fast\":3,\"beta_slow\":1,\"original_max_position_embeddings\":64,"
             "\"truncate\":false},\"max_position_embeddings\":512,\"rms_norm_eps\":1e-5,"
             "\"eos_token_id\":0}",
             (int)s->layers, (int)s->hidden, (int)s->vocab, (int)s->heads, (int)s->kv_heads,
             (int)s->dim, (int)s->experts, (int)s->topk, (int)s->inner, (int)s->window, s->limit);
    kt_temp_write(folder, "config.json", config, strlen(config));
}

/* ---- the formulas ---- */

/* x [n, hidden]: the residual. is_rounded: inputs of products, queries, keys and values are BF16.
 * margin: the least by which an expert was chosen. */
typedef struct pass {
    const model *m;
    int64_t layer;
    double *x, margin;
    bool is_rounded;
} pass;

static const double *tensor(const model *m, int64_t layer, const char *name) {
    char full[96];

    if (layer >= 0)
        snprintf(full, sizeof full, "model.layers.%d.%s", (int)layer, name);
    else
        snprintf(full, sizeof full, "%s", name);
    for (int i = 0; i < m->count; i++)
        if (strcmp(m->tensor[i].name, full) == 0) return m->tensor[i].value;
    cr_assert(false, "no tensor %s", full);
    return NULL;
}

static void settle_numbers(const pass *p, double *x, int64_t n) {
    for (int64_t i = 0; p->is_rounded && i < n; i++)
        x[i] = kt_bf16_to_f32(kt_f32_to_bf16((float)x[i]));
}

/* y = W x + b, W [n, k]; b may be NULL. */
static void linear(const pass *p, const double *w, const double *b, const double *x, int64_t n,
                   int64_t k, double *y) {
    double in[1024];

    memcpy(in, x, (size_t)k * sizeof *in);
    settle_numbers(p, in, k);
    for (int64_t r = 0; r < n; r++) {
        y[r] = b ? b[r] : 0;
        for (int64_t i = 0; i < k; i++) y[r] += w[r * k + i] * in[i];
    }
}

static void norm(const double *x, const double *w, int64_t n, double *y) {
    double sum = 0;

    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) y[i] = x[i] / sqrt(sum / (double)n + 1e-5) * w[i];
}

static double turn_at(double dim, double turns) {
    return dim * log(64 / (turns * 2 * acos(-1))) / (2 * log(10000));
}

static void rotate(double *x, int64_t d, int64_t position) {
    const double low = fmax(turn_at((double)d, 3), 0), size = 0.1 * log(8) + 1;
    const double high = fmin(turn_at((double)d, 1), (double)d - 1);

    for (int64_t i = 0; i < d / 2; i++) {
        const double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        const double plain = pow(10000, -2.0 * (double)i / (double)d);
        const double a = (double)position * (plain * (1 - ramp) + plain / 8 * ramp);
        const double u = x[i], v = x[i + d / 2];
        x[i] = size * (u * cos(a) - v * sin(a));
        x[i + d / 2] = size * (v * cos(a) + u * sin(a));
    }
}

/* One head over the keys that position t sees, and its sink. */
static void attend(const double *q, const double *k, const double *v, int64_t stride, int64_t d,
                   int64_t first, int64_t t, double sink, double *out) {
    double score[N_TOKENS], sum = exp(sink);

    for (int64_t j = first; j <= t; j++) {
        score[j] = 0;
        for (int64_t i = 0; i < d; i++) score[j] += q[i] * k[j * stride + i] / sqrt((double)d);
        sum += exp(score[j]);
    }
    for (int64_t i = 0; i < d; i++) {
        out[i] = 0;
        for (int64_t j = first; j <= t; j++) out[i] += exp(score[j]) / sum * v[j * stride + i];
    }
}

static void attention(pass *p) {
    const sizes *s = p->m->s;
    const int64_t d = s->dim, h = s->hidden, wide = s->heads * d, kv = s->kv_heads * d;
    const double *sinks = tensor(p->m, p->layer, "self_attn.sinks");
    double *k = malloc(sizeof *k * (size_t)(N_TOKENS * kv)),
           *v = malloc(sizeof *v * (size_t)(N_TOKENS * kv));
    double q[1024], o[1024], row[512], y[512];

#define OF(name) tensor(p->m, p->layer, "self_attn." name)
    for (int64_t t = 0; t < N_TOKENS; t++) {
        const int64_t low = p->layer % 2 == 0 ? t - s->window + 1 : 0;
        norm(p->x + t * h, tensor(p->m, p->layer, "input_layernorm.weight"), h, row);
        linear(p, OF("q_proj.weight"), OF("q_proj.bias"), row, wide, h, q);
        linear(p, OF("k_proj.weight"), OF("k_proj.bias"), row, kv, h, k + t * kv);
        linear(p, OF("v_proj.weight"), OF("v_proj.bias"), row, kv, h, v + t * kv);
        for (int64_t i = 0; i < s->heads; i++) rotate(q + i * d, d, t);
        for (int64_t i = 0; i < s->kv_heads; i++) rotate(k + t * kv + i * d, d, t);
        settle_numbers(p, q, wide);
        settle_numbers(p, k + t * kv, kv);
        settle_numbers(p, v + t * kv, kv);
        for (int64_t i = 0; i < s->heads; i++) {
            const int64_t at = i / (s->heads / s->kv_heads) * d;
            attend(q + i * d, k + at, v + at, kv, d, low < 0 ? 0 : low, t, sinks[i], o + i * d);
        }
        linear(p, OF("o_proj.weight"), OF("o_proj.bias"), o, h, wide, y);
        for (int64_t i = 0; i < h; i++) p->x[t * h + i] += y[i];
    }
#undef OF
    free(k), free(v);
}

/* Adds weight times expert e of the normed row: inputs by outputs, gate and up in turn. */
static void expert(const pass *p, int64_t e, const double *row, double weight, double *x) {
    const sizes *s = p->m->s;
    const int64_t h = s->hidden, n = s->inner;
    const double *w = tensor(p->m, p->layer, "mlp.experts.gate_up_proj") + e * h * 2 * n;
    const double *b = tensor(p->m, p->layer, "mlp.experts.gate_up_proj_bias") + e * 2 * n;
    const double *down = tensor(p->m, p->layer, "mlp.experts.down_proj") + e * n * h;
    const double *down_b = tensor(p->m, p->layer, "mlp.experts.down_proj_bias") + e * h;
    double in[512], mid[512];

    memcpy(in, row, (size_t)h * sizeof *in);
    settle_numbers(p, in, h);
    for (int64_t j = 0; j < n; j++) {
        double g = b[2 * j], u = b[2 * j + 1];
        for (int64_t i = 0; i < h; i++) {
            g += in[i] * w[i * 2 * n + 2 * j];
            u += in[i] * w[i * 2 * n + 2 * j + 1];
        }
        g = fmin(g, s->limit);
        u = fmin(fmax(u, -s->limit), s->limit);
        mid[j] = (u + 1) * g / (1 + exp(-1.702 * g));
    }
    settle_numbers(p, mid, n);
    for (int64_t i = 0; i < h; i++) {
        double y = down_b[i];
        for (int64_t j = 0; j < n; j++) y += mid[j] * down[j * h + i];
        x[i] += weight * y;
    }
}

static void feed_forward(pass *p) {
    const sizes *s = p->m->s;
    const int64_t h = s->hidden;

    for (int64_t t = 0; t < N_TOKENS; t++) {
        const pass exact = {.m = p->m};
        double row[512], logit[16], sum = 0, chosen[16], add[512] = {0};
        int64_t id[16];
        norm(p->x + t * h, tensor(p->m, p->layer, "post_attention_layernorm.weight"), h, row);
        linear(&exact, tensor(p->m, p->layer, "mlp.router.weight"),
               tensor(p->m, p->layer, "mlp.router.bias"), row, s->experts, h, logit);
        for (int64_t j = 0; j <= s->topk; j++) {
            int64_t best = 0;
            for (int64_t e = 1; e < s->experts; e++)
                if (logit[e] > logit[best]) best = e;
            if (j == s->topk) {
                p->margin = fmin(p->margin, chosen[j - 1] - logit[best]);
                break;
            }
            id[j] = best;
            chosen[j] = logit[best];
            logit[best] = -INFINITY;
        }
        for (int64_t j = 0; j < s->topk; j++) sum += exp(chosen[j] - chosen[0]);
        for (int64_t j = 0; j < s->topk; j++)
            expert(p, id[j], row, exp(chosen[j] - chosen[0]) / sum, add);
        for (int64_t i = 0; i < h; i++) p->x[t * h + i] += add[i];
    }
}

/* logits [N_TOKENS, vocab]; returns the margin. */
static double forward(const model *m, const int32_t *tokens, bool is_rounded, double *logits) {
    const sizes *s = m->s;
    const int64_t h = s->hidden;
    pass p = {.m = m, .margin = INFINITY, .is_rounded = is_rounded};

    p.x = malloc(sizeof *p.x * (size_t)(N_TOKENS * h));
    for (int64_t t = 0; t < N_TOKENS; t++)
        memcpy(p.x + t * h, tensor(m, -1, "model.embed_tokens.weight") + tokens[t] * h,
               (size_t)h * sizeof *p.x);
    for (p.layer = 0; p.layer < s->layers && (is_rounded || p.margin > CLEAR); p.layer++) {
        attention(&p);
        feed_forward(&p);
    }
    for (int64_t t = 0; t < N_TOKENS; t++) {
        double row[512];
        norm(p.x + t * h, tensor(m, -1, "model.norm.weight"), h, row);
        linear(&p, tensor(m, -1, "lm_head.weight"), NULL, row, s->vocab, h, logits + t * s->vocab);
    }
    free(p.x);
    return p.margin;
}

/* ---- comparing ---- */

static void run_engine(const char *folder, const int32_t *tokens, int64_t chunk, int nodes,
                       float *logits) {
    kt_engine_options o = {.model_dir = folder,
                           .weights = KT_QUANT_NATIVE,
                           .exact_acts = true,
                           .table_path = "",
                           .n_threads = 2,
                           .numa = nodes,
                           .tokenizer_optional = true};
    kt_engine *e;
    kt_sequence *s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_set_chunk(e, chunk);
    cr_assert_eq(kt_sequence_create(e, N_TOKENS, &s, &err), KT_OK, "%s", err.message);
    cr_assert_eq(
        kt_engine_forward(e, s, tokens, N_TOKENS, N_TOKENS, logits, NULL, NULL, NULL, &err), KT_OK,
        "%s", err.message);
    kt_sequence_destroy(s);
    kt_engine_destroy(e);
}

static double distance(const double *a, const double *b, int64_t count) {
    double difference = 0, size = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / size);
}

/* Returns whether every expert was clearly chosen. */
static bool check(const sizes *s, uint64_t seed) {
    const int64_t count = N_TOKENS * s->vocab, chunks[] = {N_TOKENS, 5, 1};
    const int nodes[] = {KT_NUMA_OFF, s->inner > 64 ? 2 : KT_NUMA_OFF, KT_NUMA_OFF};
    const size_t bytes = (size_t)count * sizeof(double);
    double *exact = malloc(bytes), *rounded = malloc(bytes), *got = malloc(bytes), margin;
    float *logits = malloc((size_t)count * sizeof *logits);
    model m = {.s = s};
    char folder[PATH_MAX];
    int32_t tokens[N_TOKENS];

    draw_model(&m, seed);
    for (int i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)kt_rng_below(&m.rng, (uint64_t)s->vocab);
    margin = forward(&m, tokens, false, exact);
    if (margin > CLEAR) {
        forward(&m, tokens, true, rounded);
        kt_temp_make(folder, sizeof folder);
        write_model(&m, folder);
        for (size_t c = 0; c < sizeof chunks / sizeof *chunks; c++) {
            run_engine(folder, tokens, chunks[c], nodes[c], logits);
            for (int64_t i = 0; i < count; i++) got[i] = logits[i];
            cr_expect_leq(distance(got, exact, count), 1.5 * distance(rounded, exact, count),
                          "seed %d, chunks of %d: off by %g, rounding alone by %g", (int)seed,
                          (int)chunks[c], distance(got, exact, count),
                          distance(rounded, exact, count));
        }
        kt_temp_remove(folder);
    }
    for (int i = 0; i < m.count; i++) free(m.tensor[i].value);
    free(exact), free(rounded), free(got), free(logits);
    return margin > CLEAR;
}

ParameterizedTestParameters(gpt_oss, agrees_with_its_formulas) {
    size_t n = sizeof shapes / sizeof *shapes, *index = cr_malloc(sizeof *index * n);
    for (size_t i = 0; i < n; i++) index[i] = i;
    return cr_make_param_array(size_t, index, n);
}

ParameterizedTest(size_t *index, gpt_oss, agrees_with_its_formulas, .timeout = 120) {
    int compared = 0;

    for (uint64_t seed = 1; seed <= SEEDS && compared < MODELS; seed++)
        compared += check(&shapes[*index], seed);
    cr_expect_eq(compared, MODELS, "shape %zu: too few models are clear in their choices", *index);
}
