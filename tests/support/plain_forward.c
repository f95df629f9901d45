/* The formulas of each family, position by position. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tests/support/plain_math.h"

#define LATENT_EPS 1e-6 /* of norms inside of latent attention, of LayerNorm and of L2 norms */

/* A tensor of the current layer. */
static const double *of_layer(const plain_pass *p, const char *name) {
    return kt_plain_tensor(p->m, "model.layers.%d.%s", (int)p->layer, name);
}

static int is_one_plus(const plain_pass *p) {
    return kt_plain_is_hybrid(p->s);
}

/* The normed copy of row t. */
static double *normed(const plain_pass *p, const char *name, int64_t t) {
    double *row = numbers(p->s->hidden);

    memcpy(row, p->x + t * p->s->hidden, (size_t)p->s->hidden * sizeof *row);
    rms(row, of_layer(p, name), p->s->hidden, EPS, is_one_plus(p));
    return row;
}

/* ---- rotary embedding ---- */

static double corrected(double dim, double theta, double turns) {
    return dim * log(16 / (turns * 2 * acos(-1))) / (2 * log(theta));
}

static double angle_of(const kt_plain_shape *s, int64_t i, int64_t dim) {
    const double plain = pow(s->theta, -2.0 * (double)i / (double)dim);
    double low, high, ramp;

    if (!(s->yarn > 0)) return plain;
    low = fmax(floor(corrected((double)dim, s->theta, 4)), 0);
    high = fmin(ceil(corrected((double)dim, s->theta, 1)), (double)dim - 1);
    if (low == high) high += 0.001;
    ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return plain * (1 - ramp) + plain / s->yarn * ramp;
}

static void rotate(const kt_plain_shape *s, double *x, int64_t dim, int64_t position,
                   int interleaved) {
    for (int64_t i = 0; i < dim / 2; i++) {
        const double a = (double)position * angle_of(s, i, dim);
        double *one = x + (interleaved ? 2 * i : i), *two = interleaved ? one + 1 : one + dim / 2;
        const double u = *one, v = *two;
        *one = u * cos(a) - v * sin(a);
        *two = v * cos(a) + u * sin(a);
    }
}

/* ---- attention ---- */

/* out = softmax(scale * q.k_s) v_s over the positions s <= t that may be met (NULL = all). */
static void attend(const double *q, const double *k, int64_t k_stride, const double *v,
                   int64_t v_stride, int64_t k_dim, int64_t v_dim, double scale, int64_t t,
                   const char *may, double *out) {
    double *score = numbers(t + 1), top = -INFINITY, sum = 0;

    for (int64_t s = 0; s <= t; s++) {
        for (int64_t i = 0; i < k_dim; i++) score[s] += scale * q[i] * k[s * k_stride + i];
        if (may && !may[s]) score[s] = -INFINITY;
        top = fmax(top, score[s]);
    }
    memset(out, 0, (size_t)v_dim * sizeof *out);
    for (int64_t s = 0; s <= t; s++) sum += exp(score[s] - top);
    for (int64_t s = 0; s <= t; s++) {
        const double share = exp(score[s] - top) / sum;
        for (int64_t i = 0; i < v_dim; i++) out[i] += share * v[s * v_stride + i];
    }
    free(score);
}

static void add_bias(const plain_pass *p, const char *name, double *y, int64_t n) {
    const double *bias;

    if (p->s->family != KT_PLAIN_GLM4_MOE) return;
    bias = of_layer(p, name);
    for (int64_t i = 0; i < n; i++) y[i] += bias[i];
}

static void head_norms(const plain_pass *p, const char *name, double *x, int64_t heads) {
    const kt_plain_shape *s = p->s;

    if (s->family == KT_PLAIN_GLM4_MOE && !s->has_qk_norm) return;
    if (s->family == KT_PLAIN_MINIMAX_M2) {
        rms(x, of_layer(p, name), heads * s->head_dim, EPS, 0);
        return;
    }
    for (int64_t h = 0; h < heads; h++)
        rms(x + h * s->head_dim, of_layer(p, name), s->head_dim, EPS, is_one_plus(p));
}

