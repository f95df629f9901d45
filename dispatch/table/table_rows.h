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

/* A member that is a text of fewer than out_bytes bytes. */
kt_status kt_table_read_text(const kt_json *object, const char *key, const char *where, char *out,
                             size_t out_bytes, kt_err *err);

/* An array of the file, which may be absent. Entries whose "cell" is_known does not name are of a
 * later minor version and left out; `add` reads one and puts it into the table. */
typedef struct kt_table_list {
    const char *key, *entry; /* entry: what an error calls one of them */
    int most;
    bool (*is_known)(const char *cell);
    kt_status (*add)(const kt_json *object, const char *where, kt_table *table, kt_err *err);
} kt_table_list;
kt_status kt_table_read_list(const kt_json *root, const char *path, const kt_table_list *list,
                             kt_table *table, kt_err *err);
/* What a failed put says of an entry, when the file is wrong and not a caller. */
kt_status kt_table_blame_file(kt_status st, const char *where, kt_err *err);

/* One plan as an object, and the array of all of them, which may be absent (table_plans.c). */
void kt_table_put_plan_value(kt_json_writer *w, const void *plan);
kt_status kt_table_read_plans(const kt_json *root, const char *path, kt_table *table, kt_err *err);

/* The same of rows of devices (table_devices.c). */
void kt_table_put_device_value(kt_json_writer *w, const void *row);
kt_status kt_table_read_devices(const kt_json *root, const char *path, kt_table *table,
                                kt_err *err);

#endif
