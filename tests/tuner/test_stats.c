/* Order statistics and bootstrap intervals against values worked out by hand or by theory.
 * SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>

#include "tuner/measure/stats.h"

static int is_near(double got, double want, double by) {
    return fabs(got - want) <= by;
}

Test(stats, quantiles_lie_between_order_statistics) {
    static const double x[] = {40, 10, 30, 20, 50}; /* sorted: 10 20 30 40 50 */
    static const double two[] = {3, 1};

    cr_expect_eq(kt_quantile(x, 5, 0), 10);
    cr_expect_eq(kt_quantile(x, 5, 0.25), 20);
    cr_expect_eq(kt_quantile(x, 5, 0.5), 30);
    cr_expect_eq(kt_quantile(x, 5, 1), 50);
    cr_expect(is_near(kt_quantile(x, 5, 0.3), 22, 1e-12)); /* a fifth of the way from 20 to 30 */
    cr_expect(is_near(kt_quantile(two, 2, 0.25), 1.5, 1e-12));
    cr_expect_eq(kt_quantile(two, 1, 0.25), 3);
    cr_expect_eq(x[0], 40, "the input stays as it was");
}

Test(stats, interval_of_equal_values_is_a_point) {
    double x[30];
    kt_interval i;
    kt_rng rng;

    for (int j = 0; j < 30; j++) x[j] = 7;
    kt_rng_seed(&rng, 1);
    i = kt_quantile_interval(x, 30, 0.25, 0.99, &rng);
    cr_expect(i.point == 7 && i.low == 7 && i.high == 7);
}

/* The percentile interval of the median of 1..101 at 95 %: the binomial one is order statistics 41 and
 * 61 (P(41 <= B(101, 1/2) <= 60) = 0.954). The bootstrap of 1000 draws lies within two of it. */
Test(stats, bootstrap_interval_of_a_median_agrees_with_the_binomial_one) {
    double x[101];
    kt_rng rng;

    for (int i = 0; i < 101; i++) x[i] = 1 + (i * 37) % 101;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        kt_rng_seed(&rng, seed);
        kt_interval got = kt_quantile_interval(x, 101, 0.5, 0.95, &rng);
        cr_expect_eq(got.point, 51);
        cr_expect(is_near(got.low, 41, 2), "seed %d: low %g", (int)seed, got.low);
        cr_expect(is_near(got.high, 61, 2), "seed %d: high %g", (int)seed, got.high);
    }
}

/* The sign test's interval by hand: of six values P(Binomial(6, 1/2) <= 0) = 1/64, so that all of them miss the median
 * with 1/32; of nine P(<= 1) = 10/512, so that the outer two of either side's are cut off by one. */
Test(stats, interval_of_a_median_by_the_sign_test) {
    static const double x[] = {9, 1, 8, 2, 7, 3, 6, 4, 5};
    kt_interval i = kt_median_interval(x, 6, 0.95);

    cr_expect(i.low == 1 && i.point == 5 && i.high == 9, "%g %g %g", i.low, i.point, i.high);
    i = kt_median_interval(x, 6, 0.96); /* 1 - 1/32 = 0.969 */
    cr_expect(i.low == 1 && i.high == 9);
    i = kt_median_interval(x, 6, 0.78); /* P(<= 1) = 7/64: 0.781 */
    cr_expect(i.low == 2 && i.high == 8, "%g %g", i.low, i.high);
    i = kt_median_interval(x, 8, 0.95); /* P(<= 1) = 9/256, on both sides 0.07 */
    cr_expect(i.low == 1 && i.high == 9, "%g %g", i.low, i.high);
    i = kt_median_interval(x, 9, 0.95);
    cr_expect(i.low == 2 && i.point == 5 && i.high == 8, "%g %g %g", i.low, i.point, i.high);
    i = kt_median_interval(x, 1, 0.95);
    cr_expect(i.low == 9 && i.point == 9 && i.high == 9);
    i = kt_median_interval(x, 2, 0.95);
    cr_expect(i.low == 1 && i.point == 5 && i.high == 9);
    cr_expect_eq(x[0], 9, "the input stays as it was");
}

/* Placements in two states, as machines have them: 0.8 with probability 0.4, else 1, each with some scatter. The true
 * median is the quantile (0.5 - 0.4) / 0.6 = 1/6 of the upper state. 31/32 of the intervals hold it: 2000 trials
 * have a standard error of 0.4 %, and five of these are allowed. A bootstrap of six values would hold it less. */
Test(stats, interval_of_a_median_holds_it_whatever_the_distribution) {
    const double truth = 1 + 0.02 * (1.0 / 6 - 0.5);
    int covered = 0;
    kt_rng rng;

    kt_rng_seed(&rng, 6);
    for (int trial = 0; trial < 2000; trial++) {
        double x[6];
        for (int i = 0; i < 6; i++)
            x[i] = (kt_rng_double(&rng) < 0.4 ? 0.8 : 1) + 0.02 * (kt_rng_double(&rng) - 0.5);
        kt_interval got = kt_median_interval(x, 6, 0.95);
        covered += got.low <= truth && truth <= got.high;
    }
    cr_expect(covered >= 2000 * (31.0 / 32 - 0.02) && covered <= 2000 * (31.0 / 32 + 0.02), "%d",
              covered);
}

