/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/heat_lines.h"

#include "tuner/space/cell.h"

int kt_heat_lines(const kt_table *t, size_t first[KT_HEAT_LINES]) {
    int n = 0;
    for (size_t i = 0; i < t->n_rows && n < KT_HEAT_LINES; i++) {
        const kt_table_row *r = &t->rows[i], *before = r - 1;
        if (i > 0 && r->threads == before->threads &&
            kt_same_weights(&r->problem, &before->problem))
            continue;
        first[n++] = i;
    }
    return n;
}