static void grouped_attention(plain_pass *p) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->head_dim, q_width = s->heads * d, kv = s->kv_heads * d, h = s->hidden;
    const int is_gated = kt_plain_is_hybrid(s);
    double *k = numbers(p->n * kv), *v = numbers(p->n * kv), *wide = numbers(2 * q_width);
    double *q = numbers(q_width), *o = numbers(q_width), *y = numbers(h);

    for (int64_t t = 0; t < p->n; t++) {
        double *row = normed(p, "input_layernorm.weight", t);
        linear(p, of_layer(p, "self_attn.q_proj.weight"), row, (is_gated + 1) * q_width, h, wide);
        linear(p, of_layer(p, "self_attn.k_proj.weight"), row, kv, h, k + t * kv);
        linear(p, of_layer(p, "self_attn.v_proj.weight"), row, kv, h, v + t * kv);
        for (int64_t i = 0; i < q_width; i++)
            q[i] = wide[is_gated ? i / d * 2 * d + i % d : i]; /* a head's queries, then its gate */
        add_bias(p, "self_attn.q_proj.bias", q, q_width);
        add_bias(p, "self_attn.k_proj.bias", k + t * kv, kv);
        add_bias(p, "self_attn.v_proj.bias", v + t * kv, kv);
        head_norms(p, "self_attn.q_norm.weight", q, s->heads);
        head_norms(p, "self_attn.k_norm.weight", k + t * kv, s->kv_heads);
        for (int64_t i = 0; i < s->heads; i++) rotate(s, q + i * d, s->rotary, t, 0);
        for (int64_t i = 0; i < s->kv_heads; i++) rotate(s, k + t * kv + i * d, s->rotary, t, 0);
        disturb(p, q, q_width);
        disturb(p, k + t * kv, kv);
        disturb(p, v + t * kv, kv);
        for (int64_t i = 0; i < s->heads; i++) {
            const int64_t at = i * s->kv_heads / s->heads * d;
            attend(q + i * d, k + at, kv, v + at, kv, d, d, 1 / sqrt((double)d), t, NULL,
                   o + i * d);
        }
        for (int64_t i = 0; is_gated && i < q_width; i++)
            o[i] *= sigmoid(wide[i / d * 2 * d + d + i % d]);
        linear(p, of_layer(p, "self_attn.o_proj.weight"), o, h, q_width, y);
        for (int64_t i = 0; i < h; i++) p->x[t * h + i] += y[i];
        free(row);
    }
    free(k), free(v), free(wide), free(q), free(o), free(y);
}

/* ---- latent attention and the indexer ---- */

typedef struct indexer {
    double *keys; /* [n, index_dim] */
    char *may;    /* [n] of the current position */
} indexer;

/* Which keys position t meets: the index_topk with the largest scores, of equal ones the first. */
static void pick_keys(plain_pass *p, indexer *x, const double *cq, const double *row, int64_t t) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->index_dim;
    const int interleaved = s->family == KT_PLAIN_GLM_DSA;
    double *q = numbers(s->index_heads * d), *w = numbers(s->index_heads), mean = 0, var = 0;
    double *key = x->keys + t * d, *score = numbers(t + 1);
    const double *gain = of_layer(p, "self_attn.indexer.k_norm.weight");
    const double *bias = of_layer(p, "self_attn.indexer.k_norm.bias");

    linear(p, of_layer(p, "self_attn.indexer.wq_b.weight"), cq, s->index_heads * d, s->q_lora, q);
    linear(p, of_layer(p, "self_attn.indexer.wk.weight"), row, d, s->hidden, key);
    linear(p, of_layer(p, "self_attn.indexer.weights_proj.weight"), row, s->index_heads, s->hidden,
           w);
    for (int64_t i = 0; i < d; i++) mean += key[i] / (double)d;
    for (int64_t i = 0; i < d; i++) var += (key[i] - mean) * (key[i] - mean) / (double)d;
    for (int64_t i = 0; i < d; i++)
        key[i] = (key[i] - mean) / sqrt(var + LATENT_EPS) * gain[i] + bias[i];
    rotate(s, key, s->rope, t, interleaved);
    disturb(p, key, d);
    for (int64_t j = 0; j < s->index_heads; j++) {
        rotate(s, q + j * d, s->rope, t, interleaved);
        for (int64_t u = 0; u <= t; u++) {
            double dot = 0;
            for (int64_t i = 0; i < d; i++) dot += q[j * d + i] * x->keys[u * d + i];
            score[u] += w[j] * fmax(dot, 0);
        }
    }
    memset(x->may, 0, (size_t)p->n);
    for (int64_t i = 0; i < s->index_topk && i <= t; i++) {
        int64_t best = -1;
        for (int64_t u = 0; u <= t; u++)
            if (!x->may[u] && (best < 0 || score[u] > score[best])) best = u;
        x->may[best] = 1;
        if (t >= s->index_topk) choose(p, t, best, 1);
    }
    memcpy(p->picked + t * p->n, x->may, (size_t)p->n);
    free(q), free(w), free(score);
}

