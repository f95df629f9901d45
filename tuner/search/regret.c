/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/search/regret.h"

#include <math.h>
#include <stdlib.h>

static int by_regret(const void *a, const void *b) {
    double x = ((const kt_cell_regret *)a)->log_regret, y = ((const kt_cell_regret *)b)->log_regret;
    return (x > y) - (x < y);
}

kt_regret_summary kt_regret_summarise(kt_cell_regret *list, size_t n) {
    kt_regret_summary out = {.n = n};
    double sum = 0, weight = 0;
    size_t within = 0, at_p95 = n ? (size_t)ceil(0.95 * (double)n) - 1 : 0;
    double beyond = 0;

    if (n == 0) return out;
    for (size_t i = 0; i < n; i++) list[i].log_regret = fmax(0, list[i].log_regret);
    qsort(list, n, sizeof *list, by_regret);
    for (size_t i = 0; i < n; i++) {
        sum += list[i].weight * list[i].log_regret;
        weight += list[i].weight;
        if (i > at_p95) beyond += list[i].weight * list[i].log_regret;
        within += list[i].log_regret <= log1p(0.02);
    }
    out.geomean = weight > 0 ? expm1(sum / weight) : 0;
    out.p95 = expm1(list[at_p95].log_regret);
    out.max = expm1(list[n - 1].log_regret);
    out.weight_beyond_p95 = sum > 0 ? beyond / sum : 0;
    out.within_2 = (double)within / (double)n;
    return out;
}
