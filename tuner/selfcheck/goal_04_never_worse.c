/* Is a tuned choice ever slower than the default, also when others use the machine?
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"

/* Slower by more than this, beyond doubt. */
static const double worse = 0.01;
enum { MOST_LOADS = 3, ROUNDS = 60 };

/* Rows of this build that kept their default: they cannot be slower than it. */
static int count_kept(const kt_check *c, const kt_table *t) {
    int n = 0;
    for (size_t i = 0; i < t->n_rows; i++) {
        const kt_table_row *row = &t->rows[i];
        kt_choice choice;
        n += strcmp(row->status, "default") == 0 &&
             kt_check_choice(c, row->variant, row->config, &row->problem, &choice) &&
             choice.variant->version == row->version;
    }
    return n;
}

static kt_status race_rows(kt_check *c, kt_check_duels *d, const kt_table *t, size_t stride,
                           int *n_raced, int *n_worse, kt_err *err) {
    for (size_t i = 0; i < t->n_rows && !kt_check_stopped(c); i += stride) {
        const kt_table_row *row = &t->rows[i];
        kt_choice pair[2];
        kt_duel_result r;
        if (strcmp(row->status, "tuned") != 0 || row->problem.m > (c->quick ? 8 : 64) ||
            !kt_check_choice(c, row->variant, row->config, &row->problem, &pair[0]) ||
            !kt_check_choice(c, row->default_variant, row->default_config, &row->problem, &pair[1]))
            continue;
        KT_TRY(kt_duels_race(&d->duels, &row->problem, row->threads, pair, ROUNDS, &r, err));
        ++*n_raced;
        *n_worse += r.ratio.low > log1p(worse);
    }
    return KT_OK;
}

/* Rows that take part: every stride-th, so that a quick check has a handful. */
static size_t stride_of(const kt_check *c, const kt_table *t) {
    return c->quick && t->n_rows > 12 ? t->n_rows / 12 : 1;
}

static kt_status under_load(kt_check *c, const kt_table *t, const char *name, int load,
                            kt_err *err) {
    char title[64];
    kt_check_duels d;
    kt_hogs hogs = {0};
    int n_raced = 0, n_worse = 0;
    kt_status st;

    kt_check_duels_init(c, &d);
    st = kt_hogs_start(&hogs, load, err);
    if (st == KT_OK) st = race_rows(c, &d, t, stride_of(c, t), &n_raced, &n_worse, err);
    kt_hogs_stop(&hogs);
    kt_duels_deinit(&d.duels);
    if (st != KT_OK) return st;
    snprintf(title, sizeof title, "cells slower than the default, %d loads", load);
    if (n_raced == 0 && count_kept(c, t) == 0)
        kt_check_missing(c, title, 0, "cells", "%s: no row of this build", name);
    else if (n_raced == 0)
        kt_check_at_most(c, title, 0, 0, "cells",
                         "no tuned row up to 64 rows in results/: all %d of this build kept the "
                         "default, which cannot be slower than itself",
                         count_kept(c, t));
    else
        kt_check_at_most(
            c, title, n_worse, 0, "cells",
            "%d tuned rows of results/, %d rounds each, more than 1 %% slower at 99 %%", n_raced,
            ROUNDS);
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    for (int load = 0; load < MOST_LOADS; load++) {
        kt_table *t;
        char name[128];
        kt_status st;
        if (kt_check_filed_table(c, "Qwen3-30B-A3B", name, sizeof name, &t) != KT_OK) {
            kt_check_missing(c, "cells slower than the default", 0, "cells",
                             "no table of Qwen3-30B-A3B in results/ for this machine class");
            return KT_OK;
        }
        st = under_load(c, t, name, load, err);
        kt_table_destroy(t);
        if (st != KT_OK) return st;
    }
    return KT_OK;
}

const kt_goal kt_goal_04_never_worse = {4, "never worse than the default", measure};
