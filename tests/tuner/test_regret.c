/* SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <math.h>

#include "tuner/search/regret.h"

Test(regret, weights_count_for_the_mean_and_cells_for_the_tail) {
    kt_cell_regret list[20];
    kt_regret_summary s;

    for (int i = 0; i < 20; i++)
        list[i] = (kt_cell_regret){log1p(0.001 * i), i == 19 ? 0.5 : 0.5 / 19};
    s = kt_regret_summarise(list, 20);
    cr_expect_eq(s.n, 20);
    cr_expect_float_eq(s.max, 0.019, 1e-12);
    cr_expect_float_eq(s.p95, 0.018, 1e-12);
    cr_expect(s.geomean > 0.0135 && s.geomean < 0.0145, "%.5f", s.geomean);
    cr_expect_eq(s.within_2, 1);
    /* half of the weight is in the worst cell: 0.0188 of 0.0094 + 0.0045 */
    cr_expect(s.weight_beyond_p95 > 0.67 && s.weight_beyond_p95 < 0.69, "%.4f",
              s.weight_beyond_p95);
}

/* Noise may say that a choice beats the best it was among. */
Test(regret, negative_regret_is_none) {
    kt_cell_regret list[] = {{-0.5, 1}, {0.03, 1}};
    kt_regret_summary s = kt_regret_summarise(list, 2);
    cr_expect_float_eq(s.geomean, expm1(0.015), 1e-12);
    cr_expect_eq(s.within_2, 0.5);
    cr_expect_eq(kt_regret_summarise(list, 0).max, 0);
}
