/* Regret of the plan where rows are missing, replayed from the filed journals.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <string.h>

#include "tuner/session/sim.h"
#include "tuner/session/transfer.h"
#include "tuner/store/zipped.h"

enum { MAX_JOURNALS = 16 };

static void check(const kt_transfer_regret *r, const char *what) {
    cr_expect(r->n > 0 && r->unknown <= r->n, "%s: %d cells", what, r->n);
    cr_expect(r->geomean >= 0 && r->geomean <= r->max + 1e-12 && r->p95 <= r->max && r->max < 10,
              "%s: %g %g %g", what, r->geomean, r->p95, r->max);
    cr_expect_eq(r->max > 0, r->worst[0] && r->chosen[0], "%s", what);
}

/* Whatever machine the test runs on: journals of all machines are replayed, no kernel runs. */
static kt_registry *make_registry(void) {
    kt_registry *r;
    kt_err err;

    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, ~(kt_isa)0, &r, &err),
        KT_OK, "%s", err.message);
    return r;
}

/* The bars of goal 10. How the three compare depends on the defaults of the day: where they are the winners
 * of most cells, a choice without any table is hard to beat. */
Test(transfer, filed_journals_answer_for_what_is_left_out, .timeout = 180) {
    kt_registry *registry = make_registry();
    kt_journal *journals[MAX_JOURNALS];
    const kt_journal *list[MAX_JOURNALS];
    kt_transfer t;
    kt_sim sim = {0};
    glob_t files;
    kt_err err;
    int n = 0, n_oracle = 0;

    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.journal.jsonl" KT_ZIPPED_END, 0, NULL, &files),
                 0);
    for (size_t i = 0; i < files.gl_pathc && n < MAX_JOURNALS; i++, n++) {
        cr_assert_eq(kt_journal_read(files.gl_pathv[i], &journals[n], &err), KT_OK, "%s",
                     err.message);
        cr_assert_eq(kt_sim_load(journals[n], registry, &sim, &err), KT_OK, "%s", err.message);
        if (sim.n_oracle > 0) list[n_oracle++] = journals[n];
        kt_sim_deinit(&sim);
    }
    cr_assert_eq(kt_transfer_measure(registry, (const kt_journal *const *)journals, n, &t, &err),
                 KT_OK, "%s", err.message);
    cr_expect_leq(t.bucket.geomean, 0.02);
    cr_expect_leq(t.heuristic.geomean, 0.12);
    cr_assert_gt(n_oracle, 0, "no oracle is filed");
    cr_assert_eq(kt_transfer_measure(registry, list, n_oracle, &t, &err), KT_OK, "%s", err.message);
    if (t.heuristic.n == 0) cr_skip_test("no filed journal has winners that run here");
    check(&t.bucket, "bucket");
    check(&t.rows, "rows");
    check(&t.shape, "shape");
    check(&t.heuristic, "heuristic");
    cr_expect_leq(t.bucket.geomean, 0.02);
    cr_expect_leq(t.bucket.p95, 0.06);
    cr_expect_leq(t.rows.geomean, 0.02);
    cr_expect_leq(t.rows.p95, 0.06);
    /* what neighbours say must be worth more than no table */
    cr_expect_leq(t.rows.geomean, t.heuristic.geomean + 0.005);
    cr_expect_leq(t.shape.geomean, 0.04);
    cr_expect_leq(t.shape.p95, 0.1);
    cr_expect_leq(t.heuristic.geomean, 0.12);
    for (int i = 0; i < n; i++) kt_journal_close(journals[i]);
    kt_registry_destroy(registry);
    globfree(&files);
}

static void check_sum(const kt_transfer_regret *r, const kt_transfer_regret *a,
                      const kt_transfer_regret *b) {
    double sum = a->n * log1p(a->geomean) + b->n * log1p(b->geomean);

    cr_expect_eq(r->n, a->n + b->n);
    cr_expect_eq(r->unknown, a->unknown + b->unknown);
    cr_expect_eq(r->max, fmax(a->max, b->max));
    cr_expect_float_eq(r->n * log1p(r->geomean), sum, 1e-9);
}

/* Rows, ceilings and variants of one machine say nothing of another's. */
Test(transfer, machines_are_replayed_apart) {
    static const char *const FILES[] = {"zen4-2c-24g", "emeraldrapids-16c-126g"};
    kt_registry *registry = make_registry();
    kt_transfer alone[2], both;
    kt_journal *j[2];
    kt_err err;

    for (int i = 0; i < 2; i++) {
        char path[512];
        snprintf(path, sizeof path, KT_SOURCE_DIR "/results/%s/Qwen3-30B-A3B.journal.jsonl",
                 FILES[i]);
        cr_assert_eq(kt_journal_read(path, &j[i], &err), KT_OK, "%s", err.message);
        cr_assert_eq(
            kt_transfer_measure(registry, (const kt_journal *const *)&j[i], 1, &alone[i], &err),
            KT_OK, "%s", err.message);
        cr_assert_gt(alone[i].heuristic.n, 0);
    }
    for (int i = 0; i < 2; i++) {
        const kt_journal *const order[] = {j[i], j[1 - i]};
        cr_assert_eq(kt_transfer_measure(registry, order, 2, &both, &err), KT_OK, "%s",
                     err.message);
        check_sum(&both.bucket, &alone[0].bucket, &alone[1].bucket);
        check_sum(&both.rows, &alone[0].rows, &alone[1].rows);
        check_sum(&both.shape, &alone[0].shape, &alone[1].shape);
        check_sum(&both.heuristic, &alone[0].heuristic, &alone[1].heuristic);
    }
    for (int i = 0; i < 2; i++) kt_journal_close(j[i]);
    kt_registry_destroy(registry);
}

Test(transfer, figures_of_ratios) {
    double ratios[20];
    kt_transfer_regret r = {0};

    for (int i = 0; i < 20; i++) ratios[i] = i == 7 ? 4 : i == 3 ? 2 : 1;
    kt_transfer_figures(ratios, 20, &r);
    cr_expect_eq(r.n, 20);
    cr_expect(fabs(r.geomean - (pow(8, 1.0 / 20) - 1)) < 1e-12, "%g", r.geomean);
    cr_expect_eq(r.p95, 1, "the 19th of 20");
    cr_expect_eq(r.max, 3);
    kt_transfer_figures(ratios, 0, &r);
    cr_expect(r.n == 0 && r.max == 0);
}
