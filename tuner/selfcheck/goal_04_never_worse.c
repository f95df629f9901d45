/* Is a tuned choice ever slower than the default, also when others use the machine?
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"
#include "tuner/space/cell.h"

/* Slower by more than this, beyond doubt. */
static const double worse = 0.01;
enum { MOST_LOADS = 3, MOST_ROWS = 64, QUICK_ROWS = 12 };

/* Tuned rows of all tables that are filed for this machine class. */
typedef struct rows {
    kt_table *table[KT_CHECK_JOURNALS]; /* owned */
    size_t end[KT_CHECK_JOURNALS];      /* of each table's rows in `row` */
    int n_tables;
    const kt_table_row **row; /* [n]; owned, the rows are the tables' */
    size_t n;
    int n_default; /* rows that kept their default */
    char names[160];
} rows;

typedef struct tally {
    int raced, worse;
    int shown;   /* no more than `worse` slower, beyond doubt */
    double most; /* log ratio, beyond doubt, of `slowest`; 0 = no row is slower */
    char slowest[KT_CELL_KEY_BYTES];
} tally;

static void rows_deinit(rows *r) {
    for (int i = 0; i < r->n_tables; i++) kt_table_destroy(r->table[i]);
    free(r->row);
}

/* Those up to 64 rows that this build has in the very version; all of them with --full. */
static bool is_candidate(const kt_check *c, const kt_table_row *row, kt_choice pair[2]) {
    return (c->full || row->problem.m <= MOST_ROWS) &&
           kt_check_choice(c, row->variant, row->config, &row->problem, &pair[0]) &&
           pair[0].variant->version == row->version &&
           kt_check_choice(c, row->default_variant, row->default_config, &row->problem, &pair[1]);
}

static kt_status collect_table(const kt_check *c, rows *r, kt_table *t) {
    const size_t most = r->n + t->n_rows + 1;
    const kt_table_row **row = realloc(r->row, most * sizeof *row);
    kt_choice pair[2];

    if (!row) return KT_E_NOMEM;
    r->row = row;
    for (size_t i = 0; i < t->n_rows; i++) {
        r->n_default += strcmp(t->rows[i].status, "default") == 0;
        if (strcmp(t->rows[i].status, "tuned") != 0 || !is_candidate(c, &t->rows[i], pair))
            continue;
        r->row[r->n++] = &t->rows[i];
    }
    return KT_OK;
}

static kt_status collect(const kt_check *c, rows *r, kt_err *err) {
    for (int j = 0; j < c->n_journals; j++) {
        char name[160];
        const char *model = c->journal_model[j];
        size_t before = r->n, used = strlen(r->names);
        if (kt_check_filed_table(c, model, name, sizeof name, &r->table[r->n_tables]) != KT_OK)
            continue;
        if (collect_table(c, r, r->table[r->n_tables++]) != KT_OK)
            return kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");
        r->end[r->n_tables - 1] = r->n;
        snprintf(r->names + used, sizeof r->names - used, "%s%s %zu", used ? ", " : "", model,
                 r->n - before);
    }
    return KT_OK;
}

static void count(tally *t, const kt_table_row *row, const kt_duel_result *result) {
    const double least = result->ratio.low;

    t->raced++;
    t->worse += least > log1p(worse);
    t->shown += result->ratio.high <= log1p(worse);
    if (least <= t->most) return;
    t->most = least;
    kt_cell_key(&row->problem, row->threads, t->slowest, sizeof t->slowest);
}

/* Rows [begin, end), with weights that rotate as in the run that chose. A race ends early when a
 * slowdown of 1 % is beyond doubt, or ruled out. */
static kt_status race_table(kt_check *c, const rows *r, const kt_table *table, size_t begin,
                            size_t end, tally *t, kt_err *err) {
    const size_t stride = c->quick ? (r->n + QUICK_ROWS - 1) / QUICK_ROWS : 1;
    kt_check_duels d;
    kt_status st = KT_OK;

    kt_check_duels_init(c, &d);
    d.duels.least_effect = log1p(worse);
    d.duels.banks.rotation_bytes =
        kt_duels_rotation(&c->machine->ceilings, c->topology->llc_bytes, table);
    for (size_t i = begin; st == KT_OK && i < end && !kt_check_stopped(c); i += stride) {
        kt_choice pair[2];
        kt_duel_result result;
        if (!is_candidate(c, r->row[i], pair)) continue;
        st = kt_duels_race(&d.duels, &r->row[i]->problem, r->row[i]->threads, pair,
                           KT_COMPARE_ROUNDS, &result, err);
        if (st != KT_OK) break;
        count(t, r->row[i], &result);
    }
    kt_duels_deinit(&d.duels);
    return st == KT_E_CANCELLED && t->raced > 0 ? KT_OK : st;
}

static kt_status race_rows(kt_check *c, const rows *r, tally *t, kt_err *err) {
    for (int i = 0; i < r->n_tables; i++)
        KT_TRY(race_table(c, r, r->table[i], i ? r->end[i - 1] : 0, r->end[i], t, err));
    return KT_OK;
}

static kt_status under_load(kt_check *c, const rows *r, int load, kt_err *err) {
    char title[64];
    kt_hogs hogs = {0};
    tally t = {0};
    kt_status st = kt_hogs_start(&hogs, load, err);

    if (st == KT_OK) st = race_rows(c, r, &t, err);
    kt_hogs_stop(&hogs);
    if (st != KT_OK) return st;
    snprintf(title, sizeof title, "tuned cells slower than the default, %d loads", load);
    if (t.raced == 0) {
        kt_check_missing(c, title, 0, "cells", "no time for a single duel");
        return KT_OK;
    }
    kt_check_at_most(
        c, title, t.worse, 0, "cells",
        "%d tuned rows of results/ (%s; %d others kept the default) race in at most %d rounds; %d "
        "are shown to be at most 1 %% slower; a verdict takes half of them; most: %.1f %% %s",
        t.raced, r->names, r->n_default, KT_COMPARE_ROUNDS, t.shown, 100 * expm1(t.most),
        t.slowest);
    if (2 * t.shown < t.raced) kt_check_bound(c, t.raced - t.shown);
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    rows *r = calloc(1, sizeof *r);
    kt_status st = r ? collect(c, r, err) : kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");

    if (st == KT_OK && r->n == 0)
        kt_check_missing(c, "tuned cells slower than the default", 0, "cells",
                         "no tuned row of this build in results/ for this machine class (%d kept "
                         "the default)",
                         r->n_default);
    for (int load = 0; st == KT_OK && r->n > 0 && load < MOST_LOADS; load++)
        st = under_load(c, r, load, err);
    if (r) rows_deinit(r);
    free(r);
    return st;
}

const kt_goal kt_goal_04_never_worse = {4, "never worse than the default", measure, false};
