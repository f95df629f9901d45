/* Rows of two tables of one machine in one. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TABLE_UNION_H
#define KT_TUNER_TABLE_UNION_H

#include "dispatch/registry/registry.h"
#include "dispatch/table/table.h"

/* Copy those rows of `from` into `to` whose cell `to` lacks, or holds undecided where `from` has
 * a decision, and whose winner this build still has in the version that was tuned. n_added (rows
 * of cells that `to` lacked) may be NULL. */
kt_status kt_table_add_missing(kt_table *to, const kt_table *from, const kt_registry *registry,
                               size_t *n_added, kt_err *err);

/* Put every row of `from` into `to`, both of one machine. Of two rows of a cell the more certain one stays
 * (narrower interval; then the faster, then the first by name), so that the order of merging does not
 * matter. n_replaced counts rows of `to` that gave way; may be NULL. */
kt_status kt_table_merge(kt_table *to, const kt_table *from, size_t *n_replaced, kt_err *err);

/* Does a row still apply: is its variant usable here, in that version? */
int kt_row_is_current(const kt_table_row *row, const kt_registry *registry);

#endif
