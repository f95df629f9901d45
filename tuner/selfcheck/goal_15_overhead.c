/* Where does a tuning run's time go? SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"

static const double mib = 1048576;

/* Resident memory now, in MiB. The peak would be that of everything this process did before. */
static double resident_mib(void) {
    long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f) return INFINITY;
    if (fscanf(f, "%*d %ld", &pages) != 1) pages = 0;
    fclose(f);
    return pages > 0 ? (double)pages * (double)sysconf(_SC_PAGESIZE) / mib : INFINITY;
}

/* Sessions that are filed tell where their time went. */
static double filed_share(const kt_check *c, double *wall) {
    double inside = 0;
    *wall = 0;
    for (int j = 0; j < c->n_journals; j++)
        for (size_t i = 0; i < kt_journal_count(c->journal[j]); i++) {
            const kt_json *r = kt_journal_at(c->journal[j], i);
            double seconds = kt_json_double(kt_json_get(r, "wall_s"), 0);
            if (seconds < 30) continue; /* a handful of cells is no run */
            *wall += seconds;
            inside += kt_json_double(kt_json_get(r, "kernels_s"), 0) +
                      kt_json_double(kt_json_get(r, "gates_s"), 0);
        }
    return *wall > 0 ? inside / *wall : 0;
}

static void filed_row(kt_check *c) {
    static const char name[] = KT_CHECK_FILED "share of wall in kernels and gates";
    double wall;
    const double share = filed_share(c, &wall);

    if (wall > 0)
        kt_check_at_least(c, name, 100 * share, 85, "%", "%.0f s of filed sessions", wall);
    else
        kt_check_missing(c, name, 85, "%", "no filed session of half a minute");
}

static kt_status measure(kt_check *c, kt_err *err) {
    kt_session_progress p = {0};
    kt_session_setup setup;
    kt_check_cells cells;
    kt_session *s = NULL;
    int64_t start;
    double wall, seconds = c->quick ? 8 : 60, pools = 0, resident;
    kt_status st;

    filed_row(c);
    if (c->filed_class) return KT_OK;
    KT_TRY(kt_check_cells_make(c, "int4", "m<=16", KT_CHECK_CELLS, &cells, err));
    start = kt_clock_ns();
    setup = kt_check_session(c, c->registry, &cells.list, NULL, c->seed);
    setup.deadline_ns = start + (int64_t)(seconds * 1e9);
    st = kt_session_create(&setup, &s, err);
    while (st == KT_OK) st = kt_session_step(s, err);
    wall = (double)(kt_clock_ns() - start) * 1e-9;
    if (s) kt_session_progress_get(s, &p);
    if (st == KT_E_NOT_FOUND || st == KT_E_CANCELLED) st = KT_OK;
    resident = resident_mib();
    if (s) pools = (double)kt_session_pool_bytes(s) / mib;
    kt_session_destroy(s);
    kt_cell_list_deinit(&cells.list);
    if (st != KT_OK) return st;
    if (!c->quick) /* the first seconds of a session are mostly packing */
        kt_check_at_least(
            c, "share of wall in kernels and gates",
            100 * (p.kernel_seconds + p.gate_seconds) / wall, 85, "%",
            "%.0f s of INT4 cells: %.1f %% kernels, %.1f %% gates, %.1f %% packing cold weights; "
            "repeat: kttune selfcheck --goals 15",
            wall, 100 * p.kernel_seconds / wall, 100 * p.gate_seconds / wall,
            100 * p.setup_seconds / wall);
    kt_check_at_most(c, "memory beyond the cold pools", resident - pools, 200, "MiB",
                     "%.0f MiB resident at the end, %.0f MiB of them cold weights", resident,
                     pools);
    return KT_OK;
}

const kt_goal kt_goal_15_overhead = {15, "the tuner's own time", measure, true};
