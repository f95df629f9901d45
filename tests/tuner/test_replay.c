/* One journal for several formats, seeds and broken runs of a model: every row of the table can be derived
 * from the samples that decided it. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/tune_home.h"
#include "tuner/store/replay.h"

static void run(const kt_tune_home *h, const char *options, int want) {
    char command[1024], *out;
    int code;

    snprintf(command, sizeof command,
             KT_BUILD_DIR
             "/kttune run --model %s --cells 'm<=3,threads=1' --noisy-ok --widest 1 %s",
             h->model, options);
    code = kt_tune_home_run(command, &out);
    cr_assert(code == want || (want == 6 && code == 0), "%s: exit code %d: %s", command, code, out);
    free(out);
}

/* Every row of the table follows from the journal beside it. Returns the number of rows. */
static size_t derive_all(const kt_tune_home *h, const char *when) {
    static kt_replay r;
    kt_table *t;
    kt_journal *j;
    kt_verdict v;
    kt_err err;
    size_t n;

    cr_assert_eq(kt_table_load(h->table, &t, &err), KT_OK, "%s: %s", when, err.message);
    cr_assert_eq(kt_journal_read(h->journal, &j, &err), KT_OK, "%s: %s", when, err.message);
    n = t->n_rows;
    for (size_t i = 0; i < n; i++) {
        cr_assert_eq(kt_replay_of_row(j, &t->rows[i], &r, &err), KT_OK, "%s: %s", when,
                     err.message);
        cr_assert_eq(kt_replay_decide(&r, &v, &err), KT_OK, "%s: %s", when, err.message);
        cr_expect_eq(v.winner, r.winner, "%s: %s", when, r.cell);
        cr_expect(fabs(v.winner_ns - t->rows[i].time_ns) < 0.11, "%s: %s", when, r.cell);
        cr_expect(r.race_sec > 0 && r.gate_sec > 0 && r.weight > 0, "%s: %s", when, r.cell);
    }
    kt_journal_close(j);
    kt_table_destroy(t);
    return n;
}

Test(replay, formats_seeds_and_broken_runs_share_a_journal, .timeout = 180) {
    kt_tune_home h;
    size_t n;

    kt_tune_home_make(&h);
    run(&h, "--format int4", 0); /* experts INT4, the rest INT8 */
    n = derive_all(&h, "INT4");
    run(&h, "--format int8 --budget 250ms", 6); /* broken off somewhere in a contest */
    derive_all(&h, "INT8, broken off");
    run(&h, "--format int8", 0);
    cr_expect_gt(derive_all(&h, "INT8"), n, "rows of both formats");
    run(&h, "--format bf16", 0);
    n = derive_all(&h, "BF16");
    run(&h, "--format int8 --seed 7 --strategy random", 0);
    cr_expect_eq(derive_all(&h, "another seed and strategy"), n);
    run(&h, "--format int8 --fresh --budget 250ms", 6);
    derive_all(&h, "measured again, broken off");
    run(&h, "--format int8", 0);
    cr_expect_eq(derive_all(&h, "measured again"), n);
    kt_tune_home_remove(&h);
}

Test(replay, only_decisions_can_be_run_again) {
    static kt_replay r;
    kt_tune_home h;
    kt_journal *j;
    kt_table *t;
    kt_table_row row;
    kt_err err;

    kt_tune_home_make(&h);
    run(&h, "--format int8 --cells 'm=1,threads=1,role=experts'", 0);
    cr_assert_eq(kt_table_load(h.table, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_journal_read(h.journal, &j, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_replay_open(j, 0, &r, &err), KT_E_NOT_FOUND, "the session");
    cr_expect_eq(kt_replay_open(j, 1 << 20, &r, &err), KT_E_NOT_FOUND, "past the end");
    row = t->rows[0];
    cr_expect_eq(kt_replay_of_row(j, &row, &r, &err), KT_OK);
    row.time_ns += 1;
    cr_expect_eq(kt_replay_of_row(j, &row, &r, &err), KT_E_NOT_FOUND, "other times");
    cr_expect(strstr(err.message, "moe_ffn"), "%s", err.message);
    kt_journal_close(j);
    kt_table_destroy(t);
    kt_tune_home_remove(&h);
}
