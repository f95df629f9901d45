/* kttune show: what a table says. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/space/cell.h"
#include "tuner/store/journal.h"
#include "tuner/store/row_json.h"

static void print_row(const kt_table_row *r) {
    char key[KT_CELL_KEY_BYTES];
    double gain = r->time_ns > 0 ? 100 * (r->default_ns / r->time_ns - 1) : 0;
    printf("%-58s %-7s %9.1f us +-%.1f %%  %+6.1f %%  %s%s%s%s\n",
           kt_cell_key(&r->problem, r->threads, key, sizeof key), r->status, r->time_ns / 1e3,
           50 * (r->ci_high - r->ci_low), gain, r->variant, *r->config ? " {" : "", r->config,
           *r->config ? "}" : "");
}

static void print_table(const kt_table *t, const char *path, const kt_workbench *b) {
    char class_name[64];
    double sum = 0;
    size_t tuned = 0;
    kt_err why = {0};
    kt_match match = kt_fingerprint_compare(&t->fingerprint, &b->machine, &why);

    kt_machine_class(&t->fingerprint, class_name, sizeof class_name);
    printf("%s\nmachine %s, workload %s, made %s by %s, A/A noise p95 %.1f %%\n", path, class_name,
           t->workload, t->created, t->build, 100 * t->fingerprint.ceilings.aa_noise_p95);
    if (match != KT_MATCH_SAME)
        printf("%s: %s\n", match == KT_MATCH_OTHER ? "another machine's" : "stale", why.message);
    for (size_t i = 0; i < t->n_rows; i++) {
        print_row(&t->rows[i]);
        if (strcmp(t->rows[i].status, "tuned") != 0 || t->rows[i].time_ns <= 0) continue;
        sum += log(t->rows[i].default_ns / t->rows[i].time_ns);
        tuned++;
    }
    printf("%zu cells, %zu tuned (%+.1f %% geomean), %zu kept the default\n", t->n_rows, tuned,
           tuned ? 100 * expm1(sum / (double)tuned) : 0, t->n_rows - tuned);
}

static void print_json(const kt_table *t) {
    kt_json_writer w = {.indent = 1};
    const char *text;
    kt_json_begin_object(&w);
    kt_json_key(&w, "fingerprint");
    kt_fingerprint_write(&t->fingerprint, &w);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (size_t i = 0; i < t->n_rows; i++) kt_row_write(&t->rows[i], &w);
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, NULL);
    if (text) puts(text);
    kt_json_writer_deinit(&w);
}

static const char *text_of(const kt_json *record, const char *key) {
    const char *s = kt_json_string(kt_json_get(record, key), NULL);
    return s ? s : "";
}

/* Gates that failed, from the journal that lies beside the table. */
static kt_status print_rejected(const char *table_path, kt_err *err) {
    static const char table_end[] = ".kttable.json";
    size_t size = strlen(table_path), end = sizeof table_end - 1, n = 0;
    char path[1024];
    kt_journal *j = NULL;

    if (size > end && strcmp(table_path + size - end, table_end) == 0) size -= end;
    snprintf(path, sizeof path, "%.*s.journal.jsonl", (int)size, table_path);
    KT_TRY(kt_journal_read(path, &j, err));
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        if (strcmp(text_of(r, "t"), "gate") != 0 || strcmp(text_of(r, "outcome"), "passed") == 0)
            continue;
        printf("%-8s %s on %s\n         %s\n", text_of(r, "outcome"), text_of(r, "contender"),
               text_of(r, "shape"), text_of(r, "message"));
        n++;
    }
    printf("%zu rejected in %s\n", n, path);
    kt_journal_close(j);
    return KT_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *model = "tiny-moe", *word[1], *path = NULL;
    bool rejected = false, json = false;
    const kt_switch switches[] = {
        {"model", KT_SWITCH_TEXT, &model, "NAME", "without TABLE: the one serving would use"},
        {"rejected", KT_SWITCH_FLAG, &rejected, NULL,
         "variants the gate refused, from the journal"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "show", "[TABLE] ",
        "Print a dispatch table: winner, time, interval and gain over the default of each cell.",
        "  kttune show --model tiny-moe\n  kttune show mine.kttable.json --rejected\n"};
    kt_workbench b = {0};
    kt_table *t = NULL;
    char where[1024];
    kt_err err;
    kt_status st;
    int n = 0, code = kt_switches_parse(&usage, switches, 3, argc, argv, word, 1, &n);

    (void)context;
    if (code >= 0) return code;
    if (n == 1) path = word[0];
    st = kt_workbench_init(&b, false, &err);
    if (st == KT_OK) st = kt_table_choose(&b, path, model, where, sizeof where, &t, &err);
    if (st == KT_OK && rejected)
        st = print_rejected(where, &err);
    else if (st == KT_OK && json)
        print_json(t);
    else if (st == KT_OK)
        print_table(t, where, &b);
    kt_table_destroy(t);
    kt_workbench_deinit(&b);
    return st == KT_OK ? KT_TUNE_OK : kt_table_verb_fail(&err);
}

const kt_verb kt_verb_show = {.name = "show", .summary = "print a dispatch table", .run = run};