/* Expanded: keys and values of every head are made from the latent. */
static void latent_attention(plain_pass *p) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->nope + s->rope, h = s->hidden, r = s->kv_lora, both = s->nope + s->v;
    const double mscale = s->yarn > 0 ? 0.1 * log(s->yarn) + 1 : 1;
    const double scale = mscale * mscale / sqrt((double)d);
    const double *kv_b = of_layer(p, "self_attn.kv_b_proj.weight");
    double *k = numbers(p->n * s->heads * d), *v = numbers(p->n * s->heads * s->v);
    double *cq = numbers(s->q_lora + 1), *q = numbers(s->heads * d), *kv = numbers(r + s->rope);
    double *open = numbers(s->heads * both), *o = numbers(s->heads * s->v), *y = numbers(h);
    indexer x = {numbers(p->n * s->index_dim), calloc((size_t)p->n, 1)};

    for (int64_t t = 0; t < p->n; t++) {
        double *row = normed(p, "input_layernorm.weight", t);
        if (s->q_lora) {
            linear(p, of_layer(p, "self_attn.q_a_proj.weight"), row, s->q_lora, h, cq);
            rms(cq, of_layer(p, "self_attn.q_a_layernorm.weight"), s->q_lora, LATENT_EPS, 0);
            linear(p, of_layer(p, "self_attn.q_b_proj.weight"), cq, s->heads * d, s->q_lora, q);
        } else {
            linear(p, of_layer(p, "self_attn.q_proj.weight"), row, s->heads * d, h, q);
        }
        linear(p, of_layer(p, "self_attn.kv_a_proj_with_mqa.weight"), row, r + s->rope, h, kv);
        rms(kv, of_layer(p, "self_attn.kv_a_layernorm.weight"), r, LATENT_EPS, 0);
        rotate(s, kv + r, s->rope, t, 1);
        disturb(p, kv, r + s->rope);
        product(kv_b, kv, s->heads * both, r, open);
        for (int64_t i = 0; i < s->heads; i++) {
            double *key = k + (t * s->heads + i) * d;
            memcpy(key, open + i * both, (size_t)s->nope * sizeof *key);
            memcpy(key + s->nope, kv + r, (size_t)s->rope * sizeof *key);
            memcpy(v + (t * s->heads + i) * s->v, open + i * both + s->nope,
                   (size_t)s->v * sizeof *v);
            rotate(s, q + i * d + s->nope, s->rope, t, 1);
        }
        disturb(p, q, s->heads * d);
        if (kt_plain_has_indexer(s, p->layer)) pick_keys(p, &x, cq, row, t);
        for (int64_t i = 0; i < s->heads; i++)
            attend(q + i * d, k + i * d, s->heads * d, v + i * s->v, s->heads * s->v, d, s->v,
                   scale, t, s->index_topk ? p->picked + t * p->n : NULL, o + i * s->v);
        linear(p, of_layer(p, "self_attn.o_proj.weight"), o, h, s->heads * s->v, y);
        for (int64_t i = 0; i < h; i++) p->x[t * h + i] += y[i];
        free(row);
    }
    free(k), free(v), free(cq), free(q), free(kv), free(open), free(o), free(y);
    free(x.keys), free(x.may);
}

