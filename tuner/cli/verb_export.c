/* kttune export: a table, or the samples behind it, in another format. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/report/export.h"
#include "tuner/report/results.h"

typedef struct export_options {
    const char *table, *model, *to, *out, *results;
    bool json;
} export_options;

static void print_json(const export_options *o, const char *table) {
    const char *const pairs[] = {"table",  table,
                                 "format", o->to ? o->to : "results",
                                 "wrote",  o->results ? o->results : o->out};
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    for (int i = 0; i < 6; i += 2) kt_json_add_string(&w, pairs[i], pairs[i + 1]);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

/* The whole text first: a file is written at once or not at all. */
static kt_status write_text(const kt_exporter *exporter, const kt_export_input *in,
                            const char *path, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    kt_status st;

    if (!to) return kt_fail(err, KT_E_NOMEM, "export: no memory");
    st = exporter->write(in, to, err);
    if (fclose(to) != 0 && st == KT_OK) st = kt_fail(err, KT_E_NOMEM, "export: no memory");
    if (st == KT_OK && path)
        st = kt_file_write(path, text, size, err);
    else if (st == KT_OK && (fwrite(text, 1, size, stdout) != size || fflush(stdout) != 0))
        st = kt_fail(err, KT_E_IO, "export: standard output: cannot be written");
    free(text);
    return st;
}

/* Returns an exit code: what cannot be read is no usable table or journal, what cannot be written a
 * matter of the disk. */
static int export_table(const export_options *o, const kt_exporter *exporter,
                        const kt_workbench *b) {
    kt_table *table = NULL;
    kt_journal *journal = NULL;
    char where[1024], path[1024];
    kt_err err = {0};
    int code = KT_TUNE_OK;
    kt_status st = kt_table_choose(b, o->table, o->model, where, sizeof where, &table, &err);

    if (st == KT_OK) st = kt_journal_path_of(where, path, sizeof path, &err);
    if (st == KT_OK) {
        st = kt_journal_read(path, &journal, &err);
        if (exporter && !exporter->needs_journal) st = KT_OK; /* one section less */
    }
    if (st != KT_OK) {
        code = kt_table_verb_fail(&err);
    } else {
        kt_export_input in = {.table = table, .journal = journal, .registry = b->registry};
        st = o->results ? kt_results_write(o->results, where, path, &table->fingerprint, &err)
                        : write_text(exporter, &in, o->out, &err);
        if (st != KT_OK) code = kt_verb_fail(&err);
        if (st == KT_OK && o->json) print_json(o, where);
    }
    kt_journal_close(journal);
    kt_table_destroy(table);
    return code;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    export_options o = {.model = "tiny-moe"};
    const kt_switch switches[] = {
        {"to", KT_SWITCH_TEXT, &o.to, "FORMAT", "html, markdown, csv, sql, t4, t1 or c-header"},
        {"out", KT_SWITCH_TEXT, &o.out, "FILE", "default standard output"},
        {"results", KT_SWITCH_TEXT, &o.results, "DIR",
         "instead: file the table, its journal, T1 and checksums under DIR/<machine class>"},
        {"model", KT_SWITCH_TEXT, &o.model, "NAME", "without TABLE: the one serving would use"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "say as a JSON object what was written to --out"},
    };
    const kt_verb_usage usage = {
        "export", "[TABLE] --to FORMAT ",
        "Write a table, and the journal beside it, for people and other programs:\n"
        "  html      a self-contained page: roofline, heat maps, races, regret, decisions\n"
        "  markdown  a table to paste into a README or pull request\n"
        "  csv       one line per row and plan cell, for spreadsheets\n"
        "  sql       SQL that makes a database: rows, plans, gates, samples, decisions\n"
        "  t4        the valid raw samples in the exchange format T4 of tuning results\n"
        "  t1        the parameters and their values in the format T1 of tuning problems\n"
        "  c-header  rows as a C array (no plan cells)",
        "  kttune export --model tiny-moe --to html --out report.html\n"
        "  kttune export mine.kttable.json --to sql | sqlite3 mine.db\n"
        "  kttune export results/zen4-2c-24g/tiny-moe.kttable.json --to markdown\n"
        "  kttune export --model tiny-moe --results results\n"};
    const kt_exporter *exporter;
    kt_workbench b = {0};
    const char *word[1];
    kt_err err = {0};
    kt_status st;
    int n = 0, code = kt_switches_parse(&usage, switches, 5, argc, argv, word, 1, &n);

    (void)context;
    if (code >= 0) return code;
    if (n == 1) o.table = word[0];
    if (!o.to == !o.results)
        return kt_switch_fail(&usage, o.to ? "--to and --results exclude each other"
                                           : "--to (or --results) is missing");
    exporter = o.to ? kt_exporter_find(o.to) : NULL;
    if (o.to && !exporter)
        return kt_switch_fail(
            &usage, "--to '%s': expected html, markdown, csv, sql, t4, t1 or c-header", o.to);
    if (o.json && !o.out && !o.results)
        return kt_switch_fail(&usage, "--json needs --out or --results: standard output is taken");
    st = kt_workbench_init(&b, false, &err);
    code = st == KT_OK ? export_table(&o, exporter, &b) : kt_verb_fail(&err);
    kt_workbench_deinit(&b);
    return code;
}

const kt_verb kt_verb_export = {
    .name = "export", .summary = "a table as HTML, Markdown, CSV, SQL, T4 or C", .run = run};
