/* DeepSeek-V4 written out in double, position by position, from its published formulas: streams
 * that are mixed before and behind each half of a layer, attention of one shared key over a window
 * and over pooled entries, experts by token or by router. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tests/support/plain_math.h"

#define HC 4        /* streams */
#define HC_EPS 1e-6 /* hc_eps */
#define SINKHORN 3  /* hc_sinkhorn_iters */
#define STRETCHED 160000.0
#define YARN 16.0 /* factor; original length 16, betas 4 and 1 */

/* ---- what is drawn ---- */

static void matrix(plain_drawing *d, const char *name, int64_t rows, int64_t k, double gain) {
    kt_plain_draw(d, name, rows, k, 0, gain / sqrt((double)k), KT_DTYPE_BF16);
}

static void norm(plain_drawing *d, const char *name, int64_t k) {
    kt_plain_draw(d, name, 0, k, 1, 0.2, KT_DTYPE_BF16);
}

static void mixing(plain_drawing *d, const char *of, int64_t rows, int64_t scales) {
    const int64_t wide = HC * d->model->shape.hidden;
    char name[64];

    snprintf(name, sizeof name, "%s_fn", of);
    kt_plain_draw(d, name, rows, wide, 0, 1 / sqrt((double)wide), KT_DTYPE_F32);
    snprintf(name, sizeof name, "%s_base", of);
    kt_plain_draw(d, name, 0, rows, 0, 0.5, KT_DTYPE_F32);
    snprintf(name, sizeof name, "%s_scale", of);
    kt_plain_draw(d, name, 0, scales, 1, 0.2, KT_DTYPE_F32);
}

static void compressor(plain_drawing *d, const char *of, int64_t ratio, int64_t dim) {
    const int64_t wide = ratio == 4 ? 2 * dim : dim;
    char name[64];

    snprintf(name, sizeof name, "%s.wkv.weight", of);
    matrix(d, name, wide, d->model->shape.hidden, 1);
    snprintf(name, sizeof name, "%s.wgate.weight", of);
    matrix(d, name, wide, d->model->shape.hidden, 1);
    snprintf(name, sizeof name, "%s.ape", of);
    kt_plain_draw(d, name, ratio, wide, 0, 0.5, KT_DTYPE_F32);
    snprintf(name, sizeof name, "%s.norm.weight", of);
    norm(d, name, dim);
}

static void attention(plain_drawing *d, int64_t ratio) {
    const kt_plain_shape *s = &d->model->shape;
    const int64_t group = s->heads / s->o_groups * s->head_dim;

    matrix(d, "attn.wq_a.weight", s->q_lora, s->hidden, 1);
    norm(d, "attn.q_norm.weight", s->q_lora);
    matrix(d, "attn.wq_b.weight", s->heads * s->head_dim, s->q_lora, 1);
    matrix(d, "attn.wkv.weight", s->head_dim, s->hidden, 1);
    norm(d, "attn.kv_norm.weight", s->head_dim);
    kt_plain_draw(d, "attn.attn_sink", 0, s->heads, 0, 1, KT_DTYPE_F32);
    matrix(d, "attn.wo_a.weight", s->o_groups * s->o_lora, group, 1);
    matrix(d, "attn.wo_b.weight", s->hidden, s->o_groups * s->o_lora, 1);
    if (ratio) compressor(d, "attn.compressor", ratio, s->head_dim);
    if (ratio != 4) return;
    compressor(d, "attn.indexer.compressor", ratio, s->index_dim);
    matrix(d, "attn.indexer.wq_b.weight", s->index_heads * s->index_dim, s->q_lora, 1);
    matrix(d, "attn.indexer.weights_proj.weight", s->index_heads, s->hidden, 1);
}

static void three(plain_drawing *d, const char *of, int64_t size) {
    char name[96];

    for (int i = 1; i <= 3; i++) {
        snprintf(name, sizeof name, "ffn.%s.w%d.weight", of, i);
        matrix(d, name, i == 2 ? d->model->shape.hidden : size,
               i == 2 ? size : d->model->shape.hidden, 1.5);
    }
}

