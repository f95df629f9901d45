/* How much slower choices are than the best ones, over many cells. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_REGRET_H
#define KT_TUNER_REGRET_H

#include <stddef.h>

typedef struct kt_cell_regret {
    double log_regret, weight;
} kt_cell_regret;

typedef struct kt_regret_summary {
    size_t n;
    double geomean, p95,
        max;         /* 0.01 = 1 % slower; the geomean is weighted, the others count cells */
    double within_2; /* share of cells within 2 % of the best */
    /* Share of the weighted mean (its logarithm) that lies in cells beyond the p95. A few heavy
     * cells can lift the mean above the p95, which counts cells. */
    double weight_beyond_p95;
} kt_regret_summary;

/* A choice is among those it is compared with, so a negative regret is noise and counts as none. Sorts
 * the list. n = 0 gives zeros. */
kt_regret_summary kt_regret_summarise(kt_cell_regret *list, size_t n);

#endif
