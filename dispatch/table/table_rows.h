/* Shared by the files of this folder only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_TABLE_ROWS_H
#define KT_DISPATCH_TABLE_ROWS_H

#include "base/json.h"
#include "dispatch/table/table.h"

/* Does the row make sense? The message names the field. */
kt_status kt_table_check_row(const kt_table_row *row, kt_err *err);
/* Numbers as the file holds them. */
void kt_table_round_row(kt_table_row *row);
/* Room for n_rows rows. */
kt_status kt_table_reserve(kt_table *table, size_t n_rows, kt_err *err);

/* A row's members, into and out of an object (table_text.c). */
void kt_table_put_row_members(kt_json_writer *w, const kt_table_row *row);
kt_status kt_table_read_row(const kt_json *object, const char *where, kt_table_row *row,
                            kt_err *err);

/* The same from a line as kt_table_save writes it; false when it is spelled otherwise or makes no sense
 * (table_scan.c). */
bool kt_table_scan_row(const char *line, size_t size, kt_table_row *row);

/* One plan as an object, and the array of all of them, which may be absent (table_plans.c). */
void kt_table_put_plan_value(kt_json_writer *w, const void *plan);
kt_status kt_table_read_plans(const kt_json *root, const char *path, kt_table *table, kt_err *err);

/* The same of rows of devices (table_devices.c). */
void kt_table_put_device_value(kt_json_writer *w, const void *row);
kt_status kt_table_read_devices(const kt_json *root, const char *path, kt_table *table,
                                kt_err *err);

#endif
