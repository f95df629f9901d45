/* kttune merge: tables of machines of one kind become one. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/table_choice.h"
#include "tuner/cli/tune_options.h"
#include "tuner/store/ledger.h"
#include "tuner/store/table_union.h"

enum { MAX_TABLES = 256 };

/* Merge the file at path into t. Machine and model must be those of the first. */
static kt_status merge_file(kt_table *t, const char *path, const char *first, size_t *replaced,
                            kt_err *err) {
    kt_table *other = NULL;
    kt_err why = {0};
    size_t n = 0;
    kt_status st = kt_table_load(path, &other, err);

    if (st != KT_OK) return st;
    if (!kt_same_tuning_machine(&t->fingerprint, &other->fingerprint)) {
        kt_fingerprint_compare(&t->fingerprint, &other->fingerprint, &why);
        st = kt_fail(err, KT_E_MISMATCH, "%s is of another machine than %s: %.300s", path, first,
                     why.message);
    } else if (strcmp(t->workload, other->workload) != 0) {
        st = kt_fail(err, KT_E_MISMATCH, "%s is of model '%s', expected '%s' as in %s", path,
                     other->workload, t->workload, first);
    } else {
        if (strcmp(other->created, t->created) > 0)
            memcpy(t->created, other->created, sizeof t->created);
        st = kt_table_merge(t, other, &n, err);
    }
    kt_table_destroy(other);
    *replaced += n;
    return st;
}

static void print_json(const char *out, size_t tables, const kt_table *t, size_t replaced) {
    kt_json_writer w = {0};
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "table", out);
    kt_json_add_int(&w, "merged", (int64_t)tables);
    kt_json_add_int(&w, "cells", (int64_t)t->n_rows);
    kt_json_add_int(&w, "replaced", (int64_t)replaced);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *out = NULL, *words[MAX_TABLES];
    bool json = false;
    const kt_switch switches[] = {
        {"out", KT_SWITCH_TEXT, &out, "FILE", "the merged table (required)"},
        {"json", KT_SWITCH_FLAG, &json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "merge", "TABLE... --out FILE ",
        "Join tables of one model from machines of one kind: shards of a run, or several runs. Of "
        "two\n"
        "rows of a cell the more certain one stays. The order of the tables does not matter.",
        "  kttune run --model NAME --shard 1/2 --out a.kttable.json    # and 2/2 elsewhere\n"
        "  kttune merge a.kttable.json b.kttable.json --out NAME.kttable.json\n"};
    kt_table *t = NULL;
    kt_err err = {0};
    kt_status st;
    size_t replaced = 0;
    int n = 0, code = kt_switches_parse(&usage, switches, 2, argc, argv, words, MAX_TABLES, &n);

    (void)context;
    if (code >= 0) return code;
    if (n == 0) return kt_switch_fail(&usage, "expected tables");
    if (!out) return kt_switch_fail(&usage, "--out is missing");
    st = kt_table_load(words[0], &t, &err);
    for (int i = 1; st == KT_OK && i < n; i++)
        st = merge_file(t, words[i], words[0], &replaced, &err);
    if (st != KT_OK) {
        kt_table_destroy(t);
        return kt_table_verb_fail(&err);
    }
    st = kt_table_save(t, out, &err);
    if (st == KT_OK && json) print_json(out, (size_t)n, t, replaced);
    if (st == KT_OK && !json)
        printf("%d tables, %zu cells, %zu of them measured more surely in a later one\nwrote %s\n",
               n, t->n_rows, replaced, out);
    kt_table_destroy(t);
    return st == KT_OK ? KT_TUNE_OK : kt_verb_fail(&err);
}

const kt_verb kt_verb_merge = {
    .name = "merge", .summary = "join tables of machines of one kind", .run = run};
