/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_gate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/linattn/delta_ref.h"

typedef struct delta_inputs {
    int64_t ld, width; /* a row of q, k and v; of results */
    size_t n_out, n_state;
    float *x, *rates, *z, *norm, *decay; /* decay: and dt_bias */
    float *before, *state, *state_again, *out, *again;
    double *want, *bound, *want_state, *state_bound, *work;
    void *scratch;
} delta_inputs;

static void fill_row(const delta_inputs *g, const kt_problem *p, int64_t row, kt_rng *rng) {
    static const float size[] = {1.0f, 8.0f, 1e-3f, 1.0f, 0.0f};
    float *rates = g->rates + row * 2 * p->n;

    for (int64_t i = 0; i < g->ld; i++) /* keys and queries of some rows are zeros */
        g->x[row * g->ld + i] =
            kt_rng_normal(rng) * (i < 2 * p->kv_heads * p->k ? size[row % 5] : 2.0f);
    for (int64_t i = 0; i < p->n; i++) {
        rates[i] = kt_rng_normal(rng) * (row % 7 == 3 ? 20.0f : 2.0f);
        rates[p->n + i] = kt_rng_normal(rng) * 3.0f - (row % 3 ? 4.0f : 0.0f);
        if (row % 11 == 5) rates[p->n + i] = 95.0f; /* its exponential is no f32 */
    }
    for (int64_t i = 0; i < g->width; i++) g->z[row * g->width + i] = kt_rng_normal(rng) * 3.0f;
}

static void fill(const delta_inputs *g, const kt_problem *p, uint64_t seed) {
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t row = 0; row < p->m; row++) fill_row(g, p, row, &rng);
    for (int64_t i = 0; i < p->n; i++) {
        g->decay[i] = -expf(kt_rng_normal(&rng));
        g->decay[p->n + i] = kt_rng_normal(&rng);
    }
    for (int64_t i = 0; i < p->v; i++) g->norm[i] = kt_rng_uniform(&rng, -2.0f, 2.0f);
    for (size_t i = 0; i < g->n_state; i++) g->before[i] = kt_rng_normal(&rng);
}

static kt_delta_call call_of(const delta_inputs *g, const kt_problem *p, const kt_config *config,
                             uint64_t seed, int has_z) {
    return (kt_delta_call){.problem = p,
                           .config = config,
                           .q = g->x,
                           .k = g->x + p->kv_heads * p->k,
                           .v = g->x + 2 * p->kv_heads * p->k,
                           .ld = g->ld,
                           .b = g->rates,
                           .a = g->rates + p->n,
                           .ldba = 2 * p->n,
                           .decay = g->decay,
                           .dt_bias = g->decay + p->n,
                           .state = g->state,
                           .z = has_z ? g->z : NULL,
                           .ldz = g->width,
                           .norm = g->norm,
                           .eps = 1e-6f,
                           .out = g->out,
                           .ldo = g->width,
                           .position = seed % 3 ? 0 : 37,
                           .rows = p->m,
                           .head_end = p->n,
                           .scratch = g->scratch};
}

/* The first rows, then the others, each head by itself; the cut lies where it must not matter. */
static kt_status check_cuts(const kt_variant *v, uint64_t seed, const delta_inputs *g,
                            const kt_delta_call *whole, kt_err *err) {
    const kt_problem *p = whole->problem;
    const int64_t size = kt_variant_is_stable(v) ? 1 : whole->config->value[0];
    const int64_t middle = (whole->position + p->m / 2) / size * size - whole->position;
    const int64_t cut = middle > 0 ? middle : 0;

    memcpy(g->state_again, g->before, g->n_state * sizeof *g->before);
    for (int64_t head = 0; head < p->n; head++)
        for (int64_t row = 0; row < p->m;) {
            kt_delta_call c = *whole;
            c.state = g->state_again;
            c.out = g->again + row * c.ldo;
            c.q += row * c.ld, c.k += row * c.ld, c.v += row * c.ld;
            c.b += row * c.ldba, c.a += row * c.ldba;
            if (c.z) c.z += row * c.ldz;
            c.position += row;
            c.rows = row < cut ? cut : p->m - row;
            c.head_begin = head, c.head_end = head + 1;
            v->delta(&c);
            row += c.rows;
        }
    if (memcmp(g->again, g->out, g->n_out * sizeof *g->out) != 0 ||
        memcmp(g->state_again, g->state, g->n_state * sizeof *g->state) != 0)
        return kt_fail(err, KT_E_MISMATCH,
                       "%s: seed=%llu: %lld rows cut at %lld, heads by themselves, differ from one "
                       "call",
                       v->name, (unsigned long long)seed, (long long)p->m, (long long)cut);
    return KT_OK;
}

