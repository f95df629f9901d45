/* Does kill -9 cost more than the rung in hand? SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "base/rng.h"
#include "tuner/measure/stats.h"
#include "dispatch/table/table.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/store/row_json.h"

enum { MOST_MS = 400 };

typedef struct tally {
    size_t records;
    int damaged; /* journals with more than a torn last line, or fewer records than before */
    int half_tables;
    int kills;
} tally;

static size_t count_records(const char *path, tally *t) {
    kt_journal *j;
    size_t n;

    if (access(path, F_OK) != 0) return 0;
    if (kt_journal_read(path, &j, NULL) != KT_OK) {
        t->damaged++;
        return t->records;
    }
    n = kt_journal_count(j);
    t->damaged += kt_journal_dropped(j) > 1 || n < t->records;
    kt_journal_close(j);
    return n;
}

static void check_table(const char *path, tally *t) {
    kt_table *table;
    if (access(path, F_OK) != 0) return;
    if (kt_table_load(path, &table, NULL) != KT_OK) {
        t->half_tables++;
        return;
    }
    kt_table_destroy(table);
}

static bool has_text(const kt_json *record, const char *key, const char *text) {
    const char *have = kt_json_string(kt_json_get(record, key), NULL);
    return have && text && strcmp(have, text) == 0;
}

/* Was the cell of record `at` measured afresh (--fresh), or decided anew, after that? */
static bool is_superseded(const kt_journal *j, size_t at) {
    const char *cell = kt_json_string(kt_json_get(kt_journal_at(j, at), "cell"), NULL);
    for (size_t i = at + 1; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        if ((has_text(r, "t", "forget") || kt_json_get(r, "row")) && has_text(r, "cell", cell))
            return true;
    }
    return false;
}

/* The newest decisions of the journal that the final table does not hold. A cell whose interval is
 * wide is none: of two such races the table keeps the one that says more. */
static int lost_winners(const char *journal_path, const char *table_path, int *n) {
    kt_table *table = NULL;
    kt_journal *j = NULL;
    int lost = 0;

    *n = 0;
    if (kt_table_load(table_path, &table, NULL) != KT_OK ||
        kt_journal_read(journal_path, &j, NULL) != KT_OK)
        lost = 1;
    for (size_t i = 0; j && table && i < kt_journal_count(j); i++) {
        const kt_json *row = kt_json_get(kt_journal_at(j, i), "row");
        const kt_table_row *have;
        kt_table_row decided;
        if (!row || kt_row_read(row, "journal", &decided, NULL) != KT_OK || is_superseded(j, i) ||
            kt_row_is_undecided(&decided))
            continue;
        have = kt_table_find(table, &decided.problem, decided.threads);
        lost += !have || strcmp(have->variant, decided.variant) != 0 ||
                strcmp(have->config, decided.config) != 0;
        ++*n;
    }
    kt_journal_close(j);
    kt_table_destroy(table);
    return lost;
}

static int64_t number_of(const kt_json *record, const char *key) {
    return kt_json_int(kt_json_get(record, key), -1);
}

/* Rungs that were in the journal whole, and were measured again all the same. */
static int repeated_rungs(const char *journal_path, int *n) {
    kt_journal *j = NULL;
    int repeated = 0;

    *n = 0;
    if (kt_journal_read(journal_path, &j, NULL) != KT_OK) return 1;
    for (size_t i = 0; i < kt_journal_count(j); i++) {
        const kt_json *r = kt_journal_at(j, i);
        const char *cell = kt_json_string(kt_json_get(r, "cell"), NULL);
        if (!has_text(r, "t", "rung")) continue;
        ++*n;
        for (size_t k = i; k-- > 0;) {
            const kt_json *old = kt_journal_at(j, k);
            if (number_of(old, "contest") != number_of(r, "contest") &&
                !has_text(old, "t", "forget"))
                continue;
            if (!has_text(old, "cell", cell)) continue;
            if (has_text(old, "t", "forget")) break;
            if (!has_text(old, "t", "rung") || number_of(old, "rung") != number_of(r, "rung"))
                continue;
            repeated++;
            break;
        }
    }
    kt_journal_close(j);
    return repeated;
}

static kt_status measure(kt_check *c, kt_err *err) {
    const char *arguments[] = {"run",        "--model", NULL, "--cells", "m<=16,role=experts",
                               "--noisy-ok", "--fresh", NULL};
    int kills = c->quick ? 20 : 200, lost, n_decisions, n_rungs, repeated, code;
    kt_check_home home;
    tally t = {0};
    kt_rng rng;

    kt_rng_seed(&rng, c->seed);
    KT_TRY(kt_check_home_make(c, "kills", &home, err));
    arguments[2] = home.model;
    for (; t.kills < kills && !kt_check_stopped(c); t.kills++) {
        /* Now and then everything is measured again, so that kills meet all parts of a run. */
        arguments[6] = t.kills % 10 == 0 ? "--fresh" : NULL;
        if (kt_check_run(c, &home, arguments, (int)kt_rng_below(&rng, MOST_MS), NULL) == -2)
            return kt_fail(err, KT_E_IO, "%s could not be run", c->program);
        t.records = count_records(home.journal, &t);
        check_table(home.table, &t);
    }
    arguments[6] = NULL;
    code = kt_check_run(c, &home, arguments, -1, NULL);
    lost = lost_winners(home.journal, home.table, &n_decisions);
    repeated = repeated_rungs(home.journal, &n_rungs);
    kt_check_at_most(c, "rungs measured twice after resuming", repeated, 0, "rungs",
                     "%d whole rungs in the journal of the killed runs: what a kill costs is the "
                     "one in hand",
                     n_rungs);
    kt_check_at_most(c, "journals damaged by kill -9", t.damaged, 0, "of kills",
                     "%d kills at random moments within %d ms of a small run, so at most %.1f %% "
                     "at 95 %%; a torn "
                     "last line is allowed",
                     t.kills, MOST_MS,
                     100 * kt_rate_upper(t.damaged, t.kills > 0 ? t.kills : 1, 0.95));
    kt_check_at_most(c, "tables half written", t.half_tables, 0, "of kills", "the same kills");
    kt_check_at_most(
        c, "winners lost after resuming", lost, 0, "cells",
        "%d decisions of the killed runs against the table of the run that finished (exit "
        "code %d)",
        n_decisions, code);
    return KT_OK;
}

const kt_goal kt_goal_08_kills = {8, "kill -9", measure, false};
