/* kill -9 at random moments of real runs: the journal parses, the table is whole, the next run goes on
 * from there. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/rng.h"
#include "dispatch/table/table.h"
#include "tests/support/tune_home.h"
#include "tuner/store/journal.h"

enum { KILLS = 54, MOST_MS = 220, SLOW_MS = 4000, MAX_DECISIONS = 256 };

#define CELLS "m<=16,threads=1,role=experts" /* eight */

/* What the journal says was decided; a later record of a cell replaces an earlier one. */
typedef struct decisions {
    int n;
    struct {
        char cell[160], variant[64], config[96];
    } of[MAX_DECISIONS];
    size_t records;
} decisions;

static void copy_text(char *to, size_t bytes, const kt_json *object, const char *key) {
    const char *text = kt_json_string(kt_json_get(object, key), NULL);
    cr_assert(text, "a record lacks '%s'", key);
    snprintf(to, bytes, "%s", text);
}

/* Only the torn last line may be lost. */
static void read_journal(const char *path, decisions *d) {
    kt_journal *j;
    kt_err err;

    memset(d, 0, sizeof *d);
    if (access(path, F_OK) != 0) return; /* killed before it was made */
    cr_assert_eq(kt_journal_read(path, &j, &err), KT_OK, "%s", err.message);
    cr_assert_leq(kt_journal_dropped(j), 1, "%zu damaged lines", kt_journal_dropped(j));
    d->records = kt_journal_count(j);
    for (size_t i = 0; i < d->records; i++) {
        const kt_json *r = kt_journal_at(j, i), *row = kt_json_get(r, "row");
        if (!row) continue;
        cr_assert_lt(d->n, MAX_DECISIONS);
        copy_text(d->of[d->n].cell, sizeof d->of[0].cell, r, "cell");
        copy_text(d->of[d->n].variant, sizeof d->of[0].variant, row, "variant");
        copy_text(d->of[d->n++].config, sizeof d->of[0].config, row, "config");
    }
    kt_journal_close(j);
}

/* Run for some milliseconds, then kill -9. */
static void run_and_kill(const kt_tune_home *h, int ms, bool with_budget) {
    const char *argv[] = {
        KT_BUILD_DIR "/kttune",          "run",   "--model", h->model, "--cells", CELLS,
        with_budget ? "--budget" : NULL, "150ms", NULL};
    struct timespec nap = {ms / 1000, ms % 1000 * 1000000L};
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr)) _exit(99);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(98);
    }
    nanosleep(&nap, NULL);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

Test(kill, killed_runs_lose_nothing_that_was_written, .timeout = 240) {
    static decisions before, after;
    kt_tune_home h;
    kt_rng rng;
    char command[1024], *out;
    kt_table *t;
    int tables = 0, code, most_ms = MOST_MS;

    kt_tune_home_make(&h);
    kt_rng_seed(&rng, 1);
    for (int i = 0; i < KILLS; i++) {
        /* Every third run has a budget that ends about then: kills hit the writing of the table. */
        run_and_kill(&h, (int)kt_rng_below(&rng, (uint64_t)most_ms), i % 3 == 2);
        read_journal(h.journal, &after);
        cr_assert_geq(after.records, before.records, "kill %d: %zu records of %zu", i,
                      after.records, before.records);
        cr_assert_geq(after.n, before.n);
        cr_assert_eq(memcmp(after.of, before.of, (size_t)before.n * sizeof *before.of), 0);
        if (access(h.table, F_OK) == 0) {
            kt_err err;
            cr_assert_eq(kt_table_load(h.table, &t, &err), KT_OK, "kill %d: %s", i, err.message);
            kt_table_destroy(t);
            tables++;
        }
        before = after;
        /* A machine on which nothing is written so soon gets more time. */
        if (i % 9 == 8 && before.records == 0 && most_ms < SLOW_MS) most_ms *= 2;
    }
    cr_expect_gt(before.records, 0, "no run came to write anything");

    snprintf(command, sizeof command,
             KT_BUILD_DIR "/kttune run --model %s --cells '" CELLS "' --noisy-ok --widest 1",
             h.model);
    code = kt_tune_home_run(command, &out);
    cr_assert_eq(code, 0, "exit code %d: %s", code, out);
    cr_assert_eq(kt_table_load(h.table, &t, NULL), KT_OK);
    cr_expect_eq(t->n_rows, 8);
    for (int i = 0; i < before.n; i++) { /* the same winners */
        bool found = false;
        for (size_t r = 0; r < t->n_rows; r++)
            found |= strcmp(t->rows[r].variant, before.of[i].variant) == 0 &&
                     strcmp(t->rows[r].config, before.of[i].config) == 0;
        cr_expect(found, "%s: %s is gone", before.of[i].cell, before.of[i].variant);
    }
    printf("%d kills: %zu records, %d decisions kept; a table was there %d times\n", KILLS,
           before.records, before.n, tables);
    kt_table_destroy(t);
    free(out);
    kt_tune_home_remove(&h);
}
