/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/attn/attn_common.h"
#include "kernels/attn/attn_ref.h"

typedef struct gate {
    float *q, *out, *again, *part, *stats;
    uint16_t *k, *v;
    int32_t *position;
    double *want, *bound, *work;
    void *scratch;
} gate;

static size_t round64(size_t n) {
    return (n + 63) / 64 * 64;
}

static int64_t chunks(const kt_problem *p) {
    return (p->context + KT_ATTN_CHUNK - 1) / KT_ATTN_CHUNK;
}

static kt_status allocate(gate *g, const kt_variant *v, const kt_problem *p,
                          const kt_config *config, kt_err *err) {
    size_t width = (size_t)(p->n * p->k), m = (size_t)p->m;
    size_t cache = (size_t)(p->context * p->kv_heads * p->k);

    g->q = malloc(m * width * sizeof *g->q);
    g->out = malloc(m * width * sizeof *g->out);
    g->again = malloc(m * width * sizeof *g->again);
    g->part = malloc((size_t)chunks(p) * width * sizeof *g->part);
    g->stats = malloc((size_t)(chunks(p) * 2 * p->n) * sizeof *g->stats);
    g->k = malloc(cache * sizeof *g->k);
    g->v = malloc(cache * sizeof *g->v);
    g->position = malloc(m * sizeof *g->position);
    g->want = malloc(m * width * sizeof *g->want);
    g->bound = malloc(m * width * sizeof *g->bound);
    g->work = malloc(2 * (size_t)p->context * sizeof *g->work);
    g->scratch = aligned_alloc(64, round64(v->workspace_bytes(p, config) + 1));
    if (g->q && g->out && g->again && g->part && g->stats && g->k && g->v && g->position &&
        g->want && g->bound && g->work && g->scratch)
        return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "%s: no memory for a context of %lld", v->name,
                   (long long)p->context);
}

static void release(gate *g) {
    void *all[] = {g->q, g->out,      g->again, g->part,  g->stats, g->k,
                   g->v, g->position, g->want,  g->bound, g->work,  g->scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

static void fill(gate *g, const kt_problem *p, uint64_t seed) {
    float size = seed % 2 ? 8.0f : 1.0f;
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < p->m * p->n * p->k; i++) g->q[i] = kt_rng_normal(&rng) * size;
    for (int64_t i = 0; i < p->context * p->kv_heads * p->k; i++) {
        g->k[i] = kt_f32_to_bf16(kt_rng_normal(&rng) * size);
        g->v[i] = kt_f32_to_bf16(kt_rng_normal(&rng));
    }
    for (int64_t r = 0; r < p->m; r++) g->position[r] = (int32_t)(p->context - p->m + r);
}

static kt_attn_call call_of(gate *g, const kt_problem *p, const kt_config *config,
                            int64_t kv_head) {
    return (kt_attn_call){.problem = p,
                          .config = config,
                          .q = g->q,
                          .ldq = p->n * p->k,
                          .k = g->k + kv_head * p->k,
                          .v = g->v + kv_head * p->k,
                          .ldkv = p->kv_heads * p->k,
                          .kv_head = kv_head,
                          .scale = (float)(1.0 / sqrt((double)p->k)),
                          .position = g->position,
                          .row_begin = 0,
                          .row_end = p->m,
                          .out = g->out,
                          .ldo = p->n * p->k,
                          .scratch = g->scratch};
}

/* What the numerics class allows a variant to round queries and weights to. */
static double input_roundoff(const kt_variant *v) {
    return v->numerics == KT_NUM_BF16_F32 ? 0x1p-8 : 0.0;
}

static void reference(gate *g, const kt_variant *v, const kt_attn_call *c) {
    int64_t group = c->problem->n / c->problem->kv_heads, d = c->problem->k;
    for (int64_t r = c->row_begin; r < c->row_end; r++)
        for (int64_t h = c->kv_head * group; h < (c->kv_head + 1) * group; h++)
            kt_attn_ref(c, r, h, input_roundoff(v), g->work, g->want + r * c->ldo + h * d,
                        g->bound + r * c->ldo + h * d);
}

/* Compute the last row again, in one call and chunk by chunk, into again and part. */
static void repeat_last_row(gate *g, const kt_variant *v, const kt_attn_call *whole) {
    const kt_problem *p = whole->problem;
    int64_t group = p->n / p->kv_heads, last = p->m - 1, n = chunks(p);
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
        kt_attn_merge(g->part + h * p->k, c.ldo, g->stats + 2 * h, 2 * p->n, n, p->k,
                      g->part + h * p->k);
}

static kt_status check(gate *g, const kt_variant *v, const kt_problem *p, const kt_config *config,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t width = (size_t)(p->n * p->k), last = (size_t)(p->m - 1) * width;

    fill(g, p, seed);
    for (int64_t h = 0; h < p->kv_heads; h++) {
        kt_attn_call c = call_of(g, p, config, h);
        reference(g, v, &c);
        v->attn(&c);
        repeat_last_row(g, v, &c);
    }
    KT_TRY(
        kt_gate_compare(v, p, seed, g->out, g->want, g->bound, (size_t)p->m * width, report, err));
    if (memcmp(g->again, g->out + last, width * sizeof *g->out) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: seed=%llu: the last of %lld rows differs when alone", v->name,
                       (unsigned long long)seed, (long long)p->m);
    if (memcmp(g->part, g->out + last, width * sizeof *g->out) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: seed=%llu context=%lld: chunks merged differ from whole", v->name,
                       (unsigned long long)seed, (long long)p->context);
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
    release(&g);
    return st;
}