/* Of two values 0 and 1 a resample has the first quartile 0, 0.25 or 1, with chances of 1/4, 1/2 and 1/4. */
Test(stats, resampled_quantiles_lie_between_order_statistics) {
    static const double x[] = {1, 0};
    kt_interval i;
    kt_rng rng;

    kt_rng_seed(&rng, 4);
    i = kt_quantile_interval(x, 2, 0.25, 0.2, &rng);
    cr_expect(i.low == 0.25 && i.point == 0.25 && i.high == 0.25, "%g %g", i.low, i.high);
    i = kt_quantile_interval(x, 2, 0.25, 0.9, &rng);
    cr_expect(i.low == 0 && i.high == 1, "%g %g", i.low, i.high);
}

/* 95 % intervals must cover the truth about 95 times of 100: 400 trials have a standard error of
 * 1.1 %, and the percentile method is known to undercover a little at n = 30. */
Test(stats, intervals_cover_the_truth_as_often_as_they_say) {
    int covered = 0;
    kt_rng rng;

    kt_rng_seed(&rng, 42);
    for (int trial = 0; trial < 400; trial++) {
        double a[30], b[30];
        for (int i = 0; i < 30; i++) {
            a[i] = 1.05 * exp(0.03 * (double)kt_rng_normal(&rng));
            b[i] = exp(0.03 * (double)kt_rng_normal(&rng));
        }
        kt_interval got = kt_paired_log_ratio(a, b, 30, 0.95, &rng);
        covered += got.low <= log(1.05) && log(1.05) <= got.high;
    }
    cr_expect(covered >= 400 * 0.90 && covered <= 400 * 0.99, "covered %d of 400", covered);
}

/* Drift that hits both of a round alike cancels in the pairs, however large. */
Test(stats, pairs_cancel_common_drift) {
    double a[60], b[60];
    kt_rng rng;

    kt_rng_seed(&rng, 3);
    for (int i = 0; i < 60; i++) {
        double drift = 1 + 2 * kt_rng_double(&rng);
        a[i] = 110 * drift;
        b[i] = 100 * drift;
    }
    kt_interval got = kt_paired_log_ratio(a, b, 60, 0.99, &rng);
    cr_expect(is_near(got.point, log(1.1), 1e-12));
    cr_expect(is_near(got.low, log(1.1), 1e-12) && is_near(got.high, log(1.1), 1e-12));
}

Test(stats, same_seed_gives_the_same_interval) {
    double x[40];
    kt_interval first, second;
    kt_rng rng;

    kt_rng_seed(&rng, 9);
    for (int i = 0; i < 40; i++) x[i] = 100 + (double)kt_rng_normal(&rng);
    kt_rng_seed(&rng, 5);
    first = kt_quantile_interval(x, 40, 0.25, 0.95, &rng);
    kt_rng_seed(&rng, 5);
    second = kt_quantile_interval(x, 40, 0.25, 0.95, &rng);
    cr_expect(first.low == second.low && first.high == second.high);
    cr_expect(first.low <= first.point && first.point <= first.high);
}

Test(stats, p_values_of_intervals_are_those_of_the_normal) {
    kt_interval e = {1.959964, 0, 2 * 1.959964}; /* zero lies on the edge of a 95 % interval */
    cr_expect(is_near(kt_interval_p(e, 0.95), 0.05, 1e-4));
    e = (kt_interval){0, -1, 1};
    cr_expect(is_near(kt_interval_p(e, 0.95), 1, 1e-12));
    e = (kt_interval){2.575829, 0, 2 * 2.575829};
    cr_expect(is_near(kt_interval_p(e, 0.99), 0.01, 1e-4));
    cr_expect_eq(kt_interval_p((kt_interval){1, 1, 1}, 0.95), 0);
    cr_expect_eq(kt_interval_p((kt_interval){0, 0, 0}, 0.95), 1);
}

/* The example of Benjamini and Hochberg (1995), section 3.2: 15 p-values, four discoveries at 5 %. */
Test(stats, false_discoveries_are_bounded_as_in_the_paper) {
    static const double p[] = {0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344,
                               0.0459, 0.3240, 0.4262, 0.5719, 0.6528, 0.7590, 1.0000};
    bool marked[15];
    cr_expect_eq(kt_false_discovery(p, 15, 0.05, marked), 4);
    for (int i = 0; i < 15; i++) cr_expect_eq(marked[i], i < 4);
    cr_expect_eq(kt_false_discovery(p + 9, 6, 0.05, marked), 0);
    cr_expect_not(marked[0]);
    /* A value on the limit itself is one; so are all where only the largest keeps its own. */
    cr_expect_eq(kt_false_discovery((const double[]){0.05}, 1, 0.05, marked), 1);
    cr_expect(marked[0]);
    cr_expect_eq(kt_false_discovery((const double[]){0.05, 0.04}, 2, 0.05, marked), 2);
    cr_expect(marked[0] && marked[1]);
    cr_expect_eq(kt_false_discovery((const double[]){0.051, 0.026}, 2, 0.05, marked), 0);
}