/* ---- gated DeltaNet ---- */

/* q, k and v of one position behind each other, from the grouped projection. */
static void ungroup(const kt_plain_shape *s, const double *u, double *qkv, double *z) {
    const int64_t dk = s->key_dim, ratio = s->value_heads / s->key_heads, dv = ratio * s->value_dim;
    const int64_t k = s->key_heads * dk;

    for (int64_t g = 0; g < s->key_heads; g++) {
        const double *from = u + g * (2 * dk + 2 * dv);
        memcpy(qkv + g * dk, from, (size_t)dk * sizeof *u);
        memcpy(qkv + k + g * dk, from + dk, (size_t)dk * sizeof *u);
        memcpy(qkv + 2 * k + g * dv, from + 2 * dk, (size_t)dv * sizeof *u);
        memcpy(z + g * dv, from + 2 * dk + dv, (size_t)dv * sizeof *u);
    }
}

static void unit(double *x, int64_t n) {
    double sum = LATENT_EPS;

    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) x[i] /= sqrt(sum);
}

/* One value head, one position: state [key_dim, value_dim]. */
static void recur(const kt_plain_shape *s, double *state, const double *q, const double *k,
                  const double *v, double decay, double beta, double *o) {
    for (int64_t i = 0; i < s->key_dim * s->value_dim; i++) state[i] *= decay;
    for (int64_t j = 0; j < s->value_dim; j++) {
        double m = 0, delta;
        for (int64_t i = 0; i < s->key_dim; i++) m += state[i * s->value_dim + j] * k[i];
        delta = beta * (v[j] - m);
        o[j] = 0;
        for (int64_t i = 0; i < s->key_dim; i++) {
            state[i * s->value_dim + j] += k[i] * delta;
            o[j] += state[i * s->value_dim + j] * q[i] / sqrt((double)s->key_dim);
        }
    }
}

static void convolve(const double *w, const double *raw, int64_t channels, int64_t t, double *out) {
    for (int64_t c = 0; c < channels; c++) {
        out[c] = 0;
        for (int64_t j = 0; j < 4; j++)
            if (t - 3 + j >= 0) out[c] += w[c * 4 + j] * raw[(t - 3 + j) * channels + c];
        out[c] = silu(out[c]);
    }
}

/* Inputs of one position: q, k and v, the gate, and a and b of each value head. Qwen3-Next has them
 * grouped by key head in two matrices, Qwen3.5 sorted in four. */
static void project(plain_pass *p, const double *row, double *qkv, double *z, double *b,
                    double *a) {
    const kt_plain_shape *s = p->s;
    const int64_t h = s->hidden, k = s->key_heads * s->key_dim, v = s->value_heads * s->value_dim;
    const int64_t n = s->value_heads, ratio = n / s->key_heads;
    double *u = numbers(2 * k + 2 * v), *ba = numbers(2 * n);

    if (s->family == KT_PLAIN_QWEN3_5) {
        linear(p, of_layer(p, "linear_attn.in_proj_qkv.weight"), row, 2 * k + v, h, qkv);
        linear(p, of_layer(p, "linear_attn.in_proj_z.weight"), row, v, h, z);
        linear(p, of_layer(p, "linear_attn.in_proj_b.weight"), row, n, h, b);
        linear(p, of_layer(p, "linear_attn.in_proj_a.weight"), row, n, h, a);
    } else {
        linear(p, of_layer(p, "linear_attn.in_proj_qkvz.weight"), row, 2 * k + 2 * v, h, u);
        linear(p, of_layer(p, "linear_attn.in_proj_ba.weight"), row, 2 * n, h, ba);
        ungroup(s, u, qkv, z);
        for (int64_t i = 0; i < n; i++) {
            b[i] = ba[i / ratio * 2 * ratio + i % ratio];
            a[i] = ba[i / ratio * 2 * ratio + ratio + i % ratio];
        }
    }
    free(u), free(ba);
}