/* The table's rows name topk different experts. */
static void token_table(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;
    double *id;

    kt_plain_draw(d, "ffn.gate.tid2eid", s->vocab, s->topk, 0, (double)s->experts, KT_DTYPE_I64);
    id = d->model->tensor[d->model->count - 1].value;
    for (int64_t v = 0; v < s->vocab; v++)
        for (int64_t j = 1; j < s->topk; j++)
            id[v * s->topk + j] = fmod(id[v * s->topk] + (double)j, (double)s->experts);
}

void kt_plain_v4_draw(plain_drawing *d) {
    const kt_plain_shape *s = &d->model->shape;
    char name[64];

    matrix(d, "embed.weight", s->vocab, s->hidden, sqrt((double)s->hidden));
    for (int64_t l = 0; l < s->layers; l++) {
        snprintf(d->prefix, sizeof d->prefix, "layers.%d.", (int)l);
        norm(d, "attn_norm.weight", s->hidden);
        norm(d, "ffn_norm.weight", s->hidden);
        mixing(d, "hc_attn", HC * (HC + 2), 3);
        mixing(d, "hc_ffn", HC * (HC + 2), 3);
        attention(d, s->ratio[l]);
        matrix(d, "ffn.gate.weight", s->experts, s->hidden, 4); /* clear decisions */
        if (l < s->hash_layers)
            token_table(d);
        else
            kt_plain_draw(d, "ffn.gate.bias", 0, s->experts, 0, 0.1, KT_DTYPE_F32);
        for (int64_t e = 0; e < s->experts; e++) {
            snprintf(name, sizeof name, "experts.%d", (int)e);
            three(d, name, s->expert_size);
        }
        three(d, "shared_experts", s->expert_size);
    }
    d->prefix[0] = '\0';
    mixing(d, "hc_head", HC, 1);
    norm(d, "norm.weight", s->hidden);
    matrix(d, "head.weight", s->vocab, s->hidden, 3);
}

size_t kt_plain_v4_config(const kt_plain_shape *s, char *out, size_t room) {
    return (size_t)snprintf(
        out, room,
        "{\"model_type\":\"deepseek_v4\",\"num_hidden_layers\":%d,\"hidden_size\":%d,"
        "\"vocab_size\":%d,\"num_attention_heads\":%d,\"num_key_value_heads\":1,\"head_dim\":%d,"
        "\"qk_rope_head_dim\":%d,\"q_lora_rank\":%d,\"o_groups\":%d,\"o_lora_rank\":%d,"
        "\"n_routed_experts\":%d,\"num_experts_per_tok\":%d,\"n_shared_experts\":1,"
        "\"moe_intermediate_size\":%d,\"scoring_func\":\"sqrtsoftplus\",\"norm_topk_prob\":true,"
        "\"topk_method\":\"noaux_tc\",\"routed_scaling_factor\":%g,\"num_hash_layers\":%d,"
        "\"swiglu_limit\":%g,\"sliding_window\":%d,\"compress_ratios\":[%d,%d,%d,%d],"
        "\"index_n_heads\":%d,\"index_head_dim\":%d,\"index_topk\":%d,\"rope_theta\":%g,"
        "\"compress_rope_theta\":%g,\"rope_scaling\":{\"type\":\"yarn\",\"factor\":%g,"
        "\"original_max_position_embeddings\":16,\"beta_fast\":4,\"beta_slow\":1},\"hc_mult\":%d,"
        "\"hc_sinkhorn_iters\":%d,\"hc_eps\":%g,\"rms_norm_eps\":%g,"
        "\"max_position_embeddings\":256,\"tie_word_embeddings\":false,\"hidden_act\":\"silu\","
        "\"eos_token_id\":0}",
        (int)s->layers, (int)s->hidden, (int)s->vocab, (int)s->heads, (int)s->head_dim,
        (int)s->rope, (int)s->q_lora, (int)s->o_groups, (int)s->o_lora, (int)s->experts,
        (int)s->topk, (int)s->expert_size, s->scaling, (int)s->hash_layers, s->limit,
        (int)s->window, (int)s->ratio[0], (int)s->ratio[1], (int)s->ratio[2], (int)s->ratio[3],
        (int)s->index_heads, (int)s->index_dim, (int)s->index_topk, s->theta, STRETCHED, YARN, HC,
        SINKHORN, HC_EPS, EPS);
}

/* ---- streams ---- */

static const double *of_layer(const plain_pass *p, const char *name) {
    return kt_plain_tensor(p->m, "layers.%d.%s", (int)p->layer, name);
}

