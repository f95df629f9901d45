/* Plan cells: decisions about whole expert layers and steps instead of kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LAYER_LIST_H
#define KT_TUNER_LAYER_LIST_H

#include "dispatch/table/table.h"
#include "tuner/space/workload.h"

#define KT_MAX_PLAN_CELLS 64
#define KT_PLAN_KEY_BYTES 320

typedef struct kt_plan_cell {
    char cell[16];      /* as kt_table_plan.cell, or one that is refused */
    kt_problem problem; /* of the experts, m = tokens */
    int threads;        /* of the pool */
    int64_t tokens;
    char routing[40];
    const char *refused; /* NULL, or why it cannot be decided on this machine; a literal */
} kt_plan_cell;

typedef struct kt_plan_cells {
    int n;
    kt_plan_cell list[KT_MAX_PLAN_CELLS];
} kt_plan_cells;

/* All plan cells of the model on `threads` threads, those that confirm the rows first. A model
 * without routed experts has none. quick: fewer token counts. */
void kt_plan_cells_of(const kt_shapes *shapes, kt_serving_format format, kt_profile profile,
                      int threads, kt_plan_cells *out);

/* "moe_layer w4g32/a8 n=768 k=2048 E=128/8 t=2 T=64 zipf:0.6": unique, stable, printable. */
char *kt_plan_cell_key(const kt_plan_cell *cell, char *out, size_t out_bytes);
/* The same of a decided one. */
char *kt_plan_key(const kt_table_plan *plan, char *out, size_t out_bytes);

#endif