static kt_status check(const kt_variant *v, const kt_problem *p, const kt_config *config,
                       uint64_t seed, const delta_inputs *g, int has_z, kt_gate_report *report,
                       kt_err *err) {
    kt_delta_call call = call_of(g, p, config, seed, has_z);
    const int64_t cells = p->k * p->v;

    fill(g, p, seed);
    memcpy(g->state, g->before, g->n_state * sizeof *g->before);
    for (int64_t h = 0; h < p->n; h++)
        kt_delta_ref(&call, h, g->width, g->work, g->want + h * p->v, g->bound + h * p->v,
                     g->want_state + h * cells, g->state_bound + h * cells);
    v->delta(&call);
    if (kt_gate_compare(v, p, seed, g->state, g->want_state, g->state_bound, g->n_state, report,
                        err) != KT_OK)
        return kt_fail_prefix(err, KT_E_MISMATCH, "state");
    KT_TRY(kt_gate_compare(v, p, seed, g->out, g->want, g->bound, g->n_out, report, err));
    return check_cuts(v, seed, g, &call, err);
}

static kt_status allocate(delta_inputs *g, const kt_variant *v, const kt_problem *p,
                          const kt_config *config, kt_err *err) {
    const size_t m = (size_t)p->m, n = (size_t)p->n;
    const size_t room = v->workspace_bytes ? v->workspace_bytes(p, config) : 0;

    g->x = malloc(m * (size_t)g->ld * sizeof *g->x);
    g->rates = malloc(m * 2 * n * sizeof *g->rates);
    g->z = malloc(g->n_out * sizeof *g->z);
    g->norm = malloc((size_t)p->v * sizeof *g->norm);
    g->decay = malloc(2 * n * sizeof *g->decay);
    g->before = malloc(g->n_state * sizeof *g->before);
    g->state = malloc(g->n_state * sizeof *g->state);
    g->state_again = malloc(g->n_state * sizeof *g->state_again);
    g->out = malloc(g->n_out * sizeof *g->out);
    g->again = malloc(g->n_out * sizeof *g->again);
    g->want = malloc(g->n_out * sizeof *g->want);
    g->bound = malloc(g->n_out * sizeof *g->bound);
    g->want_state = malloc(g->n_state * sizeof *g->want_state);
    g->state_bound = malloc(g->n_state * sizeof *g->state_bound);
    g->work = malloc(kt_delta_ref_doubles(p) * sizeof *g->work);
    g->scratch = aligned_alloc(64, (room + 64) / 64 * 64);
    if (g->x && g->rates && g->z && g->norm && g->decay && g->before && g->state &&
        g->state_again && g->out && g->again && g->want && g->bound && g->want_state &&
        g->state_bound && g->work && g->scratch)
        return KT_OK;
    return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu results", v->name, g->n_out);
}

kt_status kt_delta_gate(const kt_variant *v, const kt_config *config, const kt_problem *p,
                        uint64_t seed, kt_gate_report *report, kt_err *err) {
    delta_inputs g = {.ld = 2 * p->kv_heads * p->k + p->n * p->v, .width = p->n * p->v};
    kt_status st;

    if (v->accepts) KT_TRY(v->accepts(p, config, err));
    g.n_out = (size_t)(p->m * g.width);
    g.n_state = (size_t)(p->n * p->k * p->v);
    st = allocate(&g, v, p, config, err);
    for (int has_z = 0; has_z < 2 && st == KT_OK; has_z++)
        st = check(v, p, config, seed, &g, has_z, report, err);
    void *all[] = {g.x,     g.rates,       g.z,           g.norm,   g.decay, g.before,
                   g.state, g.state_again, g.out,         g.again,  g.want,  g.bound,
                   g.work,  g.want_state,  g.state_bound, g.scratch};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
    return st;
}