static void plain_rms(double *x, int64_t n) {
    double sum = 0;

    for (int64_t i = 0; i < n; i++) sum += x[i] * x[i];
    for (int64_t i = 0; i < n; i++) x[i] /= sqrt(sum / (double)n + EPS);
}

/* One position's gates of one half of a layer. */
typedef struct stream_gates {
    double pre[HC], post[HC], comb[HC][HC];
} stream_gates;

static void balance(double c[HC][HC]) {
    for (int k = 0; k < HC; k++) {
        double top = c[k][0], sum = 0;
        for (int j = 0; j < HC; j++) top = fmax(top, c[k][j]);
        for (int j = 0; j < HC; j++) sum += exp(c[k][j] - top);
        for (int j = 0; j < HC; j++) c[k][j] = exp(c[k][j] - top) / sum + HC_EPS;
    }
    for (int round = 0; round < 2 * SINKHORN - 1; round++) /* columns first and last */
        for (int a = 0; a < HC; a++) {
            double sum = HC_EPS;
            for (int i = 0; i < HC; i++) sum += round % 2 ? c[a][i] : c[i][a];
            for (int i = 0; i < HC; i++) *(round % 2 ? &c[a][i] : &c[i][a]) /= sum;
        }
}

static stream_gates gates_of(const plain_pass *p, const char *of, const double *x) {
    const int64_t h = p->s->hidden;
    double *f = numbers(HC * h), m[HC * (HC + 2)];
    const double *base, *scale;
    char name[32];
    stream_gates g;

    memcpy(f, x, (size_t)(HC * h) * sizeof *f);
    plain_rms(f, HC * h);
    snprintf(name, sizeof name, "%s_fn", of);
    product(of_layer(p, name), f, HC * (HC + 2), HC * h, m);
    snprintf(name, sizeof name, "%s_base", of);
    base = of_layer(p, name);
    snprintf(name, sizeof name, "%s_scale", of);
    scale = of_layer(p, name);
    for (int i = 0; i < HC; i++) {
        g.pre[i] = sigmoid(m[i] * scale[0] + base[i]) + HC_EPS;
        g.post[i] = 2 * sigmoid(m[HC + i] * scale[1] + base[HC + i]);
        for (int j = 0; j < HC; j++)
            g.comb[i][j] = m[2 * HC + i * HC + j] * scale[2] + base[2 * HC + i * HC + j];
    }
    balance(g.comb);
    free(f);
    return g;
}

static void mix_in(const plain_pass *p, const stream_gates *g, const double *x, const char *name,
                   double *z) {
    for (int64_t i = 0; i < p->s->hidden; i++) {
        z[i] = 0;
        for (int k = 0; k < HC; k++) z[i] += g->pre[k] * x[k * p->s->hidden + i];
    }
    rms(z, of_layer(p, name), p->s->hidden, EPS, 0);
}

static void mix_out(const plain_pass *p, const stream_gates *g, const double *y, double *x) {
    const int64_t h = p->s->hidden;

    for (int64_t i = 0; i < h; i++) {
        double old[HC];
        for (int k = 0; k < HC; k++) old[k] = x[k * h + i];
        for (int k = 0; k < HC; k++) {
            x[k * h + i] = g->post[k] * y[i];
            for (int j = 0; j < HC; j++) x[k * h + i] += g->comb[j][k] * old[j];
        }
    }
}

/* ---- rotation of the last channels ---- */

static double stretched_angle(int64_t i, int64_t dim) {
    const double plain = pow(STRETCHED, -2.0 * (double)i / (double)dim), pi = acos(-1);
    const double fast = (double)dim * log(16 / (4 * 2 * pi)) / (2 * log(STRETCHED));
    const double slow = (double)dim * log(16 / (1 * 2 * pi)) / (2 * log(STRETCHED));
    const double low = fmax(floor(fast), 0);
    double high = fmin(ceil(slow), (double)dim - 1), ramp;

    if (low == high) high += 0.001;
    ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return plain * (1 - ramp) + plain / YARN * ramp;
}

