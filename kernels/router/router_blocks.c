/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/router/router_blocks.h"

/* Kernels take tiles of 4 experts by 6 or 12 rows and read inputs once for 64 experts
 * (kernels/router). */
enum { LEAST_EXPERTS = 16, MOST_EXPERTS = 64, ROWS_STEP = 12, MOST_ROWS = 48 };
enum { FEW_ROWS = 4 };           /* one by one: weights are all that counts */
enum { WANTED = 4, ENOUGH = 2 }; /* blocks a thread */

static int64_t parts(int64_t n, int64_t of) {
    return (n + of - 1) / of;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static kt_router_blocks cut(int64_t n_rows, int64_t n_experts, int64_t experts, int64_t wanted) {
    const int64_t of_experts = parts(n_experts, experts);
    kt_router_blocks b = {.n_rows = n_rows, .n_experts = n_experts, .experts = experts};

    b.rows = least(parts(parts(n_rows * of_experts, wanted), ROWS_STEP) * ROWS_STEP, MOST_ROWS);
    b.of_rows = parts(n_rows, b.rows);
    b.n = b.of_rows * of_experts;
    return b;
}

kt_router_blocks kt_router_cut(int64_t n_rows, int64_t n_experts, int n_threads) {
    int64_t experts = n_rows <= FEW_ROWS ? LEAST_EXPERTS : MOST_EXPERTS;
    kt_router_blocks b = cut(n_rows, n_experts, experts, (int64_t)WANTED * n_threads);

    while (experts > LEAST_EXPERTS && b.n < (int64_t)ENOUGH * n_threads)
        b = cut(n_rows, n_experts, experts /= 2, (int64_t)WANTED * n_threads);
    return b;
}

int64_t kt_router_take(const kt_router_blocks *b, int64_t begin, int64_t end, kt_router_span *out) {
    const int64_t first = begin % b->of_rows, e = begin / b->of_rows * b->experts;
    const int64_t taken = least(end - begin, b->of_rows - first);

    *out = (kt_router_span){.row_begin = first * b->rows,
                            .row_end = least((first + taken) * b->rows, b->n_rows),
                            .expert_begin = e,
                            .expert_end = least(e + b->experts, b->n_experts)};
    return taken;
}
