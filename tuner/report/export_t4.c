/* The journal's samples in the T4 exchange format of tuning results (FAIR auto-tuning): one result per
 * contender of each cell, slice and plan cell, its raw samples as runtimes, rejected contenders with their
 * invalidity. The format knows no rounds, so that voided ones are left out and pairing is lost; decisions
 * have no place in it, they follow from the samples.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/measure/stats.h"
#include "tuner/report/export.h"
#include "tuner/report/t4_names.h"
#include "tuner/store/sample_record.h"

/* Samples of one contender in one cell. */
typedef struct series {
    char cell[KT_SAMPLE_CELL_BYTES], contender[KT_SAMPLE_CONTENDER_BYTES];
    double *ns; /* owned */
    size_t n, capacity;
} series;

typedef struct series_list {
    series **list; /* owned */
    size_t n, capacity;
} series_list;

/* Rungs of a cell follow each other, so what is looked for is near the end. */
static series *get(series_list *all, const char *cell, const char *contender) {
    for (size_t i = all->n; i-- > 0;)
        if (strcmp(all->list[i]->contender, contender) == 0 &&
            strcmp(all->list[i]->cell, cell) == 0)
            return all->list[i];
    if (all->n == all->capacity) {
        size_t capacity = all->capacity ? 2 * all->capacity : 256;
        series **list = realloc(all->list, capacity * sizeof *list);
        if (!list) return NULL;
        all->list = list;
        all->capacity = capacity;
    }
    all->list[all->n] = calloc(1, sizeof **all->list);
    if (!all->list[all->n]) return NULL;
    snprintf(all->list[all->n]->cell, KT_SAMPLE_CELL_BYTES, "%s", cell);
    snprintf(all->list[all->n]->contender, KT_SAMPLE_CONTENDER_BYTES, "%s", contender);
    return all->list[all->n++];
}

static bool add_sample(series *s, double ns) {
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? 2 * s->capacity : 64;
        double *more = realloc(s->ns, capacity * sizeof *more);
        if (!more) return false;
        s->ns = more;
        s->capacity = capacity;
    }
    s->ns[s->n++] = ns;
    return true;
}

static kt_status add_record(series_list *all, const kt_sample_record *r, kt_err *err) {
    char cell[KT_SAMPLE_CELL_BYTES], contender[KT_SAMPLE_CONTENDER_BYTES];
    bool has_room = true;

    kt_sample_record_cell(r, cell, sizeof cell);
    for (size_t c = 0; has_room && c < kt_json_length(r->live); c++) {
        const kt_json *own = kt_json_at(r->ns, c);
        series *s = get(all, cell, kt_sample_record_contender(r, c, contender, sizeof contender));
        has_room = s != NULL;
        for (size_t i = 0; has_room && i < kt_json_length(own); i++) {
            double v = kt_json_double(kt_json_at(own, i), 0);
            if (v > 0 && !kt_sample_record_is_voided(r, i)) has_room = add_sample(s, v);
        }
    }
    return has_room ? KT_OK : kt_fail(err, KT_E_NOMEM, "export: no memory for the samples");
}

static void put_parameter(void *arg, const char *name, const char *value, bool is_number) {
    kt_json_writer *w = arg;
    kt_json_key(w, name);
    if (is_number)
        kt_json_put_raw(w, value, strlen(value));
    else
        kt_json_put_string(w, value);
}

static void put_configuration(kt_json_writer *w, const char *cell, const char *contender) {
    kt_json_key(w, "configuration");
    kt_json_begin_object(w);
    kt_json_add_string(w, "cell", cell);
    kt_t4_each_parameter(contender, put_parameter, w);
    kt_json_end_object(w);
}

/* Readers of the format disagree on the key of the compile time: both are given. */
static void put_times(kt_json_writer *w, const series *s) {
    kt_json_key(w, "times");
    kt_json_begin_object(w);
    kt_json_add_int(w, "compilation_time", 0);
    kt_json_add_int(w, "compilation", 0);
    kt_json_key(w, "runtimes");
    kt_json_begin_array(w);
    for (size_t i = 0; s && i < s->n; i++) kt_json_put_fixed(w, s->ns[i] * 1e-6, 7);
    kt_json_end_array(w);
    kt_json_end_object(w);
}