/* way: 1, or -1 to rotate back. */
static void turn(const plain_pass *p, double *x, int64_t dim, int64_t position, int way) {
    const int64_t r = p->s->rope;

    for (int64_t i = 0; i < r / 2; i++) {
        const double angle = p->s->ratio[p->layer] ? stretched_angle(i, r)
                                                   : pow(p->s->theta, -2.0 * (double)i / (double)r);
        const double a = way * (double)position * angle;
        double *one = x + dim - r + 2 * i, u = one[0], v = one[1];
        one[0] = u * cos(a) - v * sin(a);
        one[1] = v * cos(a) + u * sin(a);
    }
}

/* ---- entries ---- */

/* Entries of all whole windows [n / ratio, dim] of inputs [n, hidden]; freed by the caller. */
static double *entries(plain_pass *p, const char *of, const double *rows, int64_t dim) {
    const int64_t ratio = p->s->ratio[p->layer], halves = ratio == 4 ? 2 : 1, wide = halves * dim;
    double *c = numbers(p->n * wide), *g = numbers(p->n * wide), *out;
    const double *w[4];
    static const char *const part[] = {"wkv.weight", "wgate.weight", "ape", "norm.weight"};

    for (int i = 0; i < 4; i++)
        w[i] = kt_plain_tensor(p->m, "layers.%d.%s.%s", (int)p->layer, of, part[i]);
    for (int64_t t = 0; t < p->n; t++) {
        linear(p, w[0], rows + t * p->s->hidden, wide, p->s->hidden, c + t * wide);
        linear(p, w[1], rows + t * p->s->hidden, wide, p->s->hidden, g + t * wide);
        for (int64_t i = 0; i < wide; i++) g[t * wide + i] += w[2][t % ratio * wide + i];
    }
    out = numbers(p->n / ratio * dim);
    for (int64_t e = 0; e < p->n / ratio; e++) {
        for (int64_t i = 0; i < dim; i++) {
            double sum = 0, all = 0;
            for (int64_t half = 0; half < halves; half++)
                for (int64_t j = 0; j < ratio; j++) {
                    /* the first half of the window before, the second of the entry's own */
                    const int64_t t = (halves == 2 && half == 0 ? e - 1 : e) * ratio + j;
                    if (t < 0) continue;
                    sum += exp(g[t * wide + half * dim + i]) * c[t * wide + half * dim + i];
                    all += exp(g[t * wide + half * dim + i]);
                }
            out[e * dim + i] = sum / all;
        }
        rms(out + e * dim, w[3], dim, EPS, 0);
        turn(p, out + e * dim, dim, e * ratio, 1);
        disturb(p, out + e * dim, dim);
    }
    free(c), free(g);
    return out;
}

/* Which of `visible` entries position t meets: the index_topk with the largest scores. */
static void pick(plain_pass *p, const double *cq, const double *row, const double *keys,
                 int64_t visible, int64_t t, char *may) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->index_dim;
    double *q = numbers(s->index_heads * d), *w = numbers(s->index_heads);
    double *score = numbers(visible);

    linear(p, of_layer(p, "attn.indexer.wq_b.weight"), cq, s->index_heads * d, s->q_lora, q);
    linear(p, of_layer(p, "attn.indexer.weights_proj.weight"), row, s->index_heads, s->hidden, w);
    for (int64_t j = 0; j < s->index_heads; j++) {
        turn(p, q + j * d, d, t, 1);
        for (int64_t e = 0; e < visible; e++) {
            double dot = 0;
            for (int64_t i = 0; i < d; i++) dot += q[j * d + i] * keys[e * d + i];
            score[e] += w[j] * fmax(dot, 0) / sqrt((double)s->index_heads * (double)d);
        }
    }
    for (int64_t i = 0; i < s->index_topk && i < visible; i++) {
        int64_t best = -1;
        for (int64_t e = 0; e < visible; e++)
            if (!may[e] && (best < 0 || score[e] > score[best])) best = e;
        may[best] = 1;
        if (visible > s->index_topk) choose(p, t, best, 1);
    }
    free(q), free(w), free(score);
}

/* ---- attention ---- */

/* One head: out = what a softmax with a sink takes of the rows of `key` that may be met. */
static void meet(const double *q, const double *key, const char *may, int64_t n, int64_t d,
                 double sink, double *sum, double *out) {
    for (int64_t s = 0; s < n; s++) {
        double score = 0;
        if (may && !may[s]) continue;
        for (int64_t i = 0; i < d; i++) score += q[i] * key[s * d + i] / sqrt((double)d);
        *sum += exp(score - sink);
        for (int64_t i = 0; i < d; i++) out[i] += exp(score - sink) * key[s * d + i];
    }
}

