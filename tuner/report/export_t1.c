/* The tuning problem in the T1 format (the input format of auto-tuning frameworks): which parameters there
 * are, and their values. The format was made for GPUs; what has no meaning here says so.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/report/export.h"
#include "tuner/report/t4_names.h"
#include "tuner/store/sample_record.h"

enum { MOST_NAMES = 64 };

/* Values of one parameter in the order of appearance; borrowed text of a list below. */
typedef struct parameter {
    char name[KT_T4_NAME_BYTES];
    char **values; /* owned */
    size_t n, capacity;
    bool is_number;
} parameter;

typedef struct parameters {
    parameter list[MOST_NAMES];
    int n;
    bool failed; /* no memory */
} parameters;

static void add_value(void *arg, const char *name, const char *value, bool is_number) {
    parameters *all = arg;
    parameter *p = all->list;

    while (p < all->list + all->n && strcmp(p->name, name) != 0) p++;
    if (p == all->list + MOST_NAMES) return;
    if (p == all->list + all->n) {
        all->n++;
        snprintf(p->name, sizeof p->name, "%s", name);
        p->is_number = is_number;
    }
    for (size_t i = p->n; i-- > 0;)
        if (strcmp(p->values[i], value) == 0) return;
    if (p->n == p->capacity) {
        size_t capacity = p->capacity ? 2 * p->capacity : 16;
        char **values = realloc(p->values, capacity * sizeof *values);
        if (!values) {
            all->failed = true;
            return;
        }
        p->values = values;
        p->capacity = capacity;
    }
    p->values[p->n] = strdup(value);
    if (p->values[p->n])
        p->n++;
    else
        all->failed = true;
}

/* Slices and plan cells race as well; all who take part are in the first rung. */
static void collect(const kt_journal *j, parameters *all) {
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        char cell[KT_SAMPLE_CELL_BYTES], contender[KT_SAMPLE_CONTENDER_BYTES];
        kt_sample_record r;
        if (!kt_sample_record_read(kt_journal_at(j, i), &r) || r.rung != 0) continue;
        add_value(all, "cell", kt_sample_record_cell(&r, cell, sizeof cell), false);
        for (size_t c = 0; c < kt_json_length(r.live); c++)
            kt_t4_each_parameter(kt_sample_record_contender(&r, c, contender, sizeof contender),
                                 add_value, all);
    }
}

/* The format wants lists as text, in the syntax that Python, C and JSON share. */
static kt_status put_values(kt_json_writer *w, const parameter *p, kt_err *err) {
    kt_json_writer list = {0};
    const char *text;

    kt_json_begin_array(&list);
    for (size_t i = 0; i < p->n; i++)
        if (p->is_number)
            kt_json_put_raw(&list, p->values[i], strlen(p->values[i]));
        else
            kt_json_put_string(&list, p->values[i]);
    kt_json_end_array(&list);
    text = kt_json_writer_text(&list, NULL);
    if (text) kt_json_add_string(w, "Values", text);
    kt_json_writer_deinit(&list);
    return text ? KT_OK : kt_fail(err, KT_E_NOMEM, "export: no memory for the text");
}

static kt_status put_problem(kt_json_writer *w, const kt_export_input *in, const parameters *all,
                             kt_err *err) {
    kt_json_begin_object(w);
    kt_json_key(w, "General");
    kt_json_begin_object(w);
    kt_json_add_int(w, "FormatVersion", 1);
    kt_json_add_string(w, "TimeUnit", "Milliseconds");
    kt_json_add_string(w, "OutputFormat", "JSON");
    kt_json_end_object(w);
    kt_json_key(w, "ConfigurationSpace");
    kt_json_begin_object(w);
    kt_json_key(w, "TuningParameters");
    kt_json_begin_array(w);
    for (int i = 0; i < all->n; i++) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "Name", all->list[i].name);
        kt_json_add_string(w, "Type", all->list[i].is_number ? "int" : "string");
        KT_TRY(put_values(w, &all->list[i], err));
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_key(w, "Conditions"); /* which combinations exist only the variants can say */
    kt_json_begin_array(w);
    kt_json_end_array(w);
    kt_json_end_object(w);
    kt_json_key(w, "KernelSpecification");
    kt_json_begin_object(w);
    kt_json_add_string(w, "Language", "C");
    kt_json_add_string(w, "KernelName", in->table->workload);
    kt_json_add_string(w, "KernelFile", "kernels/<op>/<variant>.c");
    for (int i = 0; i < 2; i++) { /* required; a CPU has neither */
        kt_json_key(w, i ? "LocalSize" : "GlobalSize");
        kt_json_begin_object(w);
        kt_json_add_string(w, "X", "1");
        kt_json_end_object(w);
    }
    kt_json_end_object(w);
    kt_json_end_object(w);
    return KT_OK;
}

static kt_status write_t1(const kt_export_input *in, FILE *to, kt_err *err) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 3};
    parameters *all = calloc(1, sizeof *all);
    const char *text;
    kt_status st = KT_OK;

    if (!all) return kt_fail(err, KT_E_NOMEM, "export: no memory");
    collect(in->journal, all);
    if (all->failed) st = kt_fail(err, KT_E_NOMEM, "export: no memory for the parameters");
    if (st == KT_OK) st = put_problem(&w, in, all, err);
    text = st == KT_OK ? kt_json_writer_text(&w, NULL) : NULL;
    if (st == KT_OK && !text) st = kt_fail(err, KT_E_NOMEM, "export: no memory for the text");
    if (text) fprintf(to, "%s\n", text);
    kt_json_writer_deinit(&w);
    for (int i = 0; i < all->n; i++) {
        for (size_t v = 0; v < all->list[i].n; v++) free(all->list[i].values[v]);
        free(all->list[i].values);
    }
    free(all);
    return st;
}

const kt_exporter kt_export_t1 = {.name = "t1",
                                  .summary = "the tuning problem in the T1 format",
                                  .needs_journal = true,
                                  .write = write_t1};
