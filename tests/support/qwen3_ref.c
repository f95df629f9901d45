/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/qwen3_ref.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "base/numeric.h"
#include "dispatch/model/needs.h"
#include "runtime/model/weight_source.h"

/* Read here from config.json, not taken from the graph: the two must agree for results to. */
typedef struct ref_config {
    int64_t layers, hidden, vocab, heads, kv_heads, head_dim;
    int64_t experts, topk, expert_size, dense_size;
    bool is_moe[KT_MAX_LAYERS];
    bool normalise_topk, tied, attention_bias;
    double norm_eps, rope_theta;
} ref_config;

typedef struct ref_layer {
    double *attn_norm, *ffn_norm, *q_norm, *k_norm, *qkv, *o, *router;
    double *qkv_bias, *o_bias;
    double *gate, *up, *down; /* [experts][..] */
} ref_layer;

struct kt_ref_model {
    kt_model_dir dir;
    ref_config config;
    kt_arena arena;
    double *embedding, *final_norm, *head;
    ref_layer *layers;
};

/* ---- numbers ---- */

static void read_layer_kinds(const kt_json *root, ref_config *c) {
    const int64_t step = kt_json_int(kt_json_get(root, "decoder_sparse_step"), 1);
    const kt_json *only = kt_json_get(root, "mlp_only_layers");

    for (int64_t l = 0; l < c->layers; l++) c->is_moe[l] = c->experts > 0 && (l + 1) % step == 0;
    for (size_t i = 0; i < kt_json_length(only); i++)
        c->is_moe[kt_json_int(kt_json_at(only, i), 0)] = false;
}

static kt_status read_config(const char *folder, ref_config *c, kt_err *err) {
    char path[KT_MODEL_PATH_BYTES + 16];
    char *text = NULL;
    size_t size = 0;
    kt_json_doc *doc;
    const kt_json *root, *holder;

    snprintf(path, sizeof path, "%s/config.json", folder);
    KT_TRY(kt_file_read(path, (size_t)1 << 24, &text, &size, err));
    if (kt_json_parse(text, size, NULL, &doc, err) != KT_OK) {
        free(text);
        return err->status;
    }
    root = kt_json_root(doc);
    c->layers = kt_json_int(kt_json_get(root, "num_hidden_layers"), 0);
    c->hidden = kt_json_int(kt_json_get(root, "hidden_size"), 0);
    c->vocab = kt_json_int(kt_json_get(root, "vocab_size"), 0);
    c->heads = kt_json_int(kt_json_get(root, "num_attention_heads"), 0);
    c->kv_heads = kt_json_int(kt_json_get(root, "num_key_value_heads"), 0);
    c->head_dim = kt_json_int(kt_json_get(root, "head_dim"), c->hidden / c->heads);
    c->experts = kt_json_int(kt_json_get(root, "num_experts"), 0);
    c->topk = kt_json_int(kt_json_get(root, "num_experts_per_tok"), 0);
    c->expert_size = kt_json_int(kt_json_get(root, "moe_intermediate_size"), 0);
    c->dense_size = kt_json_int(kt_json_get(root, "intermediate_size"), 0);
    c->normalise_topk = kt_json_bool(kt_json_get(root, "norm_topk_prob"), false);
    c->tied = kt_json_bool(kt_json_get(root, "tie_word_embeddings"), false);
    c->attention_bias = kt_json_bool(kt_json_get(root, "attention_bias"), false);
    c->norm_eps = kt_json_double(kt_json_get(root, "rms_norm_eps"), 0);
    holder = kt_json_get(root, "rope_parameters");
    c->rope_theta = kt_json_double(kt_json_get(root, "rope_theta"),
                                   kt_json_double(kt_json_get(holder, "rope_theta"), 0));
    read_layer_kinds(root, c);
    kt_json_destroy(doc);
    free(text);
    return KT_OK;
}

/* ---- loading ---- */