/* q [heads, dim] becomes what each head meets, rotated back. */
static void attend(plain_pass *p, double *q, const double *kv, const double *pooled,
                   const char *may, int64_t visible, int64_t t) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->head_dim, first = t + 1 > s->window ? t + 1 - s->window : 0;
    const double *sink = of_layer(p, "attn.attn_sink");
    double *out = numbers(d);

    for (int64_t h = 0; h < s->heads; h++) {
        double sum = 1;
        memset(out, 0, (size_t)d * sizeof *out);
        meet(q + h * d, kv + first * d, NULL, t + 1 - first, d, sink[h], &sum, out);
        meet(q + h * d, pooled, may, visible, d, sink[h], &sum, out);
        for (int64_t i = 0; i < d; i++) q[h * d + i] = out[i] / sum;
        turn(p, q + h * d, d, t, -1);
    }
    free(out);
}

/* rows [n, hidden] in, y [n, hidden] out. */
static void attention_of(plain_pass *p, const double *rows, double *y) {
    const kt_plain_shape *s = p->s;
    const int64_t d = s->head_dim, h = s->hidden, ratio = s->ratio[p->layer];
    const int64_t group = s->heads / s->o_groups * d, low = s->o_groups * s->o_lora;
    double *kv = numbers(p->n * d), *q = numbers(s->heads * d), *cq = numbers(s->q_lora);
    double *o = numbers(low);
    double *pooled = ratio ? entries(p, "attn.compressor", rows, d) : NULL;
    double *keys = ratio == 4 ? entries(p, "attn.indexer.compressor", rows, s->index_dim) : NULL;
    char *may = calloc((size_t)p->n + 1, 1);

    for (int64_t t = 0; t < p->n; t++) {
        const double *row = rows + t * h;
        const int64_t visible = ratio ? (t + 1) / ratio : 0;
        linear(p, of_layer(p, "attn.wq_a.weight"), row, s->q_lora, h, cq);
        rms(cq, of_layer(p, "attn.q_norm.weight"), s->q_lora, EPS, 0);
        linear(p, of_layer(p, "attn.wq_b.weight"), cq, s->heads * d, s->q_lora, q);
        for (int64_t i = 0; i < s->heads; i++) {
            plain_rms(q + i * d, d);
            turn(p, q + i * d, d, t, 1);
        }
        disturb(p, q, s->heads * d);
        linear(p, of_layer(p, "attn.wkv.weight"), row, d, h, kv + t * d);
        rms(kv + t * d, of_layer(p, "attn.kv_norm.weight"), d, EPS, 0);
        turn(p, kv + t * d, d, t, 1);
        disturb(p, kv + t * d, d);
        memset(may, ratio != 4, (size_t)p->n);
        if (keys) pick(p, cq, row, keys, visible, t, may);
        attend(p, q, kv, pooled, may, visible, t);
        for (int64_t g = 0; g < s->o_groups; g++)
            linear(p, of_layer(p, "attn.wo_a.weight") + g * s->o_lora * group, q + g * group,
                   s->o_lora, group, o + g * s->o_lora);
        linear(p, of_layer(p, "attn.wo_b.weight"), o, h, low, y + t * h);
    }
    free(kv), free(q), free(cq), free(o), free(pooled), free(keys), free(may);
}

/* ---- experts ---- */

static void add_expert(plain_pass *p, const char *of, const double *row, double weight, double *y) {
    const int64_t h = p->s->hidden, size = p->s->expert_size;
    double *g = numbers(size), *u = numbers(size), *out = numbers(h);
    const double *w[4];

    for (int i = 1; i <= 3; i++)
        w[i] = kt_plain_tensor(p->m, "layers.%d.ffn.%s.w%d.weight", (int)p->layer, of, i);
    linear(p, w[1], row, size, h, g);
    linear(p, w[3], row, size, h, u);
    for (int64_t i = 0; i < size; i++)
        g[i] = silu(fmin(g[i], p->s->limit)) * fmin(fmax(u[i], -p->s->limit), p->s->limit);
    linear(p, w[2], g, h, size, out);
    for (int64_t i = 0; i < h; i++) y[i] += weight * out[i];
    free(g), free(u), free(out);
}

