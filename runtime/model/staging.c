/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/staging.h"

#include <string.h>

#include "kernels/formats/format.h"
#include "kernels/formats/p64.h"
#include "runtime/loader/matrix_source.h"
#include "runtime/model/bytes.h"

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

static size_t plain_bytes(kt_weight_format id, int64_t n, int64_t k) {
    size_t data, scales;

    if (kt_format_sizes(kt_format_find(id), n, k, &data, &scales, NULL) != KT_OK) return SIZE_MAX;
    return kt_bytes_add(kt_bytes_round(data), kt_bytes_round(scales));
}

int64_t kt_staging_rows(kt_weight_format format) {
    const int64_t shared = kt_format_find(format)->scale_rows;

    return shared > KT_P64_ROWS ? shared : KT_P64_ROWS;
}

bool kt_staging_has_blocks(const kt_problem_plan *plan) {
    return strcmp(plan->choices.choice[0].variant->layout, "p64") == 0;
}

/* Gate and up are packed together. */
static size_t block_bytes(const kt_problem *p) {
    const kt_weight_format down = p->down != KT_W_NONE ? p->down : p->weights;
    const size_t rows = plain_bytes(p->weights, kt_staging_rows(p->weights), p->k);

    if (p->op == KT_OP_GEMM) return rows;
    return larger(kt_bytes_times(rows, 2), plain_bytes(down, kt_staging_rows(down), p->n));
}

/* Floats that are converted at a time to become this run: rows that are stored as they stay are
 * copied. */
static size_t run_scratch(const kt_weight *w, const kt_run *run, kt_quant quant) {
    /* Rows of down are those of n numbers, and so are those of heads that are stored turned. */
    const int64_t k = w->kind != KT_WEIGHT_MATRIX && w->n > w->k ? w->n : w->k;
    int64_t rows = KT_SOURCE_FEW;

    for (int i = run->first; i < run->first + run->n; i++) {
        const kt_weight_format format = kt_weight_becomes(w, i, quant);
        const int64_t at_once = kt_matrix_source_rows(kt_format_find(format));
        if (w->part[i].stored != format && at_once > rows) rows = at_once;
    }
    return kt_bytes_round(kt_bytes_times(sizeof(float) * (size_t)rows, k));
}

/* A head is turned: two plain copies. */
static size_t head_bytes(const kt_weight *w) {
    if (w->kind != KT_WEIGHT_HEADS) return 0;
    return kt_bytes_round(kt_bytes_times(2 * sizeof(uint16_t), w->n * w->k));
}

/* Slices for the problems, without scratch. */
static void count_problems(const kt_model_plan *plan, int n_nodes, kt_staging *out) {
    for (int i = 0; i < plan->n_problems; i++) {
        const kt_problem_plan *p = &plan->problems[i];
        if (kt_staging_has_blocks(p))
            out->slice = larger(out->slice, block_bytes(&p->problem));
        else
            out->whole =
                larger(out->whole, plain_bytes(p->problem.weights, p->problem.n, p->problem.k));
        if (n_nodes > 1 && p->problem.op == KT_OP_MOE_FFN)
            out->packed = larger(out->packed, p->bytes);
    }
}

void kt_staging_count(const kt_model_plan *plan, int n_nodes, int threads, kt_staging *out) {
    const kt_graph *g = plan->graph;

    *out = (kt_staging){.n_slices = threads};
    count_problems(plan, n_nodes, out);
    for (int i = 0; i < g->n_weights; i++) {
        kt_run runs[KT_WEIGHT_PARTS];
        const int n = kt_weight_runs(&g->weights[i], plan->quant, runs);
        for (int r = 0; r < n; r++)
            out->scratch = larger(out->scratch, run_scratch(&g->weights[i], &runs[r], plan->quant));
        out->slice = larger(out->slice, head_bytes(&g->weights[i]));
    }
    out->slice = kt_bytes_add(kt_bytes_add(out->slice, out->scratch), out->packed);
    if (out->slice && KT_STAGING_BUDGET / out->slice < (size_t)threads)
        out->n_slices = (int)(KT_STAGING_BUDGET / out->slice);
    if (out->n_slices < 1) out->n_slices = 1;
    out->total = kt_bytes_add(kt_bytes_times(out->slice, out->n_slices), out->whole);
}