static double *allocate(kt_ref_model *m, int64_t count) {
    return kt_arena_alloc(&m->arena, (size_t)count * sizeof(double), 64);
}

/* A float tensor by its published name; layer -1 = none. */
static kt_status read_tensor(kt_ref_model *m, int64_t layer, const char *name, double **out,
                             kt_err *err) {
    char full[200], prefix[40] = "model.";
    const kt_tensor *t;
    int64_t count;
    float *f;

    if (layer >= 0) snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
    snprintf(full, sizeof full, "%s%s", prefix, name);
    t = kt_checkpoint_find(m->dir.checkpoint, full);
    if (!t) return kt_fail(err, KT_E_NOT_FOUND, "reference: no tensor '%s'", full);
    count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));
    *out = allocate(m, count);
    f = malloc((size_t)count * sizeof *f + 1);
    kt_tensor_read_f32(t, 0, count, f);
    for (int64_t i = 0; i < count; i++) (*out)[i] = f[i];
    free(f);
    return KT_OK;
}

/* The values that the engine's stored weights stand for. */
static void decode_into(const kt_matrix_source *s, kt_weight_format id, double *out) {
    const kt_format *format = kt_format_find(id);
    size_t data, scales;
    kt_matrix w = {.format = id, .n = s->rows, .k = s->k};
    float *scratch = malloc(sizeof *scratch * (size_t)(KT_SOURCE_BLOCK * s->k));
    void *d, *c;

    format->plain_bytes(s->rows, s->k, &data, &scales);
    w.data = d = malloc(data);
    w.scales = c = malloc(scales + 1);
    kt_matrix_source_encode(s, format, 0, s->rows, d, c, scratch, NULL);
    for (int64_t r = 0; r < s->rows; r++) format->decode_row(&w, r, out + r * s->k);
    free(scratch);
    free(d);
    free(c);
}

/* All parts of a weight, one behind the other; each in the format that it becomes. */
static kt_status read_matrix(kt_ref_model *m, kt_weight_finder *f, const char *role, int64_t layer,
                             kt_quant weights, double **out, kt_err *err) {
    const kt_weight *w = kt_graph_find(&m->dir.graph, role, (int)layer);
    kt_matrix_source s;
    int64_t used = 0;

    if (!w) return kt_fail(err, KT_E_NOT_FOUND, "reference: the graph has no '%s'", role);
    *out = allocate(m, w->n * w->k);
    for (int i = 0; i < w->n_parts; used += w->part[i++].n) {
        KT_TRY(kt_weight_source(f, w, i, 1, 0, &s, err));
        decode_into(&s, kt_weight_becomes(w, i, weights), *out + used * w->k);
    }
    return KT_OK;
}

/* Zeros when the model has none. */
static kt_status load_biases(kt_ref_model *m, int64_t l, kt_err *err) {
    const ref_config *c = &m->config;
    ref_layer *w = &m->layers[l];
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    double *bias[3];

    w->qkv_bias = allocate(m, q + 2 * kv);
    w->o_bias = allocate(m, c->hidden);
    if (!c->attention_bias) return KT_OK;
    KT_TRY(read_tensor(m, l, "self_attn.q_proj.bias", &bias[0], err));
    KT_TRY(read_tensor(m, l, "self_attn.k_proj.bias", &bias[1], err));
    KT_TRY(read_tensor(m, l, "self_attn.v_proj.bias", &bias[2], err));
    memcpy(w->qkv_bias, bias[0], (size_t)q * sizeof(double));
    memcpy(w->qkv_bias + q, bias[1], (size_t)kv * sizeof(double));
    memcpy(w->qkv_bias + q + kv, bias[2], (size_t)kv * sizeof(double));
    return read_tensor(m, l, "self_attn.o_proj.bias", &w->o_bias, err);
}

