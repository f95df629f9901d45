/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_group.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/rng.h"
#include "runtime/cli/interrupt.h"

struct kt_bench_group {
    kt_engine *engine;
    int n;
    int64_t depth, more, vocab;
    kt_span *spans;          /* [n], with the sequences */
    int32_t *token, *choose; /* [n]: of a step; the rows that get logits, which are all */
    int32_t *begin;          /* [depth] */
    float *logits;           /* [n, vocab] */
    kt_rng rng;
};

static int32_t draw(kt_bench_group *g) {
    return (int32_t)kt_rng_below(&g->rng, (uint64_t)g->vocab);
}

static bool make_arrays(kt_bench_group *g) {
    const size_t n = (size_t)g->n;

    g->spans = calloc(n, sizeof *g->spans);
    g->token = calloc(n, sizeof *g->token);
    g->choose = calloc(n, sizeof *g->choose);
    g->begin = calloc((size_t)g->depth + 1, sizeof *g->begin);
    g->logits = malloc(n * (size_t)g->vocab * sizeof *g->logits);
    return g->spans && g->token && g->choose && g->begin && g->logits;
}

/* A sequence with its first tokens, other ones than those of the others. */
static kt_status begin_sequence(kt_bench_group *g, int i, kt_err *err) {
    kt_span *p = &g->spans[i];
    const kt_status st = kt_sequence_create(g->engine, g->depth + g->more, &p->seq, err);

    p->first_row = g->choose[i] = i;
    p->rows = 1;
    if (st == KT_E_NOMEM)
        return kt_fail(err, st,
                       "no pages for sequence %d of %d with %lld tokens each (--kv-memory)", i + 1,
                       g->n, (long long)(g->depth + g->more));
    if (st != KT_OK || g->depth == 0) return st;
    for (int64_t k = 0; k < g->depth; k++) g->begin[k] = draw(g);
    return kt_engine_forward(g->engine, p->seq, g->begin, g->depth, 0, NULL, NULL, kt_interrupted,
                             NULL, err);
}

kt_status kt_bench_group_create(kt_engine *engine, int n, int64_t depth, int64_t more,
                                kt_bench_group **out, kt_err *err) {
    kt_bench_group *g;
    kt_engine_info info;
    kt_status st = KT_OK;

    *out = NULL;
    if (n < 1 || n > kt_engine_max_rows(engine))
        return kt_fail(err, KT_E_INVALID, "%d sequences side by side, expected 1 to %lld", n,
                       (long long)kt_engine_max_rows(engine));
    g = calloc(1, sizeof *g);
    if (!g) return kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    kt_engine_describe(engine, &info);
    g->engine = engine;
    g->n = n;
    g->depth = depth;
    g->more = more;
    g->vocab = info.vocab;
    kt_rng_seed(&g->rng, 1);
    if (!make_arrays(g)) st = kt_fail(err, KT_E_NOMEM, "no memory for the benchmark");
    for (int i = 0; st == KT_OK && i < n; i++) st = begin_sequence(g, i, err);
    if (st != KT_OK) {
        kt_bench_group_destroy(g);
        return st;
    }
    *out = g;
    return KT_OK;
}

void kt_bench_group_destroy(kt_bench_group *g) {
    if (!g) return;
    for (int i = 0; g->spans && i < g->n; i++) kt_sequence_destroy(g->spans[i].seq);
    free(g->spans);
    free(g->token);
    free(g->choose);
    free(g->begin);
    free(g->logits);
    free(g);
}

kt_status kt_bench_group_run(kt_bench_group *g, int64_t steps, double *step_ns, kt_err *err) {
    const kt_batch batch = {.rows = g->n,
                            .token = g->token,
                            .n_spans = g->n,
                            .spans = g->spans,
                            .n_out = g->n,
                            .out_row = g->choose};

    for (int i = 0; i < g->n; i++) kt_sequence_truncate(g->spans[i].seq, g->depth);
    for (int64_t s = 0; s < steps; s++) {
        const int64_t start = kt_clock_ns();
        if (kt_interrupted(NULL)) return kt_fail(err, KT_E_CANCELLED, "interrupted");
        for (int i = 0; i < g->n; i++) g->token[i] = draw(g);
        KT_TRY(kt_engine_step(g->engine, &batch, g->logits, NULL, err));
        step_ns[s] = (double)(kt_clock_ns() - start);
    }
    return KT_OK;
}
