/* How much faster could a cell run than what the tuner chose? SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "tuner/selfcheck/goal.h"
#include "tuner/store/ledger.h"

enum { MOST_ROWS = 64 };

/* The oracle's answers in one journal, newest of each cell. */
static size_t collect(const kt_journal *j, const kt_sim *sim, kt_cell_regret *out, size_t n) {
    for (size_t s = 0; s < sim->n; s++) {
        const kt_sim_cell *cell = &sim->cells[s];
        kt_oracle_result o;
        if (!cell->is_oracle || cell->problem.m > MOST_ROWS) continue;
        for (size_t i = kt_journal_count(j); i-- > 0;) {
            const kt_json *r = kt_journal_at(j, i);
            const char *kind = kt_json_string(kt_json_get(r, "t"), NULL);
            const char *key = kt_json_string(kt_json_get(r, "cell"), NULL);
            if (!kind || strcmp(kind, "oracle") != 0 || !key || strcmp(key, cell->key) != 0 ||
                !kt_oracle_read(r, &o))
                continue;
            out[n++] = (kt_cell_regret){o.regret.point, cell->weight};
            break;
        }
    }
    return n;
}

static kt_status measure(kt_check *c, kt_err *err) {
    kt_cell_regret *list;
    kt_regret_summary r;
    size_t room = 1, n = 0;

    for (int i = 0; i < c->n_journals; i++) room += c->sim[i].n;
    list = calloc(room, sizeof *list);
    if (!list) return kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");
    for (int i = 0; i < c->n_journals; i++) n = collect(c->journal[i], &c->sim[i], list, n);
    r = kt_regret_summarise(list, n);
    free(list);
    if (n == 0) {
        kt_check_missing(
            c, KT_CHECK_FILED "oracle regret, weighted geomean", 1, "%",
            "no oracle journal of this machine class in results/; make one: kttune run "
            "--model Qwen3-30B-A3B --format int4 --cells 'm<=64' --oracle --results results");
        return KT_OK;
    }
    kt_check_at_most(
        c, KT_CHECK_FILED "oracle regret, weighted geomean", 100 * r.geomean, 1, "%",
        "%zu filed cells of up to 64 rows, duel of choice and oracle in fresh rounds; %.0f %% "
        "within 2 %%; repeat: kttune selfcheck --goals 1",
        n, 100 * r.within_2);
    kt_check_at_most(c, KT_CHECK_FILED "oracle regret, p95", 100 * r.p95, 3, "%", "the same cells");
    kt_check_at_most(c, KT_CHECK_FILED "oracle regret, max", 100 * r.max, 8, "%", "the same cells");
    return KT_OK;
}

const kt_goal kt_goal_01_oracle_regret = {1, "oracle regret", measure, true};