static kt_status load_experts(kt_ref_model *m, kt_weight_finder *f, int64_t l, kt_quant weights,
                              kt_err *err) {
    const ref_config *c = &m->config;
    ref_layer *layer = &m->layers[l];
    const int64_t experts = c->is_moe[l] ? c->experts : 1;
    const int64_t size = (c->is_moe[l] ? c->expert_size : c->dense_size) * c->hidden;
    const kt_weight *w =
        kt_graph_find(&m->dir.graph, c->is_moe[l] ? "experts" : "dense_ffn", (int)l);
    double *out[3];

    if (!w)
        return kt_fail(err, KT_E_NOT_FOUND, "reference: layer %lld has no experts", (long long)l);
    for (int part = 0; part < 3; part++) out[part] = allocate(m, experts * size);
    for (int64_t e = 0; e < experts; e++)
        for (int part = 0; part < 3; part++) {
            kt_matrix_source s;
            KT_TRY(kt_weight_source(f, w, part, 1, e, &s, err));
            decode_into(&s, kt_weight_becomes(w, part, weights), out[part] + e * size);
        }
    layer->gate = out[0], layer->up = out[1], layer->down = out[2];
    return KT_OK;
}

static kt_status load_layer(kt_ref_model *m, kt_weight_finder *f, int64_t l, kt_quant weights,
                            kt_err *err) {
    ref_layer *w = &m->layers[l];

    KT_TRY(read_tensor(m, l, "input_layernorm.weight", &w->attn_norm, err));
    KT_TRY(read_tensor(m, l, "post_attention_layernorm.weight", &w->ffn_norm, err));
    KT_TRY(read_tensor(m, l, "self_attn.q_norm.weight", &w->q_norm, err));
    KT_TRY(read_tensor(m, l, "self_attn.k_norm.weight", &w->k_norm, err));
    if (m->config.is_moe[l]) KT_TRY(read_tensor(m, l, "mlp.gate.weight", &w->router, err));
    KT_TRY(read_matrix(m, f, "qkv", l, weights, &w->qkv, err));
    KT_TRY(read_matrix(m, f, "o", l, weights, &w->o, err));
    KT_TRY(load_biases(m, l, err));
    return load_experts(m, f, l, weights, err);
}

static kt_status load_all(kt_ref_model *m, kt_weight_finder *f, kt_quant weights, kt_err *err) {
    const size_t layers = (size_t)m->config.layers;

    KT_TRY(read_tensor(m, -1, "embed_tokens.weight", &m->embedding, err));
    KT_TRY(read_tensor(m, -1, "norm.weight", &m->final_norm, err));
    KT_TRY(read_matrix(m, f, "lm_head", -1, weights, &m->head, err));
    m->layers = kt_arena_alloc(&m->arena, layers * sizeof *m->layers, 64);
    for (int64_t l = 0; l < m->config.layers; l++) KT_TRY(load_layer(m, f, l, weights, err));
    return KT_OK;
}

kt_ref_model *kt_ref_load(const char *folder, kt_quant weights, kt_err *err) {
    kt_ref_model *m = calloc(1, sizeof *m);
    kt_weight_finder finder = {0};
    kt_status st = kt_model_dir_read(folder, &m->dir, err);

    if (st == KT_OK && !m->dir.checkpoint) st = kt_fail(err, KT_E_NOT_FOUND, "no weights");
    if (st == KT_OK) st = read_config(m->dir.folder, &m->config, err);
    if (st == KT_OK) st = kt_weight_finder_init(&finder, m->dir.checkpoint, &m->dir.graph, err);
    if (st == KT_OK) st = load_all(m, &finder, weights, err);
    kt_weight_finder_deinit(&finder);
    if (st == KT_OK) return m;
    kt_ref_free(m);
    return NULL;
}

void kt_ref_free(kt_ref_model *m) {
    if (!m) return;
    kt_model_dir_deinit(&m->dir);
    kt_arena_deinit(&m->arena);
    free(m);
}

/* ---- arithmetic ---- */

static double to_bf16(double x) {
    return kt_bf16_to_f32(kt_f32_to_bf16((float)x));
}

