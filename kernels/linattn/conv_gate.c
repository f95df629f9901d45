/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/conv_gate.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/linattn/conv_ref.h"

typedef struct conv_inputs {
    float *x, *y, *again, *w, *before, *state;
    double *want, *bound;
    size_t n, before_bytes;
} conv_inputs;

static void fill(const conv_inputs *g, const kt_problem *p, uint64_t seed) {
    static const float size[] = {1.0f, 1.0f, 1e-22f, 1e12f, 0.0f, 8.0f};
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < p->m * p->n; i++)
        g->x[i] = kt_rng_normal(&rng) * size[((uint64_t)(i % p->n) + seed) % 6];
    for (int64_t i = 0; i < (p->k - 1) * p->n; i++)
        g->before[i] = kt_rng_normal(&rng) * size[((uint64_t)(i % p->n) + seed) % 6];
    for (int64_t i = 0; i < p->n * p->k; i++) g->w[i] = kt_rng_uniform(&rng, -2.0f, 2.0f);
}

/* The same by single rows, in place, channels in two parts where a vector's width lets them. */
static kt_status check_cuts(const kt_variant *v, const kt_problem *p, uint64_t seed,
                            const conv_inputs *g, const kt_conv_call *whole, kt_err *err) {
    const int64_t half = p->n / 2 % 16 == 0 ? p->n / 2 : p->n;

    memcpy(g->again, g->x, g->n * sizeof *g->x);
    memcpy(g->state, g->before, g->before_bytes);
    for (int64_t row = 0; row < p->m; row++)
        for (int64_t at = 0; at < p->n; at += half) {
            kt_conv_call c = *whole;
            c.x = c.y = g->again + row * p->n;
            c.rows = 1;
            c.channel_begin = at;
            c.channel_end = at + half;
            v->conv(&c);
        }
    if (memcmp(g->again, g->y, g->n * sizeof *g->y) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: seed=%llu: %lld rows one by one in place differ from one call", v->name,
                       (unsigned long long)seed, (long long)p->m);
    return KT_OK;
}

/* Row j of the state is the input taps - 1 - j before the end. */
static kt_status check_state(const kt_variant *v, const kt_problem *p, uint64_t seed,
                             const conv_inputs *g, kt_err *err) {
    for (int64_t j = 0; j < p->k - 1; j++) {
        const int64_t row = p->m - (p->k - 1) + j;
        const float *want = row < 0 ? g->before + (p->k - 1 + row) * p->n : g->x + row * p->n;
        if (memcmp(g->state + j * p->n, want, (size_t)p->n * sizeof *want) != 0)
            return kt_fail(err, KT_E_MISMATCH,
                           "%s: seed=%llu: row %lld of the state is not input %lld of %lld",
                           v->name, (unsigned long long)seed, (long long)j, (long long)row,
                           (long long)p->m);
    }
    return KT_OK;
}

static kt_status check(const kt_variant *v, const kt_problem *p, uint64_t seed,
                       const conv_inputs *g, kt_gate_report *report, kt_err *err) {
    kt_conv_call call = {.problem = p,
                         .x = g->x,
                         .ldx = p->n,
                         .w = g->w,
                         .state = g->before,
                         .y = g->y,
                         .ldy = p->n,
                         .rows = p->m,
                         .channel_end = p->n};

    fill(g, p, seed);
    for (int64_t c = 0; c < p->n; c++) kt_conv_ref(&call, c, p->n, g->want + c, g->bound + c);
    call.state = g->state;
    memcpy(g->state, g->before, g->before_bytes);
    v->conv(&call);
    KT_TRY(kt_gate_compare(v, p, seed, g->y, g->want, g->bound, g->n, report, err));
    KT_TRY(check_state(v, p, seed, g, err));
    KT_TRY(check_cuts(v, p, seed, g, &call, err));
    return check_state(v, p, seed, g, err);
}

kt_status kt_conv_gate(const kt_variant *v, const kt_config *config, const kt_problem *p,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    conv_inputs g = {.n = (size_t)(p->m * p->n)};
    kt_status st = KT_OK;

    if (v->accepts) KT_TRY(v->accepts(p, config, err));
    g.before_bytes = (size_t)((p->k - 1) * p->n) * sizeof *g.before;
    g.x = malloc(g.n * sizeof *g.x);
    g.y = malloc(g.n * sizeof *g.y);
    g.again = malloc(g.n * sizeof *g.again);
    g.w = malloc((size_t)(p->n * p->k) * sizeof *g.w);
    g.before = malloc(g.before_bytes + 1);
    g.state = malloc(g.before_bytes + 1);
    g.want = malloc(g.n * sizeof *g.want);
    g.bound = malloc(g.n * sizeof *g.bound);
    if (!(g.x && g.y && g.again && g.w && g.before && g.state && g.want && g.bound))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu floats", v->name, g.n);
    if (st == KT_OK) st = check(v, p, seed, &g, report, err);
    free(g.x);
    free(g.y);
    free(g.again);
    free(g.w);
    free(g.before);
    free(g.state);
    free(g.want);
    free(g.bound);
    return st;
}
