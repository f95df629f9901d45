/* What a step takes of memory, before there is one. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STEP_BYTES_H
#define KT_RUNTIME_STEP_BYTES_H

#include "runtime/model/model_plan.h"

/* Working memory of kt_step_init for this plan: rows, tables of angles, workspaces of the jobs.
 * SIZE_MAX = too large to count. */
kt_status kt_step_bytes(const kt_model_plan *plan, int n_nodes, int64_t max_context, size_t *bytes,
                        kt_err *err);

/* Floats of a row of all values, as they share memory (kt_step.value_at). */
kt_status kt_step_value_floats(const kt_graph *graph, int64_t *floats, kt_err *err);

#endif
