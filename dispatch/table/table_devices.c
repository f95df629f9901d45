/* Rows of devices in the table: put, find, read, write. There are few of them, so everything is
 * linear. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table.h"
#include "dispatch/table/table_rows.h"

static const char *const cells[] = {"kernel", "cpu_gpu_split", "prefill_offload"};
enum { MAX_DEVICE_ROWS = 16384 };

static bool is_known(const char *cell) {
    for (size_t i = 0; i < sizeof cells / sizeof *cells; i++)
        if (strcmp(cells[i], cell) == 0) return true;
    return false;
}

static bool is_name(const char *s, size_t size) {
    if (!memchr(s, '\0', size) || !*s) return false;
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > '~') return false;
    return true;
}

static kt_status check(const kt_table_device_row *r, kt_err *err) {
    if (!is_name(r->device, sizeof r->device) || !is_name(r->target, sizeof r->target))
        return kt_fail(err, KT_E_INVALID, "'device' or 'target' is no name");
    if (!memchr(r->cell, '\0', sizeof r->cell) || !is_known(r->cell))
        return kt_fail(err, KT_E_INVALID,
                       "'cell' is '%.15s', expected kernel, cpu_gpu_split or prefill_offload",
                       r->cell);
    if (r->driver < 0 || r->mhz < 0)
        return kt_fail(err, KT_E_INVALID, "'driver' is %d and 'mhz' %d, expected at least 0",
                       r->driver, r->mhz);
    return kt_table_check_row(&r->row, err);
}

static int order(const kt_table_device_row *a, const kt_table_device_row *b) {
    int d = strcmp(a->device, b->device);

    if (d == 0) d = strcmp(a->target, b->target);
    if (d == 0) d = strcmp(a->cell, b->cell);
    if (d) return d;
    return kt_table_key_order(&a->row.problem, a->row.threads, &b->row.problem, b->row.threads);
}

const kt_table_device_row *kt_table_find_device_row(const kt_table *t,
                                                    const kt_table_device_row *key) {
    for (size_t i = 0; i < t->n_device_rows; i++)
        if (order(&t->device_rows[i], key) == 0) return &t->device_rows[i];
    return NULL;
}

kt_status kt_table_put_device_row(kt_table *t, const kt_table_device_row *row, kt_err *err) {
    kt_table_device_row copy = *row, *rows;
    size_t at = 0;

    KT_TRY(check(row, err));
    kt_table_round_row(&copy.row);
    while (at < t->n_device_rows && order(&t->device_rows[at], &copy) < 0) at++;
    if (at < t->n_device_rows && order(&t->device_rows[at], &copy) == 0) {
        t->device_rows[at] = copy;
        return KT_OK;
    }
    if (t->n_device_rows == MAX_DEVICE_ROWS)
        return kt_fail(err, KT_E_INVALID, "table: more than %d rows of devices", MAX_DEVICE_ROWS);
    rows = realloc(t->device_rows, (t->n_device_rows + 1) * sizeof *rows);
    if (!rows)
        return kt_fail(err, KT_E_NOMEM, "table: no memory for %zu rows of devices",
                       t->n_device_rows + 1);
    t->device_rows = rows;
    memmove(&rows[at + 1], &rows[at], (t->n_device_rows - at) * sizeof *rows);
    rows[at] = copy;
    t->n_device_rows++;
    return KT_OK;
}

void kt_table_put_device_value(kt_json_writer *w, const void *value) {
    const kt_table_device_row *r = value;

    kt_json_begin_object(w);
    kt_json_add_string(w, "device", r->device);
    kt_json_add_string(w, "target", r->target);
    kt_json_add_int(w, "driver", r->driver);
    kt_json_add_int(w, "mhz", r->mhz);
    kt_json_add_string(w, "cell", r->cell);
    kt_table_put_row_members(w, &r->row);
    kt_json_end_object(w);
}

static kt_status read_row(const kt_json *o, const char *where, kt_table_device_row *r,
                          kt_err *err) {
    int64_t driver, mhz;

    memset(r, 0, sizeof *r);
    KT_TRY(kt_table_read_text(o, "device", where, r->device, sizeof r->device, err));
    KT_TRY(kt_table_read_text(o, "target", where, r->target, sizeof r->target, err));
    KT_TRY(kt_table_read_text(o, "cell", where, r->cell, sizeof r->cell, err));
    KT_TRY(kt_json_need_int(o, "driver", 0, INT32_MAX, where, &driver, err));
    KT_TRY(kt_json_need_int(o, "mhz", 0, INT32_MAX, where, &mhz, err));
    r->driver = (int)driver, r->mhz = (int)mhz;
    return kt_table_read_row(o, where, &r->row, err);
}

static kt_status add_row(const kt_json *o, const char *where, kt_table *t, kt_err *err) {
    kt_table_device_row r;

    KT_TRY(read_row(o, where, &r, err));
    if (kt_table_find_device_row(t, &r))
        return kt_fail(err, KT_E_FORMAT, "%s: the same cell again", where);
    return kt_table_blame_file(kt_table_put_device_row(t, &r, err), where, err);
}

kt_status kt_table_read_devices(const kt_json *root, const char *path, kt_table *t, kt_err *err) {
    return kt_table_read_list(
        root, path, &(kt_table_list){"devices", "device row", MAX_DEVICE_ROWS, is_known, add_row},
        t, err);
}