static void round_row(double *x, int64_t k, kt_ref_rounding rounding) {
    if (rounding == KT_REF_BF16)
        for (int64_t i = 0; i < k; i++) x[i] = to_bf16(x[i]);
    for (int64_t g = 0; g < k && rounding == KT_REF_INT8_POWERS; g += 16) {
        double most = 0;
        int e;
        for (int64_t i = g; i < g + 16; i++) most = fmax(most, fabs(x[i]));
        frexp(most / 127.5, &e); /* 2^(e - 1) <= most / 127.5 < 2^e */
        for (int64_t i = g; i < g + 16 && most > 0; i++)
            x[i] = ldexp(nearbyint(ldexp(x[i], -e)), e);
    }
    if (rounding != KT_REF_INT8) return;
    for (int64_t g = 0; g < k; g += 32) {
        double most = 0;
        for (int64_t i = g; i < g + 32; i++) most = fmax(most, fabs(x[i]));
        for (int64_t i = g; i < g + 32 && most > 0; i++)
            x[i] = nearbyint(x[i] * 127 / most) * most / 127;
    }
}

/* y = round(x) * w^T */
static void linear(const double *w, const double *x, int64_t n, int64_t k, kt_ref_rounding rounding,
                   double *y) {
    double *r = malloc((size_t)k * sizeof *r);

    memcpy(r, x, (size_t)k * sizeof *r);
    round_row(r, k, rounding);
    for (int64_t i = 0; i < n; i++) {
        double sum = 0;
        for (int64_t j = 0; j < k; j++) sum += w[i * k + j] * r[j];
        y[i] = sum;
    }
    free(r);
}

static void rms_norm(const double *x, const double *w, int64_t k, double eps, double *y) {
    double sum = 0;

    for (int64_t i = 0; i < k; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < k; i++) y[i] = x[i] / sqrt(sum / (double)k + eps) * w[i];
}

static void rotate(double *x, int64_t d, int64_t position, double base) {
    for (int64_t i = 0; i < d / 2; i++) {
        double angle = (double)position * pow(base, -2.0 * (double)i / (double)d);
        double a = x[i], b = x[i + d / 2];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + d / 2] = b * cos(angle) + a * sin(angle);
    }
}

static void attend(const ref_config *c, const double *qkv, int64_t t, double *out) {
    int64_t d = c->head_dim, ld = (c->heads + 2 * c->kv_heads) * d;
    double *p = malloc((size_t)(t + 1) * sizeof *p);

    for (int64_t h = 0; h < c->heads; h++) {
        int64_t kv = h * c->kv_heads / c->heads;
        const double *q = qkv + t * ld + h * d;
        double top = -INFINITY, sum = 0;
        for (int64_t s = 0; s <= t; s++) {
            const double *k = qkv + s * ld + (c->heads + kv) * d;
            p[s] = 0;
            for (int64_t i = 0; i < d; i++) p[s] += q[i] * k[i];
            p[s] /= sqrt((double)d);
            top = fmax(top, p[s]);
        }
        for (int64_t s = 0; s <= t; s++) sum += p[s] = exp(p[s] - top);
        for (int64_t i = 0; i < d; i++) {
            double o = 0;
            for (int64_t s = 0; s <= t; s++)
                o += p[s] / sum * qkv[s * ld + (c->heads + c->kv_heads + kv) * d + i];
            out[h * d + i] = o;
        }
    }
    free(p);
}

