/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_gate.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_ref.h"

typedef struct gate {
    float *q, *out, *again, *part, *stats;
    uint8_t *k, *v;
    float *k_scale, *v_scale;
    float *sink; /* [n] */
    int32_t *position;
    double *want, *bound, *work;
    void *scratch;
    bool has_sink;  /* with every third seed */
    bool is_shared; /* keys' rows begin with their values; v is not used */
} gate;

/* Elements of a row of results, and of a key's value until the next head's. */
static size_t width_of(const kt_problem *p) {
    return (size_t)(p->n * kt_attn_value_size(p));
}
static int64_t value_step(const gate *g, const kt_problem *p) {
    return g->is_shared ? p->k : kt_attn_value_size(p);
}

static size_t round64(size_t n) {
    return (n + 63) / 64 * 64;
}

static int64_t chunks(const kt_problem *p) {
    return (p->context + KT_ATTN_CHUNK - 1) / KT_ATTN_CHUNK;
}

static kt_status allocate(gate *g, const kt_variant *v, const kt_problem *p,
                          const kt_config *config, kt_err *err) {
    size_t width = width_of(p), m = (size_t)p->m;
    size_t rows = (size_t)(p->context * p->kv_heads);
    size_t row = rows * kt_attn_item_bytes(p->weights);

    g->q = malloc(m * (size_t)(p->n * p->k) * sizeof *g->q);
    g->out = malloc(m * width * sizeof *g->out);
    g->again = malloc(m * width * sizeof *g->again);
    g->part = malloc((size_t)chunks(p) * width * sizeof *g->part);
    g->stats = malloc((size_t)(chunks(p) * 2 * p->n) * sizeof *g->stats);
    g->k = malloc(row * (size_t)p->k);
    g->v = malloc(row * (size_t)kt_attn_value_size(p));
    g->k_scale = malloc(rows * sizeof *g->k_scale);
    g->v_scale = malloc(rows * sizeof *g->v_scale);
    g->sink = malloc((size_t)p->n * sizeof *g->sink);
    g->position = malloc(m * sizeof *g->position);
    g->want = malloc(m * width * sizeof *g->want);
    g->bound = malloc(m * width * sizeof *g->bound);
    g->work = malloc(kt_attn_ref_work(p, p->context) * sizeof *g->work);
    g->scratch = aligned_alloc(64, round64(v->workspace_bytes(p, config) + 1));
    if (g->q && g->out && g->again && g->part && g->stats && g->k && g->v && g->k_scale &&
        g->v_scale && g->sink && g->position && g->want && g->bound && g->work && g->scratch)
        return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "%s: no memory for a context of %lld", v->name,
                   (long long)p->context);
}

