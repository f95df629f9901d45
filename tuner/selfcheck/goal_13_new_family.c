/* What does one more variant family cost a machine that is tuned already? SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/selfcheck/check_duels.h"
#include "tuner/space/cell_filter.h"

/* Families that come later: one that changes nothing, as most do, and the dearest case, the usual winner of
 * INT4 experts, whose configurations are most of the contenders in its cells. */
static const struct {
    const char *name, *row;
} families[] = {
    {"w4g32_a8_moe64__avx2", "time to take in a family that loses"},
    {"w4g32_a8_moe64__avx512vnni", "time to take in the winning family"},
};

/* Tune the cells with a journal; seconds and samples it took. */
static kt_status tune(kt_check *c, const kt_registry *registry, const kt_cell_list *cells,
                      const char *journal, double *seconds, kt_session_progress *p, kt_err *err) {
    kt_ledger_session about = {.machine = c->machine,
                               .workload = "selfcheck",
                               .strategy = "auto",
                               .command = "kttune selfcheck --goals 13",
                               .seed = c->seed};
    kt_session_setup setup;
    kt_session *s = NULL;
    kt_ledger ledger;
    int64_t start = kt_clock_ns();
    kt_status st;

    KT_TRY(kt_ledger_open(journal, &about, &ledger, err));
    setup = kt_check_session(c, registry, cells, &ledger, c->seed);
    st = kt_session_create(&setup, &s, err);
    while (st == KT_OK) st = kt_session_step(s, err);
    if (st == KT_E_NOT_FOUND) {
        st = KT_OK;
        kt_session_progress_get(s, p);
        *seconds = (double)(kt_clock_ns() - start) * 1e-9;
    }
    kt_session_destroy(s);
    kt_ledger_close(&ledger);
    return st;
}

/* All variants of this machine but the family. */
static kt_status without(const kt_check *c, const char *family, kt_registry **out, kt_err *err) {
    size_t n = 0, all = kt_registry_count(c->registry);
    const kt_variant **list = calloc(all + 1, sizeof *list);
    kt_status st;

    if (!list) return kt_fail(err, KT_E_NOMEM, "selfcheck: no memory");
    for (size_t i = 0; i < all; i++)
        if (strcmp(kt_registry_at(c->registry, i)->name, family) != 0)
            list[n++] = kt_registry_at(c->registry, i);
    st = kt_registry_create(list, n, c->machine->isa, out, err);
    free(list);
    return st;
}

static kt_status make_cells(const kt_check *c, const char *filter, kt_cell_list *out, kt_err *err) {
    int threads[2] = {1, c->topology->usable_cores};
    kt_shapes shapes;

    memset(out, 0, sizeof *out);
    KT_TRY(kt_shapes_find("Qwen3-30B-A3B", &shapes, NULL, 0, err));
    KT_TRY(kt_cells_of_shapes(&shapes, KT_SERVE_INT4, KT_PROFILE_QUICK, threads,
                              threads[1] > 1 ? 2 : 1, out, err));
    return kt_cells_filter(out, filter, err);
}

/* Only the family's own cells are tuned without it: the contests of the others are what they were, and the
 * second run of everything shows that they are taken over. */
static kt_status add_family(kt_check *c, const kt_cell_list *own, int which, const char *rows,
                            const kt_session_progress *full, kt_err *err) {
    const char *family = families[which].name;
    char journal[2 * KT_CHECK_PATH_BYTES];
    kt_session_progress before, after;
    kt_registry *fewer = NULL;
    double first, second = 0;
    kt_status st;

    if (!kt_registry_find(c->registry, family)) {
        kt_check_missing(c, families[which].row, 10, "%", "%s does not run here", family);
        return KT_OK;
    }
    snprintf(journal, sizeof journal, "%s/family%d.journal.jsonl", c->scratch, which);
    KT_TRY(without(c, family, &fewer, err));
    st = tune(c, fewer, own, journal, &first, &before, err);
    if (st == KT_OK) st = tune(c, c->registry, own, journal, &second, &after, err);
    kt_registry_destroy(fewer);
    if (st != KT_OK) return st;
    kt_check_at_most(
        c, families[which].row, 100 * after.kernel_seconds / full->kernel_seconds, 10, "%",
        "%zu expert cells tuned without %s, then with it: %.2f s in kernels (%.2f s without, %zu "
        "cells untouched), against %.2f s of all %zu cells of the model (%s)",
        own->n, family, after.kernel_seconds, before.kernel_seconds, after.n_reused,
        full->kernel_seconds, full->n_cells, rows);
    return KT_OK;
}

static kt_status measure(kt_check *c, kt_err *err) {
    const char *rows = c->quick ? "m<=4,threads=1" : "m<=8";
    const char *own_rows = c->quick ? "m<=4,threads=1,role=experts" : "m<=8,role=experts";
    char journal[2 * KT_CHECK_PATH_BYTES];
    kt_session_progress full, again;
    kt_cell_list all, own = {0};
    double whole = 0, repeat = 0;
    kt_status st;

    KT_TRY(make_cells(c, rows, &all, err));
    st = make_cells(c, own_rows, &own, err);
    snprintf(journal, sizeof journal, "%s/whole.journal.jsonl", c->scratch);
    if (st == KT_OK) st = tune(c, c->registry, &all, journal, &whole, &full, err);
    if (st == KT_OK) st = tune(c, c->registry, &all, journal, &repeat, &again, err);
    if (st == KT_OK) {
        kt_check_at_most(c, "wall time to tune again what has not changed", 100 * repeat / whole, 5,
                         "%", "%.2f s instead of %.1f s, journal and packing included", repeat,
                         whole);
        kt_check_at_most(c, "cells decided again without cause",
                         (double)(again.n_cells - again.n_reused), 0, "cells",
                         "%zu of %zu cells taken from the journal", again.n_reused, again.n_cells);
    }
    for (int i = 0; st == KT_OK && i < 2; i++) st = add_family(c, &own, i, rows, &full, err);
    kt_cell_list_deinit(&all);
    kt_cell_list_deinit(&own);
    return st;
}

const kt_goal kt_goal_13_new_family = {13, "a new variant family", measure, false};
