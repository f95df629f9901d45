/* What a running engine shows of itself: which kernels it took, and which experts are hit.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ENGINE_VIEW_H
#define KT_RUNTIME_ENGINE_VIEW_H

#include "runtime/exec/engine.h"
#include "runtime/exec/expert_map.h"

/* What runs one kind of operation of the model. Names are static or live as long as the engine. */
typedef struct kt_kernel_view {
    const char *role;     /* of the first weight that it multiplies, or the operation's name */
    const char *op;       /* "moe_ffn" */
    const char *weights;  /* the format they are in, or "" */
    const char *one_row;  /* variant for one row (per expert for experts) */
    const char *all_rows; /* and for as many as a step may have */
    bool is_tuned;        /* a row of the table chose it, at least for some numbers of rows */
} kt_kernel_view;

/* How many there are; the first `room` of them into out (may be NULL if 0). Constant data: any
 * thread. */
int kt_engine_kernels(const kt_engine *e, kt_kernel_view *out, int room);

/* Rows by expert, borrowed; NULL = the model has no routed experts. */
kt_expert_map *kt_engine_expert_map(const kt_engine *e);

#endif