static void experts_of(plain_pass *p, const double *row, int32_t token, int64_t t, double *y) {
    const kt_plain_shape *s = p->s;
    const bool is_hashed = p->layer < s->hash_layers;
    const double *table = is_hashed ? of_layer(p, "ffn.gate.tid2eid") : NULL;
    const double *bias = is_hashed ? NULL : of_layer(p, "ffn.gate.bias");
    double *score = numbers(s->experts), *rank = numbers(s->experts), sum = 0;
    int64_t id[8];
    char name[32];

    product(of_layer(p, "ffn.gate.weight"), row, s->experts, s->hidden, score);
    for (int64_t e = 0; e < s->experts; e++) {
        score[e] = sqrt(log1p(exp(score[e])));
        rank[e] = score[e] + (bias ? bias[e] : 0);
    }
    for (int64_t j = 0; j < s->topk; j++) {
        id[j] = is_hashed ? (int64_t)table[token * s->topk + j] : 0;
        for (int64_t e = 1; !is_hashed && e < s->experts; e++)
            if (rank[e] > rank[id[j]]) id[j] = e;
        rank[id[j]] = -INFINITY;
        sum += score[id[j]];
        if (!is_hashed) choose(p, t, id[j], 0);
    }
    memset(y, 0, (size_t)s->hidden * sizeof *y);
    for (int64_t j = 0; j < s->topk; j++) {
        snprintf(name, sizeof name, "experts.%d", (int)id[j]);
        add_expert(p, name, row, s->scaling * score[id[j]] / sum, y);
    }
    add_expert(p, "shared_experts", row, 1, y);
    free(score), free(rank);
}

/* ---- the whole ---- */

static void layer(plain_pass *p, const int32_t *tokens, double *x) {
    const int64_t h = p->s->hidden, wide = HC * h;
    double *rows = numbers(p->n * h), *y = numbers(p->n * h);
    stream_gates *g = calloc((size_t)p->n, sizeof *g);

    for (int64_t t = 0; t < p->n; t++) {
        g[t] = gates_of(p, "hc_attn", x + t * wide);
        mix_in(p, &g[t], x + t * wide, "attn_norm.weight", rows + t * h);
    }
    attention_of(p, rows, y);
    for (int64_t t = 0; t < p->n; t++) {
        mix_out(p, &g[t], y + t * h, x + t * wide);
        g[t] = gates_of(p, "hc_ffn", x + t * wide);
        mix_in(p, &g[t], x + t * wide, "ffn_norm.weight", rows);
        experts_of(p, rows, tokens[t], t, y);
        mix_out(p, &g[t], y, x + t * wide);
    }
    free(rows), free(y), free(g);
}

void kt_plain_v4_forward(struct plain_pass *p, const int32_t *tokens, double *logits) {
    const int64_t h = p->s->hidden, wide = HC * h;
    const double *embedding = kt_plain_tensor(p->m, "embed.weight");
    const double *base = kt_plain_tensor(p->m, "hc_head_base");
    const double *scale = kt_plain_tensor(p->m, "hc_head_scale");
    double *x = numbers(p->n * wide), *f = numbers(wide), *row = numbers(h), m[HC];

    for (int64_t t = 0; t < p->n; t++)
        for (int64_t i = 0; i < wide; i++) x[t * wide + i] = embedding[tokens[t] * h + i % h];
    for (p->layer = 0; p->layer < p->s->layers; p->layer++) layer(p, tokens, x);
    for (int64_t t = 0; t < p->n; t++) {
        memcpy(f, x + t * wide, (size_t)wide * sizeof *f);
        plain_rms(f, wide);
        product(kt_plain_tensor(p->m, "hc_head_fn"), f, HC, wide, m);
        memset(row, 0, (size_t)h * sizeof *row);
        for (int k = 0; k < HC; k++)
            for (int64_t i = 0; i < h; i++)
                row[i] += (sigmoid(m[k] * scale[0] + base[k]) + HC_EPS) * x[t * wide + k * h + i];
        rms(row, kt_plain_tensor(p->m, "norm.weight"), h, EPS, 0);
        linear(p, kt_plain_tensor(p->m, "head.weight"), row, p->s->vocab, h,
               logits + t * p->s->vocab);
    }
    free(x), free(f), free(row);
}
