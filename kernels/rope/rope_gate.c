/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/rope/rope_gate.h"

#include <stdlib.h>

#include "base/err.h"
#include "base/rng.h"
#include "kernels/rope/rope_ref.h"
#include "kernels/rope/rope_table.h"

/* One table row per problem row: positions index the table, its angles are far apart. */
static void fill(const kt_rope_call *c, int64_t rows, float *table, int32_t *positions,
                 kt_rng *rng) {
    for (int64_t row = 0; row < rows; row++) {
        int64_t position = row == 0 ? 0 : (int64_t)kt_rng_below(rng, 1000001);
        kt_rope_table(1e6, c->rotary_dim, position, 1, table + row * c->rotary_dim);
        positions[row] = (int32_t)row;
    }
    for (int64_t i = 0; i < rows * c->ld; i++) {
        float n = kt_rng_normal(rng);
        c->x[i] = i % 97 == 0 ? n * 1e20f : i % 89 == 0 ? n * 1e-38f : n;
    }
}

static kt_status check(const kt_variant *v, const kt_problem *p, uint64_t seed, float *x,
                       float *table, int32_t *positions, double *want, double *bound,
                       kt_gate_report *report, kt_err *err) {
    int64_t width = p->n * p->k;
    for (int pass = 0; pass < 4; pass++) {
        kt_rope_call call = {.x = x,
                             .ld = width,
                             .heads = p->n,
                             .head_dim = p->k,
                             .rotary_dim = pass & 1 ? p->k / 4 * 2 : p->k / 2 * 2,
                             .cos_sin = table,
                             .positions = positions,
                             .interleaved = pass >> 1,
                             .row_begin = 0,
                             .row_end = p->m};
        kt_rng rng;
        kt_rng_seed(&rng, seed * 4 + (uint64_t)pass);
        fill(&call, p->m, table, positions, &rng);
        for (int64_t row = 0; row < p->m; row++)
            kt_rope_ref_row(&call, row, want + row * width, bound + row * width);
        v->rope(&call);
        KT_TRY(kt_gate_compare(v, p, seed, x, want, bound, (size_t)(p->m * width), report, err));
    }
    return KT_OK;
}

kt_status kt_rope_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err) {
    size_t m = (size_t)problem->m, n = m * (size_t)problem->n * (size_t)problem->k;
    float *x = malloc(n * sizeof *x + 1),
          *table = malloc(m * (size_t)problem->k * sizeof *table + 1);
    int32_t *positions = malloc(m * sizeof *positions + 1);
    double *want = malloc(n * sizeof *want + 1), *bound = malloc(n * sizeof *bound + 1);
    kt_status st = KT_OK;

    if (v->accepts) st = v->accepts(problem, config, err);
    if (st == KT_OK && !(x && table && positions && want && bound))
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu floats", v->name, n);
    if (st == KT_OK) st = check(v, problem, seed, x, table, positions, want, bound, report, err);
    free(x);
    free(table);
    free(positions);
    free(want);
    free(bound);
    return st;
}
