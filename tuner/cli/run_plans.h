/* The plan cells of `kttune run`: after the kernels are decided, how whole layers run with them.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_RUN_PLANS_H
#define KT_TUNER_RUN_PLANS_H

#include <stdio.h>

#include "tuner/session/layer_cells.h"

/* Decide the cells and put their rows into the table; progress (may be NULL) gets a line, and
 * one per cell that is passed over. Stops at the session's deadline without error: *n_decided
 * says how far it came, undecided ones left out. A cell whose weights do not fit the memory is
 * passed over. */
kt_status kt_run_plans(const kt_layer_session_setup *setup, const kt_plan_cells *cells,
                       kt_table *table, FILE *progress, int *n_decided, kt_layer_spent *spent,
                       kt_err *err);

/* One plan cell of a table, as `run` and `show` print it; noise: A/A p95 of the machine. */
void kt_print_table_plan(const kt_table_plan *plan, double noise);
void kt_write_table_plan(const kt_table_plan *plan, double noise, kt_json_writer *w);

#endif