static void put_result(kt_json_writer *w, const char *cell, const char *contender, const series *s,
                       const char *invalidity) {
    bool is_correct = strcmp(invalidity, "correct") == 0;
    kt_json_begin_object(w);
    put_configuration(w, cell, contender);
    put_times(w, s);
    kt_json_add_string(w, "invalidity", invalidity);
    kt_json_add_int(w, "correctness", is_correct);
    kt_json_key(w, "measurements");
    kt_json_begin_array(w);
    if (s && s->n > 0) {
        kt_json_begin_object(w);
        kt_json_add_string(w, "name", "time");
        kt_json_add_fixed(w, "value", kt_quantile(s->ns, (int)s->n, 0.25) * 1e-6, 7);
        kt_json_add_string(w, "unit", "ms");
        kt_json_end_object(w);
    }
    kt_json_end_array(w);
    kt_json_key(w, "objectives");
    kt_json_begin_array(w);
    kt_json_put_string(w, "time");
    kt_json_end_array(w);
    kt_json_end_object(w);
}

/* A gate's outcome in the format's vocabulary; NULL for those that passed. */
static const char *invalidity_of(const kt_json *record) {
    const char *outcome = kt_json_text(record, "outcome");
    if (strcmp(kt_json_text(record, "t"), "gate") != 0 || strcmp(outcome, "passed") == 0)
        return NULL;
    if (strcmp(outcome, "timeout") == 0) return "timeout";
    return strcmp(outcome, "crash") == 0 ? "runtime" : "correctness";
}

static void put_metadata(kt_json_writer *w, const kt_export_input *in) {
    char class_name[64];
    kt_machine_class(&in->table->fingerprint, class_name, sizeof class_name);
    kt_json_add_string(w, "schema_version", "1.0.0");
    kt_json_key(w, "metadata");
    kt_json_begin_object(w);
    kt_json_add_string(w, "timeunit", "milliseconds");
    kt_json_add_string(w, "device", class_name);
    kt_json_add_string(w, "workload", in->table->workload);
    kt_json_add_string(w, "tuner", in->table->build);
    kt_json_add_string(w, "date", in->table->created);
    kt_json_key(w, "fingerprint");
    kt_fingerprint_write(&in->table->fingerprint, w);
    kt_json_end_object(w);
}

static kt_status write_t4(const kt_export_input *in, FILE *to, kt_err *err) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};
    series_list all = {0};
    const char *text = NULL;
    size_t size = 0;
    kt_status st = KT_OK;

    for (size_t i = 0; st == KT_OK && i < kt_journal_count(in->journal); i++) {
        kt_sample_record r;
        if (kt_sample_record_read(kt_journal_at(in->journal, i), &r))
            st = add_record(&all, &r, err);
    }
    kt_json_begin_object(&w);
    put_metadata(&w, in);
    kt_json_key(&w, "results");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < all.n; i++)
        put_result(&w, all.list[i]->cell, all.list[i]->contender, all.list[i], "correct");
    for (size_t i = 0; i < kt_journal_count(in->journal); i++) {
        const kt_json *r = kt_journal_at(in->journal, i);
        if (invalidity_of(r))
            put_result(&w, kt_json_text(r, "shape"), kt_json_text(r, "contender"), NULL,
                       invalidity_of(r));
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    if (st == KT_OK) text = kt_json_writer_text(&w, &size);
    if (st == KT_OK && !text) st = kt_fail(err, KT_E_NOMEM, "export: no memory for the text");
    if (text) fprintf(to, "%s\n", text);
    kt_json_writer_deinit(&w);
    for (size_t i = 0; i < all.n; i++) {
        free(all.list[i]->ns);
        free(all.list[i]);
    }
    free(all.list);
    return st;
}

const kt_exporter kt_export_t4 = {.name = "t4",
                                  .summary = "raw samples of the journal in the T4 format",
                                  .needs_journal = true,
                                  .write = write_t4};