static void delta_net(plain_pass *p) {
    const kt_plain_shape *s = p->s;
    const int64_t h = s->hidden, dk = s->key_dim, dv = s->value_dim, k = s->key_heads * dk;
    const int64_t v = s->value_heads * dv, ratio = s->value_heads / s->key_heads;
    const double *a_log = of_layer(p, "linear_attn.A_log");
    const double *dt = of_layer(p, "linear_attn.dt_bias");
    double *a = numbers(s->value_heads), *b = numbers(s->value_heads), *z = numbers(v);
    double *raw = numbers(p->n * (2 * k + v)), *c = numbers(2 * k + v), *o = numbers(v);
    double *state = numbers(s->value_heads * dk * dv), *y = numbers(h);

    for (int64_t t = 0; t < p->n; t++) {
        double *row = normed(p, "input_layernorm.weight", t);
        project(p, row, raw + t * (2 * k + v), z, b, a);
        convolve(of_layer(p, "linear_attn.conv1d.weight"), raw, 2 * k + v, t, c);
        for (int64_t i = 0; i < 2 * s->key_heads; i++) unit(c + i * dk, dk);
        for (int64_t i = 0; i < s->value_heads; i++) {
            const int64_t g = i / ratio;
            recur(s, state + i * dk * dv, c + g * dk, c + k + g * dk, c + 2 * k + i * dv,
                  exp(-exp(a_log[i]) * log1p(exp(a[i] + dt[i]))), sigmoid(b[i]), o + i * dv);
            rms(o + i * dv, of_layer(p, "linear_attn.norm.weight"), dv, EPS, 0);
        }
        for (int64_t i = 0; i < v; i++) o[i] *= silu(z[i]);
        linear(p, of_layer(p, "linear_attn.out_proj.weight"), o, h, v, y);
        for (int64_t i = 0; i < h; i++) p->x[t * h + i] += y[i];
        free(row);
    }
    free(a), free(b), free(z), free(raw), free(c), free(o), free(state), free(y);
}

/* ---- feed-forward ---- */

static void swiglu(plain_pass *p, const char *of, const char *const part[3], int64_t size,
                   const double *row, double weight, double *x) {
    const int64_t h = p->s->hidden;
    const double *w[3];
    double *g = numbers(size), *u = numbers(size), *y = numbers(h);

    for (int i = 0; i < 3; i++)
        w[i] = kt_plain_tensor(p->m, "model.layers.%d.%s.%s.weight", (int)p->layer, of, part[i]);
    linear(p, w[0], row, size, h, g);
    linear(p, w[1], row, size, h, u);
    for (int64_t i = 0; i < size; i++) g[i] = silu(g[i]) * u[i];
    linear(p, w[2], g, h, size, y);
    for (int64_t i = 0; i < h; i++) x[i] += weight * y[i];
    free(g), free(u), free(y);
}

/* Groups whose two best experts sum highest stay; the others' scores become -inf. */
static void keep_groups(const kt_plain_shape *s, double *score) {
    const int64_t size = s->experts / (s->groups ? s->groups : 1);
    double *sum = numbers(s->groups);

    if (s->groups <= 1) return free(sum);
    for (int64_t g = 0; g < s->groups; g++) {
        double first = -INFINITY, second = -INFINITY;
        for (int64_t e = g * size; e < (g + 1) * size; e++) {
            second = fmax(second, fmin(first, score[e]));
            first = fmax(first, score[e]);
        }
        sum[g] = first + second;
    }
    for (int64_t g = 0; g < s->groups; g++) {
        int64_t above = 0;
        for (int64_t o = 0; o < s->groups; o++)
            above += sum[o] > sum[g] || (sum[o] == sum[g] && o < g);
        for (int64_t e = g * size; above >= s->top_groups && e < (g + 1) * size; e++)
            score[e] = -INFINITY;
    }
    free(sum);
}

