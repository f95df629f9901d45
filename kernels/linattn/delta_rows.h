/* The gated delta rule row by row, once for all widths: the recurrence of delta_lanes.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_DELTA_ROWS_H
#define KT_LINATTN_DELTA_ROWS_H

#include "kernels/linattn/delta_lanes.h"

static void rows_of_group(const kt_delta_call *c, const delta_room *r, int64_t first,
                          int64_t last) {
    for (int64_t row = 0; row < c->rows; row += ROWS)
        rows_of_heads(c, r, first, last, row, c->rows - row < ROWS ? c->rows - row : ROWS);
}

static void walk(const kt_delta_call *c) {
    walk_groups(c, rows_of_group, ROWS_FOR_COPY);
}

#endif