static void release(gate *g) {
    void *all[] = {g->q,    g->out,     g->again,    g->part,    g->stats,
                   g->k,    g->v,       g->position, g->want,    g->bound,
                   g->work, g->scratch, g->k_scale,  g->v_scale, g->sink};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* Any code but -128 of INT8, which nobody writes, and the NaN of FP8, of which spoil puts a few. */
static uint8_t random_code(kt_weight_format cache, kt_rng *rng) {
    uint8_t code = (uint8_t)kt_rng_below(rng, 256);
    if (cache == KT_W_INT8_CHANNEL) return code == 0x80 ? 0x7f : code;
    return (code & 0x7f) == 0x7f ? code ^ 1 : code;
}

/* Row i of d keys or values. With scales the codes are drawn, all of them sooner or later, not
 * made from numbers. */
static void fill_row(uint8_t *rows, const kt_problem *p, int64_t i, int64_t d, float size,
                     kt_rng *rng) {
    uint8_t *to = rows + (size_t)(i * d) * kt_attn_item_bytes(p->weights);

    for (int64_t x = 0; x < d; x++) {
        if (kt_attn_has_scales(p->weights)) {
            to[x] = random_code(p->weights, rng);
        } else {
            float number = kt_rng_normal(rng) * size;
            kt_attn_store(p->weights, &number, 1, to + 2 * x, NULL);
        }
    }
}

/* One scale per position and kv head, heads apart: scores keep the size of BF16's by them. Some
 * are zero. */
static void fill_scales(gate *g, const kt_problem *p, float size, kt_rng *rng) {
    float unit = p->weights == KT_W_INT8_CHANNEL ? 0x1p-6f : 0x1p-7f;

    for (int64_t i = 0; i < p->context * p->kv_heads; i++) {
        int64_t at = i % p->kv_heads * p->context + i / p->kv_heads;
        g->k_scale[at] = i % 13 == 12 ? 0.0f : size * unit * kt_rng_uniform(rng, 0.5f, 1.0f);
        g->v_scale[at] = i % 17 == 16 ? 0.0f : unit * kt_rng_uniform(rng, 0.5f, 1.0f);
    }
}

/* NaN of both signs among FP8 values, a column of one kv head each, at keys that early rows do
 * not see; and with some seeds one in the last key, which takes all of the last row's heads over
 * that kv head. */
static void spoil(gate *g, const kt_problem *p, uint64_t seed, kt_rng *rng) {
    int64_t dv = kt_attn_value_size(p);
    for (int i = 0; i < 2 && dv > 2 && !g->is_shared; i++) {
        int64_t key = p->context - 1 - (int64_t)kt_rng_below(rng, (uint64_t)p->m);
        int64_t row = key * p->kv_heads + (int64_t)kt_rng_below(rng, (uint64_t)p->kv_heads);
        g->v[row * dv + (int64_t)kt_rng_below(rng, (uint64_t)dv)] = i ? 0x7f : 0xff;
    }
    if (seed % 4 == 0)
        g->k[(p->context - 1) * p->kv_heads * p->k + (int64_t)kt_rng_below(rng, (uint64_t)p->k)] =
            seed % 8 ? 0x7f : 0xff;
}

static void fill(gate *g, const kt_problem *p, uint64_t seed) {
    float size = seed % 2 ? 8.0f : 1.0f;
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < p->m * p->n * p->k; i++) g->q[i] = kt_rng_normal(&rng) * size;
    for (int64_t i = 0; i < p->context * p->kv_heads; i++) {
        fill_row(g->k, p, i, p->k, size, &rng);
        fill_row(g->v, p, i, kt_attn_value_size(p), 1.0f, &rng);
    }
    fill_scales(g, p, size, &rng);
    if (p->weights == KT_W_FP8_CHANNEL) spoil(g, p, seed, &rng);
    for (int64_t h = 0; h < p->n; h++) /* among the scores, and above all of them */
        g->sink[h] = h % 3 == 2 ? 30.0f * size : 2.0f * kt_rng_normal(&rng);
    for (int64_t r = 0; r < p->m; r++) g->position[r] = (int32_t)(p->context - p->m + r);
}

static kt_attn_call call_of(gate *g, const kt_problem *p, const kt_config *config,
                            int64_t kv_head) {
    size_t item = kt_attn_item_bytes(p->weights);
    const uint8_t *v = g->is_shared ? g->k : g->v;
    const float *v_scale = g->is_shared ? g->k_scale : g->v_scale;

    return (kt_attn_call){.problem = p,
                          .config = config,
                          .q = g->q,
                          .ldq = p->n * p->k,
                          .k = g->k + (size_t)(kv_head * p->k) * item,
                          .v = v + (size_t)(kv_head * value_step(g, p)) * item,
                          .k_scale = g->k_scale + kv_head * p->context,
                          .v_scale = v_scale + kv_head * p->context,
                          .ldkv = p->kv_heads * p->k,
                          .ldv = p->kv_heads * value_step(g, p),
                          .kv_head = kv_head,
                          .scale = (float)(1.0 / sqrt((double)p->k)),
                          .position = g->position,
                          .row_begin = 0,
                          .row_end = p->m,
                          .out = g->out,
                          .ldo = (int64_t)width_of(p),
                          .scratch = g->scratch,
                          .sink = g->has_sink ? g->sink : NULL};
}

