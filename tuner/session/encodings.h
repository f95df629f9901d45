/* Which encoding of activations cells are tuned with, where kernels read two (a8 and a8p).
 *
 * All rows of a matrix have one, so that what a row gives does not depend on how many rows come
 * with it. Which is faster is the machine's affair: a8p spares products their ports where
 * additions have others (Zen 4 and 5) and spends more operations where they share them (Intel).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_ENCODINGS_H
#define KT_TUNER_ENCODINGS_H

#include "dispatch/plan/plan.h"
#include "tuner/space/cell.h"
#include "tuner/space/layer_list.h"

/* Give cells and plans (each may be NULL) the encodings that serving asks for with this table
 * (NULL = without one), keeps_bits: in its deterministic mode. Their makers take the formats'
 * own. KT_E_NOMEM, and what kt_planner_create says of the table. */
kt_status kt_take_encodings(const kt_registry *registry, const kt_fingerprint *machine,
                            const kt_table *table, bool keeps_bits, kt_cell_list *cells,
                            kt_plan_cells *plans, kt_err *err);

/* Are there two encodings that kernels are fast with for the problem's operation and weights?
 * Then the format's own one, and the other. */
bool kt_has_two_encodings(const kt_registry *registry, const kt_problem *p, kt_act_format *own,
                          kt_act_format *fast);

/* Give cells that two encodings are fast for the one of that name ("a8" or "a8p"). KT_E_INVALID for
 * another name, and when there is no such cell. */
kt_status kt_give_encoding(const kt_registry *registry, const char *name, kt_cell_list *cells,
                           kt_err *err);

/* Cells whose rows decide between encodings: of each operation and weight format that two are
 * fast for, the most valuable cell of up to KT_FEW_ROWS rows and of more, with one encoding and
 * with the other. The caller deinits out, which an error (KT_E_NOMEM) leaves alone. */
#define KT_FEW_ROWS 8
kt_status kt_encoding_probes(const kt_registry *registry, const kt_cell_list *cells,
                             kt_cell_list *out, kt_err *err);

#endif
