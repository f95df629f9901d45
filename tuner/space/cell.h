/* A cell is what gets one decision: a problem with its m bucket, on a number of threads.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CELL_H
#define KT_TUNER_CELL_H

#include <stdbool.h>

#include "dispatch/registry/registry.h"
#include "dispatch/table/table.h"
#include "kt/problem.h"
#include "kt/status.h"

#define KT_CELL_KEY_BYTES 256

typedef struct kt_tune_cell {
    kt_problem problem; /* as the runtime asks for it; m = bucket */
    int threads;
    double weight; /* share of serving time it stands for, over all cells 1 */
    double
        mix_weight; /* the part of weight that a workload's mix gave it; the rest is so that every
                          bucket has a row */
    char role[16];  /* "experts", "qkv", "lm_head": for people */
} kt_tune_cell;

typedef struct kt_cell_list {
    kt_tune_cell *cells; /* owned */
    size_t n, capacity;
    char workload[64]; /* model or workload name */
} kt_cell_list;

/* Does the problem have weights that variants pack? The others (attn, conv, delta, index) move what
 * is kept of a sequence, and one plan answer is for one number of rows. */
static inline bool kt_problem_is_packed(const kt_problem *p) {
    return p->op == KT_OP_GEMM || p->op == KT_OP_MOE_FFN;
}

/* Can the tuner race variants of this operation? */
static inline bool kt_op_is_tuned(int op) {
    return op == KT_OP_GEMM || op == KT_OP_MOE_FFN || op == KT_OP_ATTN || op == KT_OP_CONV ||
           op == KT_OP_DELTA || op == KT_OP_INDEX;
}

/* The operations that it can, for messages. */
#define KT_TUNED_OPS "gemm, moe_ffn, attn, conv, delta or index"

void kt_cell_list_deinit(kt_cell_list *list); /* accepts a zeroed list */
kt_status kt_cell_list_add(kt_cell_list *list, const kt_tune_cell *cell, kt_err *err);

/* "moe_ffn wbf16/abf16 m=4 n=768 k=2048 E=128/8 t=2": unique per cell, stable, printable. What
 * other problems have comes before the threads: down=w8c act=swiglu_clamped kv=8 context=4096
 * v=64 window=128. */
char *kt_cell_key(const kt_problem *problem, int threads, char *out, size_t out_bytes);

/* What a problem has beside formats, rows, sizes and experts, each word after a space; "" for
 * most. */
#define KT_CELL_MORE_BYTES 128
char *kt_cell_more(const kt_problem *problem, char *out, size_t out_bytes);

/* Seed of a cell's contest in a session with this seed: with it a decision can be derived again
 * from the journal's samples. */
uint64_t kt_cell_seed(uint64_t session_seed, const kt_tune_cell *cell);
#endif
