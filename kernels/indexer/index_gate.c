/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/indexer/index_gate.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "base/rng.h"
#include "kernels/indexer/indexer_ref.h"

typedef struct index_inputs {
    float *q, *w, *score, *again;
    uint16_t *keys;
    double *want, *bound;
    void *scratch;
    size_t n; /* scores */
} index_inputs;

/* Heavy tails, zeros and weights of both signs. */
static void fill(const index_inputs *g, const kt_problem *p, uint64_t seed) {
    static const float size[] = {1.0f, 1.0f, 1e-15f, 1e9f, 0.0f, 8.0f};
    kt_rng rng;

    kt_rng_seed(&rng, seed);
    for (int64_t i = 0; i < p->m * p->n * p->k; i++)
        g->q[i] = kt_rng_normal(&rng) * size[((uint64_t)(i / p->k) + seed) % 6];
    for (int64_t i = 0; i < p->m * p->n; i++) g->w[i] = kt_rng_uniform(&rng, -1.0f, 2.0f);
    for (int64_t i = 0; i < p->context * p->k; i++)
        g->keys[i] = kt_f32_to_bf16(kt_rng_normal(&rng) * size[((uint64_t)(i / p->k)) % 3]);
}

/* Row by row, keys in two parts. */
static kt_status check_cuts(const kt_variant *v, const kt_problem *p, uint64_t seed,
                            const index_inputs *g, const kt_index_call *whole, kt_err *err) {
    const int64_t half = p->context / 2;

    for (int64_t r = 0; r < p->m; r++)
        for (int i = 0; i < 2; i++) {
            kt_index_call c = *whole;
            c.row_begin = r;
            c.row_end = r + 1;
            c.keys += i * half * c.ldk;
            c.n_keys = i ? p->context - half : half;
            c.score = g->again + i * half;
            v->index(&c);
        }
    if (memcmp(g->again, g->score, g->n * sizeof *g->score) == 0) return KT_OK;
    return kt_fail(err, KT_E_MISMATCH,
                   "%s: seed=%llu: %lld rows over %lld keys, row by row in two parts, differ from "
                   "one call",
                   v->name, (unsigned long long)seed, (long long)p->m, (long long)p->context);
}

static kt_status check(const kt_variant *v, const kt_config *config, const kt_problem *p,
                       uint64_t seed, const index_inputs *g, kt_gate_report *report, kt_err *err) {
    const kt_index_call call = {.problem = p,
                                .config = config,
                                .q = g->q,
                                .ldq = p->n * p->k,
                                .w = g->w,
                                .ldw = p->n,
                                .keys = g->keys,
                                .ldk = p->k,
                                .n_keys = p->context,
                                .row_end = p->m,
                                .score = g->score,
                                .lds = p->context,
                                .scratch = g->scratch};

    const int64_t scores = (p->kv_heads ? p->kv_heads : 1) * p->context; /* of a row */

    fill(g, p, seed);
    for (int64_t r = 0; r < p->m; r++)
        kt_index_ref(&call, r, g->want + r * scores, g->bound + r * scores);
    v->index(&call);
    KT_TRY(kt_gate_compare(v, p, seed, g->score, g->want, g->bound, g->n, report, err));
    return check_cuts(v, p, seed, g, &call, err);
}

kt_status kt_index_gate(const kt_variant *v, const kt_config *config, const kt_problem *p,
                        uint64_t seed, kt_gate_report *report, kt_err *err) {
    index_inputs g = {.n = (size_t)(p->m * (p->kv_heads ? p->kv_heads : 1) * p->context)};
    size_t bytes;
    kt_status st = KT_OK;

    if (v->accepts) KT_TRY(v->accepts(p, config, err));
    bytes = v->workspace_bytes ? v->workspace_bytes(p, config) : 0;
    g.q = malloc((size_t)(p->m * p->n * p->k) * sizeof *g.q);
    g.w = malloc((size_t)(p->m * p->n) * sizeof *g.w);
    g.keys = malloc((size_t)(p->context * p->k) * sizeof *g.keys);
    g.score = malloc(g.n * sizeof *g.score);
    g.again = malloc(g.n * sizeof *g.again);
    g.want = malloc(g.n * sizeof *g.want);
    g.bound = malloc(g.n * sizeof *g.bound);
    g.scratch = aligned_alloc(64, (bytes + 64) / 64 * 64);
    if (!(g.q && g.w && g.keys && g.score && g.again && g.want && g.bound && g.scratch))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu scores", v->name, g.n);
    if (st == KT_OK) st = check(v, config, p, seed, &g, report, err);
    free(g.q);
    free(g.w);
    free(g.keys);
    free(g.score);
    free(g.again);
    free(g.want);
    free(g.bound);
    free(g.scratch);
    return st;
}
