/* How long does a decision take? SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "tuner/selfcheck/goal.h"

enum { DECODE_ROWS = 8 };

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static kt_status measure(kt_check *c, kt_err *err) {
    size_t room = 1, n = 0;
    double *seconds, spent = 0, exhaustive = 0, contenders = 0, cells = 0;

    for (int i = 0; i < c->n_journals; i++) room += c->sim[i].n;
    seconds = calloc(room, sizeof *seconds);
    if (!seconds) return kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");
    for (int i = 0; i < c->n_journals; i++)
        for (size_t k = 0; k < c->sim[i].n; k++) {
            const kt_sim_cell *cell = &c->sim[i].cells[k];
            if (cell->problem.m > DECODE_ROWS || cell->race_sec <= 0) continue;
            seconds[n++] = cell->race_sec + cell->gate_sec;
            cells += cell->is_oracle;
            contenders += cell->is_oracle ? cell->n : 0;
            spent += cell->is_oracle ? cell->race_sec : 0;
            exhaustive += cell->is_oracle ? kt_sim_exhaustive_sec(cell) : 0;
        }
    qsort(seconds, n, sizeof *seconds, by_value);
    if (n > 0)
        kt_check_at_most(c, KT_CHECK_FILED "seconds per decode cell, median", seconds[n / 2], 0.3,
                         "s", "%zu filed cells of up to %d rows: gates, packing, races and holdout",
                         n, DECODE_ROWS);
    else
        kt_check_missing(c, KT_CHECK_FILED "seconds per decode cell, median", 0.3, "s",
                         "no filed journal tells its times; see goal 1");
    if (exhaustive > 0)
        kt_check_at_most(
            c, KT_CHECK_FILED "share of exhaustive time", 100 * spent / exhaustive, 5, "%",
            "races of %.0f filed oracle cells against %d rounds of every valid variant in every "
            "configuration, %.1f per cell",
            cells, KT_SIM_EXHAUSTIVE_ROUNDS, contenders / cells);
    else
        kt_check_missing(c, KT_CHECK_FILED "share of exhaustive time", 5, "%",
                         "no filed oracle journal; see goal 1");
    free(seconds);
    return KT_OK;
}

const kt_goal kt_goal_02_tuning_cost = {2, "tuning cost", measure, true};