static void attention(const kt_ref_model *m, const ref_layer *w, double *x, int64_t n,
                      kt_ref_rounding rounding) {
    const ref_config *c = &m->config;
    int64_t d = c->head_dim, q = c->heads * d, ld = q + 2 * c->kv_heads * d, h = c->hidden;
    double *qkv = malloc((size_t)(n * ld) * sizeof *qkv);
    double *row = malloc((size_t)(h + q) * sizeof *row), *sum = malloc((size_t)h * sizeof *sum);

    for (int64_t t = 0; t < n; t++) {
        double *y = qkv + t * ld;
        rms_norm(x + t * h, w->attn_norm, h, c->norm_eps, row);
        linear(w->qkv, row, ld, h, rounding, y);
        for (int64_t i = 0; i < ld; i++) y[i] += w->qkv_bias[i];
        for (int64_t i = 0; i < c->heads + c->kv_heads; i++) {
            rms_norm(y + i * d, i < c->heads ? w->q_norm : w->k_norm, d, c->norm_eps, y + i * d);
            rotate(y + i * d, d, t, c->rope_theta);
        }
        for (int64_t i = rounding == KT_REF_BF16 ? 0 : q; i < ld && rounding != KT_REF_EXACT; i++)
            y[i] = to_bf16(y[i]);
    }
    for (int64_t t = 0; t < n; t++) {
        attend(c, qkv, t, row);
        linear(w->o, row, h, q, rounding, sum);
        for (int64_t i = 0; i < h; i++) x[t * h + i] += sum[i] + w->o_bias[i];
    }
    free(qkv);
    free(row);
    free(sum);
}