static void reference(gate *g, const kt_variant *v, const kt_attn_call *c) {
    int64_t group = c->problem->n / c->problem->kv_heads, d = kt_attn_value_size(c->problem);
    for (int64_t r = c->row_begin; r < c->row_end; r++)
        for (int64_t h = c->kv_head * group; h < (c->kv_head + 1) * group; h++)
            kt_attn_ref(c, r, h, v->numerics, g->work, g->want + r * c->ldo + h * d,
                        g->bound + r * c->ldo + h * d);
}

/* Compute the last row again, in one call and chunk by chunk, into again and part. */
static void repeat_last_row(gate *g, const kt_variant *v, const kt_attn_call *whole) {
    const kt_problem *p = whole->problem;
    int64_t group = p->n / p->kv_heads, last = p->m - 1, n = chunks(p), d = kt_attn_value_size(p);
    int64_t first = kt_attn_first_key(p, p->context - 1) / KT_ATTN_CHUNK;
    kt_attn_call c = *whole;

    c.row_begin = last;
    c.out = g->again - last * c.ldo;
    v->attn(&c);
    for (int64_t i = 0; i < n; i++) {
        c.out = g->part + (i - last) * c.ldo;
        c.stats = g->stats + (i - last) * 2 * p->n;
        c.ldstats = 2 * p->n;
        c.key_begin = i * KT_ATTN_CHUNK;
        c.key_end = c.key_begin + KT_ATTN_CHUNK;
        v->attn(&c);
    }
    for (int64_t h = c.kv_head * group; h < (c.kv_head + 1) * group; h++)
        kt_attn_merge(g->part + first * c.ldo + h * d, c.ldo, g->stats + 2 * (first * p->n + h),
                      2 * p->n, n - first, d, c.sink ? c.sink + h : NULL, g->part + h * d);
}

static kt_status check(gate *g, const kt_variant *v, const kt_problem *p, const kt_config *config,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t width = width_of(p), last = (size_t)(p->m - 1) * width;
    const char *how = g->is_shared ? "values in the keys' rows" : "values of their own";

    fill(g, p, seed);
    g->has_sink = seed % 3 == 1;
    for (int64_t h = 0; h < p->kv_heads; h++) {
        kt_attn_call c = call_of(g, p, config, h);
        reference(g, v, &c);
        v->attn(&c);
        repeat_last_row(g, v, &c);
    }
    if (kt_gate_compare(v, p, seed, g->out, g->want, g->bound, (size_t)p->m * width, report, err) !=
        KT_OK)
        return kt_fail_prefix(err, KT_E_MISMATCH, "values of %lld, window %lld, %s",
                              (long long)kt_attn_value_size(p), (long long)p->window, how);
    if (memcmp(g->again, g->out + last, width * sizeof *g->out) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: seed=%llu %s: the last of %lld rows differs when alone", v->name,
                       (unsigned long long)seed, how, (long long)p->m);
    if (memcmp(g->part, g->out + last, width * sizeof *g->out) != 0)
        return kt_fail(
            err, KT_E_MISMATCH,
            "%s: seed=%llu context=%lld window=%lld, %s: chunks merged differ from whole", v->name,
            (unsigned long long)seed, (long long)p->context, (long long)p->window, how);
    return KT_OK;
}

kt_status kt_attn_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    gate g = {0};
    kt_status st;

    if (problem->m < 1 || problem->context < problem->m)
        return kt_fail(err, KT_E_INVALID, "%s: %lld rows do not fit a context of %lld", v->name,
                       (long long)problem->m, (long long)problem->context);
    if (v->accepts) KT_TRY(v->accepts(problem, config, err));
    st = allocate(&g, v, problem, config, err);
    if (st == KT_OK) st = check(&g, v, problem, config, seed, report, err);
    if (st == KT_OK && problem->v > 0 && problem->v <= problem->k) {
        g.is_shared = true;
        st = check(&g, v, problem, config, seed, report, err);
    }
    release(&g);
    return st;
}
