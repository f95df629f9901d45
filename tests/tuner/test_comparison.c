/* Comparing and merging tables that are made up. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rng.h"
#include "tests/support/fake_variants.h"
#include "tuner/report/comparison.h"
#include "tuner/store/table_union.h"

static kt_table_row make_row(int64_t m, double ns, double half) {
    kt_table_row r = {.problem = {.op = KT_OP_GEMM,
                                  .weights = KT_W_INT8_CHANNEL,
                                  .acts = KT_A_INT8_G32,
                                  .m = m,
                                  .n = 64,
                                  .k = 64},
                      .threads = 1,
                      .variant = "x__scalar",
                      .version = 1,
                      .time_ns = ns,
                      .ci_low = 1 - half,
                      .ci_high = 1 + half,
                      .rounds = 30,
                      .default_variant = "x__scalar",
                      .default_ns = ns,
                      .status = "default"};
    return r;
}

static kt_table *make_table(void) {
    kt_table *t;
    cr_assert_eq(kt_table_create(&t, NULL), KT_OK);
    return t;
}

static void put(kt_table *t, int64_t m, double ns, double half) {
    kt_table_row r = make_row(m, ns, half);
    kt_err err;
    cr_assert_eq(kt_table_put(t, &r, &err), KT_OK, "%s", err.message);
}

Test(comparison, tells_real_changes_from_noise) {
    kt_table *a = make_table(), *b = make_table();
    kt_comparison c;

    put(a, 1, 1000, 0.01), put(b, 1, 1002, 0.01);   /* noise */
    put(a, 2, 1000, 0.01), put(b, 2, 1100, 0.01);   /* slower */
    put(a, 3, 1000, 0.01), put(b, 3, 800, 0.01);    /* faster */
    put(a, 4, 1000, 0.30), put(b, 4, 1100, 0.30);   /* perhaps: too wide */
    put(a, 6, 1000, 0.001), put(b, 6, 1020, 0.001); /* certain, but too little */
    put(a, 8, 1000, 0.01), put(b, 12, 1000, 0.01);  /* not in both */
    cr_assert_eq(kt_comparison_make(a, b, &c, NULL), KT_OK);
    cr_assert_eq(c.n, 5);
    cr_expect(c.only_a == 1 && c.only_b == 1);
    cr_expect_eq(c.least_effect, 0.03);
    kt_comparison_judge(&c, c.least_effect);
    cr_expect(c.n_slower == 1 && c.n_faster == 1);
    for (int i = 0; i < c.n; i++)
        cr_expect_eq(c.list[i].change, c.list[i].a->problem.m == 2   ? KT_CHANGE_SLOWER
                                       : c.list[i].a->problem.m == 3 ? KT_CHANGE_FASTER
                                                                     : KT_CHANGE_NONE);
    kt_comparison_judge(&c, 0.01);
    cr_expect_eq(c.n_slower, 2, "the small one counts when asked for");
    kt_comparison_deinit(&c);
    a->fingerprint.ceilings.aa_noise_p95 = 0.08;
    cr_assert_eq(kt_comparison_make(a, b, &c, NULL), KT_OK);
    cr_expect_eq(c.least_effect, 0.16, "twice the noise of a noisy machine");
    kt_comparison_deinit(&c);
    kt_table_destroy(a);
    kt_table_destroy(b);
}

/* A/A: two tables of the same truth, measured with the noise that their intervals state. */
Test(comparison, equal_tables_raise_no_alarm) {
    int alarms = 0, cells = 0;
    kt_rng rng;

    kt_rng_seed(&rng, 1);
    for (int trial = 0; trial < 40; trial++) {
        kt_table *a = make_table(), *b = make_table();
        kt_comparison c;
        for (int64_t m = 1; m <= 100; m++) {
            double sigma = 0.02;
            put(a, m, 1000 * exp(sigma * (double)kt_rng_normal(&rng)), 1.96 * sigma);
            put(b, m, 1000 * exp(sigma * (double)kt_rng_normal(&rng)), 1.96 * sigma);
        }
        cr_assert_eq(kt_comparison_make(a, b, &c, NULL), KT_OK);
        kt_comparison_judge(&c, c.least_effect);
        alarms += c.n_faster + c.n_slower;
        cells += c.n;
        kt_comparison_deinit(&c);
        kt_table_destroy(a);
        kt_table_destroy(b);
    }
    cr_expect_leq(alarms, cells / 1000, "%d alarms in %d cells", alarms, cells);
}

Test(merge, keeps_the_more_certain_row_in_any_order) {
    static const int order[6][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                    {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    for (int o = 0; o < 6; o++) {
        kt_table *t[3], *all = make_table();
        size_t replaced = 0;
        for (int i = 0; i < 3; i++) t[i] = make_table();
        put(t[0], 1, 1000, 0.02), put(t[1], 1, 1200, 0.01), put(t[2], 1, 900, 0.05);
        put(t[0], 2, 700, 0.02), put(t[1], 2, 600, 0.02);
        put(t[2], 8, 50, 0.02);
        for (int i = 0; i < 3; i++)
            cr_assert_eq(kt_table_merge(all, t[order[o][i]], &replaced, NULL), KT_OK);
        cr_assert_eq(all->n_rows, 3);
        cr_expect_eq(all->rows[0].time_ns, 1200, "the narrowest interval");
        cr_expect_eq(all->rows[1].time_ns, 600, "the faster of equally certain ones");
        cr_expect_eq(all->rows[2].time_ns, 50);
        for (int i = 0; i < 3; i++) kt_table_destroy(t[i]);
        kt_table_destroy(all);
    }
}

Test(merge, old_rows_fill_gaps_while_their_variant_is_the_same) {
    kt_table *to = make_table(), *from = make_table();
    kt_registry *registry;
    kt_table_row row = make_row(1, 1000, 0.01);
    size_t added;

    cr_assert_eq(
        kt_registry_create(kt_fake_variants, kt_fake_variant_count, KT_ISA_AVX2, &registry, NULL),
        KT_OK);
    snprintf(row.variant, sizeof row.variant, "fake_other__avx2");
    kt_table_put(to, &row, NULL);
    row.time_ns = 5;
    kt_table_put(from, &row, NULL); /* its cell is decided already */
    row.problem.m = 2;
    kt_table_put(from, &row, NULL); /* fills a gap */
    row.problem.m = 3;
    row.version = 2;
    kt_table_put(from, &row, NULL); /* another version */
    row.problem.m = 4;
    row.version = 3;
    snprintf(row.variant, sizeof row.variant, "fake_wide__avx512vnni");
    kt_table_put(from, &row, NULL); /* not usable here */
    snprintf(row.variant, sizeof row.variant, "gone__avx2");
    row.problem.m = 6;
    kt_table_put(from, &row, NULL); /* no longer there */
    cr_assert_eq(kt_table_add_missing(to, from, registry, &added, NULL), KT_OK);
    cr_expect_eq(added, 1);
    cr_assert_eq(to->n_rows, 2);
    cr_expect_eq(to->rows[0].time_ns, 1000);
    cr_expect_eq(to->rows[1].problem.m, 2);
    kt_registry_destroy(registry);
    kt_table_destroy(to);
    kt_table_destroy(from);
}
