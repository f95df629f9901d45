/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/store/plan_records.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/store/row_json.h"
#include "tuner/store/rung_json.h"

static bool is_text(const kt_json *record, const char *key, const char *want) {
    const char *text = kt_json_string(kt_json_get(record, key), NULL);
    return text && strcmp(text, want) == 0;
}

static void begin(const kt_plan_contest *c, kt_json_writer *w, const char *kind) {
    kt_json_begin_object(w);
    kt_json_add_string(w, "t", kind);
    kt_json_add_string(w, "plan", c->key);
    kt_json_add_int(w, "contest", c->id);
}

static kt_status finish(const kt_plan_contest *c, kt_json_writer *w, kt_err *err) {
    kt_status st;
    kt_json_end_object(w);
    st = kt_journal_append(c->ledger->journal, w, err);
    kt_json_writer_deinit(w);
    return st;
}

static kt_status record(void *arg, int rung, const int *live, int n_live, int rounds, int first,
                        const kt_samples *s, kt_err *err) {
    const kt_plan_contest *c = arg;
    kt_json_writer w = {0};

    begin(c, &w, "plan_rung");
    kt_json_add_int(&w, "rung", rung);
    kt_json_add_int(&w, "rounds", rounds);
    kt_rung_write(&w, c->names, live, n_live, first, s);
    return finish(c, &w, err);
}

/* Is record i of this build and machine, and of this contest? *is_end: what is older was forgotten. */
static bool is_ours(const kt_plan_contest *c, size_t i, const char *kind, bool *is_end) {
    const kt_json *r = kt_journal_at(c->ledger->journal, i);
    *is_end = false;
    if (!c->ledger->usable[i] || !is_text(r, "plan", c->key)) return false;
    *is_end = is_text(r, "t", "plan_forget");
    return !*is_end && is_text(r, "t", kind) &&
           kt_json_int(kt_json_get(r, "contest"), -1) == (int64_t)c->id;
}

static bool replay(void *arg, int rung, const int *live, int n_live, int rounds, kt_samples *s) {
    kt_plan_contest *c = arg;
    bool is_end = false;

    for (size_t i = kt_journal_count(c->ledger->journal); i-- > 0 && !is_end;) {
        const kt_json *r = kt_journal_at(c->ledger->journal, i);
        if (!is_ours(c, i, "plan_rung", &is_end) ||
            !kt_rung_is(r, rung, c->names, live, n_live, rounds) ||
            !kt_rung_take(r, live, n_live, s))
            continue;
        c->n_replayed++;
        return true;
    }
    return false;
}

kt_rung_store kt_plan_contest_store(kt_plan_contest *c) {
    if (!c->ledger) return (kt_rung_store){.arg = c};
    return (kt_rung_store){.arg = c, .replay = replay, .record = record};
}

kt_status kt_plan_contest_forget(const kt_plan_contest *c, kt_err *err) {
    kt_json_writer w = {0};

    if (!c->ledger) return KT_OK;
    for (size_t i = 0; i < kt_journal_count(c->ledger->journal); i++)
        if (is_text(kt_journal_at(c->ledger->journal, i), "plan", c->key)) c->ledger->usable[i] = 0;
    begin(c, &w, "plan_forget");
    return finish(c, &w, err);
}

kt_status kt_plan_contest_decide(const kt_plan_contest *c, const kt_table_plan *plan, kt_err *err) {
    kt_json_writer w = {0};

    if (!c->ledger) return KT_OK;
    begin(c, &w, "plan_decision");
    kt_json_add_string(&w, "cell", plan->cell);
    kt_json_add_int(&w, "tokens", plan->tokens);
    kt_json_add_string(&w, "routing", plan->routing);
    kt_json_add_double(&w, "imbalance", plan->imbalance);
    kt_json_add_double(&w, "predicted", plan->predicted);
    kt_json_key(&w, "row");
    kt_row_write(&plan->row, &w);
    return finish(c, &w, err);
}

bool kt_plan_contest_decided(const kt_plan_contest *c, kt_table_plan *out) {
    bool is_end = false;
    for (size_t i = c->ledger ? kt_journal_count(c->ledger->journal) : 0; i-- > 0 && !is_end;) {
        const kt_json *r = kt_journal_at(c->ledger->journal, i);
        const char *cell = kt_json_string(kt_json_get(r, "cell"), NULL);
        const char *routing = kt_json_string(kt_json_get(r, "routing"), NULL);
        if (!is_ours(c, i, "plan_decision", &is_end) || !cell || !routing ||
            kt_row_read(kt_json_get(r, "row"), "journal", &out->row, NULL) != KT_OK)
            continue;
        snprintf(out->cell, sizeof out->cell, "%s", cell);
        snprintf(out->routing, sizeof out->routing, "%s", routing);
        out->tokens = kt_json_int(kt_json_get(r, "tokens"), 0);
        out->imbalance = kt_json_double(kt_json_get(r, "imbalance"), 0);
        out->predicted = kt_json_double(kt_json_get(r, "predicted"), 0);
        return true;
    }
    return false;
}
