/* How threads share the logits of a router: blocks of rows by experts.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ROUTER_BLOCKS_H
#define KT_ROUTER_BLOCKS_H

#include <stdint.h>

/* Blocks of the same experts follow each other, so that a thread that takes several in turn reads
 * few weights. */
typedef struct kt_router_blocks {
    int64_t n_rows, n_experts;
    int64_t rows, experts; /* of a block; less at either end */
    int64_t of_rows;       /* blocks of the same experts */
    int64_t n;             /* of all */
} kt_router_blocks;

#define KT_ROUTER_GRAIN 2 /* blocks that a thread takes at once, at most (base/pool.h) */

/* Rows [row_begin, row_end) by experts [expert_begin, expert_end). */
typedef struct kt_router_span {
    int64_t row_begin, row_end, expert_begin, expert_end;
} kt_router_span;

/* n_rows, n_experts, n_threads >= 1. At least two blocks a thread, for an even share, if blocks of
 * 12 rows by 16 experts are so many. */
kt_router_blocks kt_router_cut(int64_t n_rows, int64_t n_experts, int n_threads);

/* What the first of blocks [begin, end), begin < end, and those behind it of the same experts are.
 * Returns how many these are. */
int64_t kt_router_take(const kt_router_blocks *b, int64_t begin, int64_t end, kt_router_span *out);

#endif