/* weight[topk] and id[topk] of the chosen experts. */
static void route(plain_pass *p, const double *row, int64_t t, double *weight, int64_t *id) {
    const kt_plain_shape *s = p->s;
    const int is_softmax = kt_plain_is_softmax(s);
    const char *block = s->family == KT_PLAIN_MINIMAX_M2 ? "block_sparse_moe" : "mlp";
    const char *bias_of = s->family == KT_PLAIN_MINIMAX_M2 ? block : "mlp.gate";
    const double *w = kt_plain_tensor(p->m, "model.layers.%d.%s.gate.weight", (int)p->layer, block);
    double *plain = numbers(s->experts), *score = numbers(s->experts), sum = 0, top = -INFINITY;

    product(w, row, s->experts, s->hidden, plain);
    for (int64_t e = 0; e < s->experts; e++) top = fmax(top, plain[e]);
    for (int64_t e = 0; e < s->experts; e++) {
        plain[e] = is_softmax ? exp(plain[e] - top) : sigmoid(plain[e]);
        score[e] = plain[e];
        if (!is_softmax)
            score[e] += kt_plain_tensor(p->m, "model.layers.%d.%s.e_score_correction_bias",
                                        (int)p->layer, bias_of)[e];
    }
    keep_groups(s, score);
    for (int64_t j = 0; j < s->topk; j++) {
        int64_t best = 0;
        for (int64_t e = 1; e < s->experts; e++)
            if (score[e] > score[best]) best = e;
        id[j] = best;
        weight[j] = plain[best];
        sum += plain[best];
        score[best] = -INFINITY;
        choose(p, t, best, 0);
    }
    for (int64_t j = 0; j < s->topk; j++) weight[j] *= (s->scaling > 0 ? s->scaling : 1) / sum;
    free(plain), free(score);
}

