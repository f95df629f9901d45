/* Shared by the files of this folder only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_TABLE_ROWS_H
#define KT_DISPATCH_TABLE_ROWS_H

#include "dispatch/table/table.h"

/* Does the row make sense? The message names the field. */
kt_status kt_table_check_row(const kt_table_row *row, kt_err *err);
/* Room for n_rows rows. */
kt_status kt_table_reserve(kt_table *table, size_t n_rows, kt_err *err);

#endif
