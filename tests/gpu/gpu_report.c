/* Figures of what runs on a GPU, as lines and as JSON. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "tests/gpu/gpu_check.h"

void gpu_check_row(gpu_check *c, const char *name, double measured, double bar, const char *unit,
                   bool ok, const char *note) {
    c->n_rows++;
    c->n_wrong += !ok;
    kt_json_begin_object(&c->w);
    kt_json_add_string(&c->w, "name", name);
    kt_json_add_double(&c->w, "measured", measured);
    if (bar >= 0)
        kt_json_add_double(&c->w, "bar", bar);
    else
        kt_json_add_null(&c->w, "bar");
    kt_json_add_string(&c->w, "unit", unit);
    kt_json_add_bool(&c->w, "ok", ok);
    if (*note) kt_json_add_string(&c->w, "note", note);
    kt_json_end_object(&c->w);
    printf("%-60s %12.6g %-14s %s%s%s\n", name, measured, unit, ok ? "ok" : "WRONG",
           *note ? ": " : "", note);
}

int gpu_check_end(gpu_check *c, kt_status st, const kt_err *err) {
    const char *path = c->path;
    FILE *file = path ? fopen(path, "w") : NULL;

    if (st != KT_OK) {
        gpu_check_row(c, "the run", 0, -1, "whole", false, err->message);
    }
    kt_json_end_array(&c->w);
    kt_json_add_int(&c->w, "wrong", c->n_wrong);
    kt_json_end_object(&c->w);
    if (path && !file) fprintf(stderr, "%s: cannot be written\n", path);
    if (file) {
        kt_json_writer_print(&c->w, file);
        if (fclose(file) != 0) fprintf(stderr, "%s: cannot be written\n", path);
    } else {
        kt_json_writer_deinit(&c->w);
    }
    printf("%d figures, %d wrong\n", c->n_rows, c->n_wrong);
    return c->n_wrong || (path && !file) ? 1 : 0;
}