static void expert(const ref_config *c, const ref_layer *w, int64_t e, int64_t size,
                   const double *x, double weight, kt_ref_rounding rounding, double *out) {
    int64_t h = c->hidden;
    double *g = malloc((size_t)size * sizeof *g), *u = malloc((size_t)size * sizeof *u);
    double *y = malloc((size_t)h * sizeof *y);

    linear(w->gate + e * size * h, x, size, h, rounding, g);
    linear(w->up + e * size * h, x, size, h, rounding, u);
    for (int64_t i = 0; i < size; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    linear(w->down + e * size * h, g, h, size, rounding, y);
    for (int64_t i = 0; i < h; i++) out[i] += weight * y[i];
    free(g);
    free(u);
    free(y);
}

static void feed_forward(const kt_ref_model *m, int64_t layer, double *x, kt_ref_rounding rounding,
                         double *router) {
    const ref_config *c = &m->config;
    const ref_layer *w = &m->layers[layer];
    int64_t h = c->hidden;
    double *row = malloc((size_t)h * sizeof *row);
    double *left = malloc((size_t)(c->experts + 1) * sizeof *left);
    double top = -INFINITY, all = 0, chosen = 0, weight[KT_MAX_TOPK];
    int64_t id[KT_MAX_TOPK];

    rms_norm(x, w->ffn_norm, h, c->norm_eps, row);
    if (!c->is_moe[layer]) {
        expert(c, w, 0, c->dense_size, row, 1, rounding, x);
    } else {
        linear(w->router, row, c->experts, h, KT_REF_EXACT, router);
        memcpy(left, router, (size_t)c->experts * sizeof *left);
        for (int64_t e = 0; e < c->experts; e++) top = fmax(top, left[e]);
        for (int64_t e = 0; e < c->experts; e++) all += exp(left[e] - top);
        for (int64_t j = 0; j < c->topk; j++) {
            int64_t best = 0;
            for (int64_t e = 1; e < c->experts; e++)
                if (left[e] > left[best]) best = e;
            id[j] = best;
            weight[j] = exp(left[best] - top) / all;
            chosen += weight[j];
            left[best] = -INFINITY;
        }
        for (int64_t j = 0; j < c->topk; j++)
            expert(c, w, id[j], c->expert_size, row, weight[j] / (c->normalise_topk ? chosen : 1),
                   rounding, x);
    }
    free(row);
    free(left);
}

void kt_ref_forward(const kt_ref_model *m, const int32_t *tokens, int64_t n,
                    kt_ref_rounding rounding, double *logits, double *hidden, double *router) {
    const ref_config *c = &m->config;
    int64_t h = c->hidden;
    double *x = malloc((size_t)(n * h) * sizeof *x), *row = malloc((size_t)h * sizeof *row);
    double *spare = malloc((size_t)(c->experts + 1) * sizeof *spare);

    for (int64_t t = 0; t < n; t++)
        memcpy(x + t * h, m->embedding + tokens[t] * h, (size_t)h * sizeof *x);
    for (int64_t l = 0; l < c->layers; l++) {
        if (hidden) memcpy(hidden + l * n * h, x, (size_t)(n * h) * sizeof *x);
        attention(m, &m->layers[l], x, n, rounding);
        for (int64_t t = 0; t < n; t++)
            feed_forward(m, l, x + t * h, rounding,
                         router ? router + (l * n + t) * c->experts : spare);
    }
    for (int64_t t = 0; t < n; t++) {
        rms_norm(x + t * h, m->final_norm, h, c->norm_eps, row);
        if (hidden) memcpy(hidden + (c->layers * n + t) * h, row, (size_t)h * sizeof *row);
        linear(m->head, row, c->vocab, h, rounding, logits + t * c->vocab);
    }
    free(x);
    free(row);
    free(spare);
}

/* Distance between the last chosen of c's router logits r and the first refused. */
static double router_gap(const ref_config *c, const double *r) {
    for (int64_t e = 0; e < c->experts; e++) {
        int64_t above = 0;
        double next = -INFINITY;
        for (int64_t f = 0; f < c->experts; f++) {
            int is_before = r[f] > r[e] || (r[f] == r[e] && f < e);
            above += is_before;
            if (!is_before && f != e) next = fmax(next, r[f]);
        }
        if (above == c->topk - 1) return r[e] - next;
    }
    return 0;
}

int kt_ref_is_decided(const kt_ref_model *m, const double *router, const double *other, int64_t n,
                      int64_t t) {
    const ref_config *c = &m->config;

    for (int64_t l = 0; l < c->layers; l++) {
        const double *r = router + (l * n + t) * c->experts, *o = other + (l * n + t) * c->experts;
        double moved = 0;
        if (!c->is_moe[l] || c->topk == c->experts) continue;
        for (int64_t e = 0; e < c->experts; e++) moved = fmax(moved, fabs(r[e] - o[e]));
        if (router_gap(c, r) <= 2 * moved) return 0;
    }
    return 1;
}

double kt_ref_compare(const kt_ref_model *m, const int32_t *tokens, int64_t n,
                      kt_ref_rounding rounding, const float *logits, int64_t *n_decided,
                      double *rounded) {
    const ref_config *c = &m->config;
    int64_t v = c->vocab;
    size_t routes = (size_t)(c->layers * n * c->experts) + 1;
    double *exact = malloc((size_t)(n * v) * sizeof *exact);
    double *other = malloc((size_t)(n * v) * sizeof *other);
    double *exact_router = calloc(routes, sizeof *exact_router);
    double *other_router = calloc(routes, sizeof *other_router);
    double difference = 0, difference_other = 0, norm = 0;

    kt_ref_forward(m, tokens, n, KT_REF_EXACT, exact, NULL, exact_router);
    kt_ref_forward(m, tokens, n, rounding, other, NULL, other_router);
    *n_decided = 0;
    for (int64_t t = 0; t < n; t++) {
        if (!kt_ref_is_decided(m, exact_router, other_router, n, t)) continue;
        ++*n_decided;
        for (int64_t i = t * v; i < (t + 1) * v; i++) {
            difference += (logits[i] - exact[i]) * (logits[i] - exact[i]);
            difference_other += (other[i] - exact[i]) * (other[i] - exact[i]);
            norm += exact[i] * exact[i];
        }
    }
    free(exact);
    free(other);
    free(exact_router);
    free(other_router);
    if (rounded) *rounded = sqrt(difference_other / norm);
    return sqrt(difference / norm);
}

double kt_relative_error(const float *a, const double *b, int64_t count) {
    double difference = 0, norm = 0;

    for (int64_t i = 0; i < count; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        norm += b[i] * b[i];
    }
    return sqrt(difference / norm);
}
