/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/qwen3_ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/numeric.h"
#include "runtime/loader/matrix_source.h"
#include "runtime/model/model_plan.h"
#include "runtime/model/tensor_map.h"

typedef struct ref_layer {
    double *attn_norm, *ffn_norm, *q_norm, *k_norm, *qkv, *o, *router;
    double *qkv_bias, *o_bias;
    double *gate, *up, *down; /* [experts][..] */
} ref_layer;

struct kt_ref_model {
    kt_model_dir dir;
    kt_arena arena;
    double *embedding, *final_norm, *head;
    ref_layer *layers;
};

/* ---- loading ---- */

static double *allocate(kt_ref_model *m, int64_t count) {
    return kt_arena_alloc(&m->arena, (size_t)count * sizeof(double), 64);
}

static double *read_all(kt_ref_model *m, const kt_tensor *t) {
    int64_t count = (int64_t)(t->bytes / kt_dtype_bytes(t->dtype));
    double *out = allocate(m, count);
    float *f = malloc((size_t)count * sizeof *f + 1);

    kt_tensor_read_f32(t, 0, count, f);
    for (int64_t i = 0; i < count; i++) out[i] = f[i];
    free(f);
    return out;
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

static double *decode(kt_ref_model *m, const kt_matrix_source *s, kt_weight_format id) {
    double *out = allocate(m, s->rows * s->k);
    decode_into(s, id, out);
    return out;
}

/* Zeros when the model has none. */
static kt_status load_biases(kt_ref_model *m, kt_tensor_map *map, int64_t l, kt_err *err) {
    const kt_model_config *c = &m->dir.config;
    ref_layer *w = &m->layers[l];
    const kt_role roles[] = {KT_ROLE_Q_BIAS, KT_ROLE_K_BIAS, KT_ROLE_V_BIAS};
    int64_t used = 0;
    const kt_tensor *t;

    w->qkv_bias = allocate(m, (c->heads + 2 * c->kv_heads) * c->head_dim);
    w->o_bias = allocate(m, c->hidden);
    if (!c->attention_bias) return KT_OK;
    for (int i = 0; i < 3; i++) {
        kt_status st = kt_tensor_map_need(map, roles[i], l, 0, &t, err);
        if (st != KT_OK) return st;
        memcpy(w->qkv_bias + used, read_all(m, t), (size_t)t->shape[0] * sizeof(double));
        used += t->shape[0];
    }
    if (kt_tensor_map_need(map, KT_ROLE_O_BIAS, l, 0, &t, err) != KT_OK) return err->status;
    w->o_bias = read_all(m, t);
    return KT_OK;
}

static kt_status load_layer(kt_ref_model *m, kt_tensor_map *map, int64_t l, kt_quant weights,
                            kt_err *err) {
    const kt_model_config *c = &m->dir.config;
    ref_layer *w = &m->layers[l];
    int64_t experts = c->is_moe[l] ? c->experts : 1;
    int64_t size = (c->is_moe[l] ? c->expert_size : c->dense_size) * c->hidden;
    kt_part part = c->is_moe[l] ? KT_PART_EXPERT : KT_PART_DENSE;
    kt_matrix_source s[3];
    const kt_tensor *t;
    kt_status st = kt_tensor_map_need(map, KT_ROLE_ATTN_NORM, l, 0, &t, err);

    if (st == KT_OK) w->attn_norm = read_all(m, t);
    if (st == KT_OK) st = kt_tensor_map_need(map, KT_ROLE_FFN_NORM, l, 0, &t, err);
    if (st == KT_OK) w->ffn_norm = read_all(m, t);
    if (st == KT_OK) st = kt_tensor_map_need(map, KT_ROLE_Q_NORM, l, 0, &t, err);
    if (st == KT_OK) w->q_norm = read_all(m, t);
    if (st == KT_OK) st = kt_tensor_map_need(map, KT_ROLE_K_NORM, l, 0, &t, err);
    if (st == KT_OK) w->k_norm = read_all(m, t);
    if (st == KT_OK && c->is_moe[l]) st = kt_tensor_map_need(map, KT_ROLE_ROUTER, l, 0, &t, err);
    if (st == KT_OK && c->is_moe[l]) w->router = read_all(m, t);
    if (st == KT_OK) st = kt_tensor_map_qkv(map, l, s, err);
    if (st == KT_OK) w->qkv = decode(m, s, kt_part_format(KT_PART_QKV, &m->dir.config, weights));
    if (st == KT_OK) st = kt_tensor_map_linear(map, KT_ROLE_O, l, s, err);
    if (st == KT_OK) w->o = decode(m, s, kt_part_format(KT_PART_O, &m->dir.config, weights));
    if (st == KT_OK) st = load_biases(m, map, l, err);
    w->gate = allocate(m, experts * size);
    w->up = allocate(m, experts * size);
    w->down = allocate(m, experts * size);
    for (int64_t e = 0; e < experts && st == KT_OK; e++) {
        st = kt_tensor_map_expert(map, l, e, s, err);
        if (st != KT_OK) break;
        decode_into(&s[0], kt_part_format(part, &m->dir.config, weights), w->gate + e * size);
        decode_into(&s[1], kt_part_format(part, &m->dir.config, weights), w->up + e * size);
        decode_into(&s[2], kt_part_format(part, &m->dir.config, weights), w->down + e * size);
    }
    return st;
}

static kt_status load_all(kt_ref_model *m, kt_tensor_map *map, kt_quant weights, kt_err *err) {
    const kt_model_config *c = &m->dir.config;
    kt_matrix_source s;
    const kt_tensor *t;
    char name[160];
    kt_role head = KT_ROLE_LM_HEAD;
    kt_status st = kt_tensor_map_need(map, KT_ROLE_EMBED, 0, 0, &t, err);

    if (st != KT_OK) return st;
    m->embedding = read_all(m, t);
    st = kt_tensor_map_need(map, KT_ROLE_FINAL_NORM, 0, 0, &t, err);
    if (st != KT_OK) return st;
    m->final_norm = read_all(m, t);
    kt_family_tensor_name(m->dir.family, KT_ROLE_LM_HEAD, 0, 0, name, sizeof name);
    if (c->tied || !kt_checkpoint_find(map->checkpoint, name)) head = KT_ROLE_EMBED;
    st = kt_tensor_map_linear(map, head, 0, &s, err);
    if (st != KT_OK) return st;
    m->head = decode(m, &s, kt_part_format(KT_PART_HEAD, &m->dir.config, weights));
    m->layers = kt_arena_alloc(&m->arena, (size_t)c->layers * sizeof *m->layers, 64);
    for (int64_t l = 0; l < c->layers && st == KT_OK; l++) st = load_layer(m, map, l, weights, err);
    return st;
}

kt_ref_model *kt_ref_load(const char *folder, kt_quant weights, kt_err *err) {
    kt_ref_model *m = calloc(1, sizeof *m);
    kt_checkpoint *checkpoint = NULL;
    kt_tensor_map map = {0};
    kt_status st = kt_model_dir_read(folder, &m->dir, err);

    if (st == KT_OK) st = kt_checkpoint_open(m->dir.folder, &checkpoint, err);
    if (st == KT_OK)
        st = kt_tensor_map_init(&map, checkpoint, m->dir.family, &m->dir.config, false, err);
    if (st == KT_OK) st = load_all(m, &map, weights, err);
    kt_tensor_map_deinit(&map);
    kt_checkpoint_close(checkpoint);
    if (st == KT_OK) return m;
    kt_ref_free(m);
    return NULL;
}

void kt_ref_free(kt_ref_model *m) {
    if (!m) return;
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

static void attend(const kt_model_config *c, const double *qkv, int64_t t, double *out) {
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
    const kt_model_config *c = &m->dir.config;
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
        for (int64_t i = q; i < ld && rounding != KT_REF_EXACT; i++) y[i] = to_bf16(y[i]);
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

static void expert(const kt_model_config *c, const ref_layer *w, int64_t e, int64_t size,
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
    const kt_model_config *c = &m->dir.config;
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
    const kt_model_config *c = &m->dir.config;
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
static double router_gap(const kt_model_config *c, const double *r) {
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
    const kt_model_config *c = &m->dir.config;

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
    const kt_model_config *c = &m->dir.config;
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
