/* Regret of the plan where rows are missing, replayed from the filed journals.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <glob.h>
#include <math.h>
#include <string.h>

#include "base/cpu.h"
#include "tuner/session/sim.h"
#include "tuner/session/transfer.h"

enum { MAX_JOURNALS = 16 };

static void check(const kt_transfer_regret *r, const char *what) {
    cr_expect(r->n > 0 && r->unknown <= r->n, "%s: %d cells", what, r->n);
    cr_expect(r->geomean >= 0 && r->geomean <= r->max + 1e-12 && r->p95 <= r->max && r->max < 10,
              "%s: %g %g %g", what, r->geomean, r->p95, r->max);
    cr_expect_eq(r->max > 0, r->worst[0] && r->chosen[0], "%s", what);
}

/* The bars of goal 10. How the three compare depends on the defaults of the day: where they are the winners
 * of most cells, a choice without any table is hard to beat. */
Test(transfer, filed_journals_answer_for_what_is_left_out, .timeout = 180) {
    kt_registry *registry;
    kt_journal *journals[MAX_JOURNALS];
    const kt_journal *list[MAX_JOURNALS];
    kt_transfer t;
    kt_sim sim = {0};
    kt_cpu cpu;
    glob_t files;
    kt_err err;
    int n = 0, n_oracle = 0;

    kt_cpu_probe(&cpu);
    cr_assert_eq(
        kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, cpu.isa, &registry, &err),
        KT_OK);
    cr_assert_eq(glob(KT_SOURCE_DIR "/results/*/*.journal.jsonl", 0, NULL, &files), 0);
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