static void feed_forward(plain_pass *p) {
    static const char *const usual[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const minimax[] = {"w1", "w3", "w2"};
    const kt_plain_shape *s = p->s;
    const int is_minimax = s->family == KT_PLAIN_MINIMAX_M2, is_qwen = is_one_plus(p);
    double *weight = numbers(s->topk);
    int64_t *id = calloc((size_t)s->topk, sizeof *id);

    for (int64_t t = 0; t < p->n; t++) {
        double *row = normed(p, "post_attention_layernorm.weight", t), *x = p->x + t * s->hidden;
        double gate = 1;
        char name[64];
        if (p->layer < s->dense_layers) {
            swiglu(p, "mlp", usual, s->dense_size, row, 1, x);
        } else {
            route(p, row, t, weight, id);
            for (int64_t j = 0; j < s->topk; j++) {
                snprintf(name, sizeof name, "%s.experts.%d",
                         is_minimax ? "block_sparse_moe" : "mlp", (int)id[j]);
                swiglu(p, name, is_minimax ? minimax : usual, s->expert_size, row, weight[j], x);
            }
            if (s->shared_size && is_qwen) {
                product(of_layer(p, "mlp.shared_expert_gate.weight"), row, 1, s->hidden, &gate);
                gate = sigmoid(gate);
            }
            if (s->shared_size)
                swiglu(p, is_qwen ? "mlp.shared_expert" : "mlp.shared_experts", usual,
                       s->shared_size, row, gate, x);
        }
        free(row);
    }
    free(weight), free(id);
}

static void run_layer(plain_pass *p, bool is_delta) {
    if (is_delta)
        delta_net(p);
    else if (p->s->kv_lora)
        latent_attention(p);
    else
        grouped_attention(p);
    feed_forward(p);
}

/* The normed residual behind the last layer in p->x, of all positions. */
static void run_model(plain_pass *p, const int32_t *tokens, uint64_t seed) {
    const kt_plain_shape *s = p->s;
    const double *embedding = kt_plain_tensor(p->m, "model.embed_tokens.weight");

    kt_rng_seed(&p->rng, seed);
    memset(p->choices, 0, (size_t)p->n * sizeof *p->choices);
    p->x = numbers(p->n * s->hidden);
    p->picked = calloc((size_t)(p->n * p->n), 1);
    for (int64_t t = 0; t < p->n; t++)
        memcpy(p->x + t * s->hidden, embedding + tokens[t] * s->hidden,
               (size_t)s->hidden * sizeof *p->x);
    for (p->layer = 0; p->layer < s->layers; p->layer++)
        run_layer(p, kt_plain_is_delta(s, p->layer));
    for (int64_t t = 0; t < p->n; t++)
        rms(p->x + t * s->hidden, kt_plain_tensor(p->m, "model.norm.weight"), s->hidden, EPS,
            is_one_plus(p));
}

static const double *head_of(const kt_plain_model *m) {
    return kt_plain_tensor(m, m->shape.is_tied ? "model.embed_tokens.weight" : "lm_head.weight");
}

void kt_plain_forward(const kt_plain_model *m, const int32_t *tokens, int64_t n,
                      kt_plain_noise noise, uint64_t seed, double *logits, uint64_t *choices) {
    const kt_plain_shape *s = &m->shape;
    plain_pass p = {.m = m, .s = s, .n = n, .noise = noise, .choices = choices};

    if (s->family == KT_PLAIN_DEEPSEEK_V4) {
        kt_rng_seed(&p.rng, seed);
        memset(choices, 0, (size_t)n * sizeof *choices);
        kt_plain_v4_forward(&p, tokens, logits);
        return;
    }
    run_model(&p, tokens, seed);
    for (int64_t t = 0; t < n; t++)
        linear(&p, head_of(m), p.x + t * s->hidden, s->vocab, s->hidden, logits + t * s->vocab);
    free(p.x), free(p.picked);
}

/* What the draft head's layer begins with at a position: a hidden state and the token behind it. */
static void join(plain_pass *p, const double *hidden, int32_t token, double *out) {
    const int64_t h = p->s->hidden;
    double *both = numbers(2 * h);

    memcpy(both, kt_plain_tensor(p->m, "model.embed_tokens.weight") + token * h,
           (size_t)h * sizeof *both);
    memcpy(both + h, hidden, (size_t)h * sizeof *both);
    rms(both, of_layer(p, "enorm.weight"), h, EPS, is_one_plus(p));
    rms(both + h, of_layer(p, "hnorm.weight"), h, EPS, is_one_plus(p));
    linear(p, of_layer(p, "eh_proj.weight"), both, h, 2 * h, out);
    free(both);
}

/* The layer's inputs of positions 0 to n - 2, in p->x, which has room for one more; p->layer is
 * it. */
static void begin_draft(plain_pass *p, const int32_t *tokens, uint64_t seed) {
    run_model(p, tokens, seed);
    p->n--;
    for (int64_t t = 0; t < p->n; t++)
        join(p, p->x + t * p->s->hidden, tokens[t + 1], p->x + t * p->s->hidden);
}

static void end_draft(plain_pass *p, int64_t t, double *logits) {
    double *x = p->x + t * p->s->hidden;

    rms(x, of_layer(p, "shared_head.norm.weight"), p->s->hidden, EPS, is_one_plus(p));
    linear(p, head_of(p->m), x, p->s->vocab, p->s->hidden, logits);
}

void kt_plain_draft(const kt_plain_model *m, const int32_t *tokens, int64_t n, kt_plain_noise noise,
                    uint64_t seed, double *logits, uint64_t *choices) {
    plain_pass p = {.m = m, .s = &m->shape, .n = n, .noise = noise, .choices = choices};

    begin_draft(&p, tokens, seed);
    run_layer(&p, false);
    for (int64_t t = 0; t < p.n; t++) end_draft(&p, t, logits + t * m->shape.vocab);
    free(p.x), free(p.picked);
}

void kt_plain_draft_next(const kt_plain_model *m, const int32_t *tokens, int64_t n, int32_t drafted,
                         kt_plain_noise noise, uint64_t seed, double *logits, uint64_t *choices) {
    const int64_t h = m->shape.hidden;
    plain_pass p = {.m = m, .s = &m->shape, .n = n, .noise = noise, .choices = choices};
    double *in = numbers(n * h), *last = numbers(h);

    begin_draft(&p, tokens, seed);
    memcpy(in, p.x, (size_t)(p.n * h) * sizeof *in);
    run_layer(&p, false);
    memcpy(last, p.x + (p.n - 1) * h, (size_t)h * sizeof *last);
    join(&p, last, drafted, in + p.n * h);
    memcpy(p.x, in, (size_t)(n * h) * sizeof *in);
    p.n = n; /* keys and values of the first positions are made once more, the same */
    run_layer(&p, false);
    end_draft(&p, n - 1, logits);
    free(p.x), free(p.picked), free(in), free(last);
}
