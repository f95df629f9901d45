/* Is there a data set that others can use, and does it say what its tables say?
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/report/export.h"
#include "tuner/selfcheck/check_duels.h"
#include "tuner/store/replay.h"

/* Members that the format demands of each result. */
static bool is_result(const kt_json *r) {
    static const char *const members[] = {"configuration", "times",        "invalidity",
                                          "correctness",   "measurements", "objectives"};
    for (int i = 0; i < 6; i++)
        if (!kt_json_get(r, members[i])) return false;
    return kt_json_type_of(kt_json_get(kt_json_get(r, "times"), "runtimes")) == KT_JSON_ARRAY;
}

/* Export to T4 and read that back. */
static kt_status check_t4(const kt_check *c, const kt_table *t, const kt_journal *j, int *n_results,
                          int *n_bad, kt_err *err) {
    kt_export_input in = {.table = t, .journal = j, .registry = c->registry};
    char *text = NULL;
    size_t size = 0;
    FILE *to = open_memstream(&text, &size);
    kt_json_doc *doc = NULL;
    kt_status st =
        to ? kt_export_t4.write(&in, to, err) : kt_fail(err, KT_E_NOMEM, "t4: no memory");

    if (to) fclose(to);
    if (st == KT_OK) st = kt_json_parse(text, size, NULL, &doc, err);
    if (st == KT_OK) {
        const kt_json *root = kt_json_root(doc), *results = kt_json_get(root, "results");
        *n_bad += !kt_json_get(root, "schema_version") || !kt_json_get(root, "metadata");
        for (size_t i = 0; i < kt_json_length(results); i++) {
            ++*n_results;
            *n_bad += !is_result(kt_json_at(results, i));
        }
    }
    kt_json_destroy(doc);
    free(text);
    return st;
}

/* Rows that do not follow from the samples. */
static int count_underived(const kt_table *t, const kt_journal *j) {
    kt_replay *r = malloc(sizeof *r);
    int bad = 0;

    for (size_t i = 0; i < t->n_rows; i++) {
        kt_verdict v;
        bool ok = r && kt_replay_of_row(j, &t->rows[i], r, NULL) == KT_OK &&
                  kt_replay_decide(r, &v, NULL) == KT_OK && v.winner == r->winner &&
                  fabs(v.winner_ns - t->rows[i].time_ns) < 0.11;
        bad += !ok;
    }
    free(r);
    return bad;
}

static kt_status measure(kt_check *c, kt_err *err) {
    int n_sets = 0, n_oracle = 0, n_results = 0, n_bad = 0, n_rows = 0, n_tuned = 0,
        n_underived = 0;

    for (int i = 0; i < c->n_journals; i++) {
        char name[160];
        const char *model = c->journal_model[i];
        kt_table *t;
        kt_status st;
        if (kt_check_filed_table(c, model, name, sizeof name, &t) != KT_OK) continue;
        n_sets++;
        n_oracle += c->sim[i].n_oracle > 0;
        n_rows += (int)t->n_rows;
        for (size_t k = 0; k < t->n_rows; k++) n_tuned += strcmp(t->rows[k].status, "tuned") == 0;
        n_underived += count_underived(t, c->journal[i]);
        st = check_t4(c, t, c->journal[i], &n_results, &n_bad, err);
        kt_table_destroy(t);
        if (st != KT_OK) return st;
    }
    if (n_sets == 0) {
        char class_name[64];
        kt_check_class(c, class_name, sizeof class_name);
        kt_check_missing(c, KT_CHECK_FILED "exhaustive data sets of this class", 1, "sets",
                         "results/ has no table with its journal for %s", class_name);
        return KT_OK;
    }
    kt_check_at_least(
        c, KT_CHECK_FILED "exhaustive data sets of this class", n_oracle, 1, "sets",
        "%d journals in results/, those with every contender of cells measured count; see goal 1",
        n_sets);
    kt_check_at_most(c, KT_CHECK_FILED "T4 results with members missing", n_bad, 0, "results",
                     "%d results of %d exports; repeat: kttune export TABLE --to t4", n_results,
                     n_sets);
    kt_check_at_most(
        c, KT_CHECK_FILED "rows that do not follow from samples", n_underived, 0, "rows",
        "%d rows (%d tuned, the others kept their default), every contest held again on its "
        "samples",
        n_rows, n_tuned);
    return KT_OK;
}

const kt_goal kt_goal_16_data_set = {16, "open data set", measure, true};
