/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sched/step_cost.h"

/* Share of the newest step: contexts grow and machines change within some ten steps. */
static const double newest = 0.2;

void kt_step_cost_add(kt_step_cost *c, int64_t rows, int64_t ns) {
    int i = 0;

    if (rows < 1 || ns < 1) return;
    while (i + 1 < KT_COST_BUCKETS && rows >> (i + 1)) i++;
    if (c->rows[i] == 0) {
        c->rows[i] = (double)rows;
        c->ns[i] = (double)ns;
        return;
    }
    c->rows[i] += newest * ((double)rows - c->rows[i]);
    c->ns[i] += newest * ((double)ns - c->ns[i]);
}

double kt_step_cost_ns(const kt_step_cost *c, int64_t rows) {
    int below = -1, above = -1;
    double share;

    for (int i = 0; i < KT_COST_BUCKETS; i++) {
        if (c->rows[i] == 0) continue;
        if (c->rows[i] <= (double)rows) below = i;
        if (c->rows[i] >= (double)rows && above < 0) above = i;
    }
    if (below < 0 && above < 0) return 0;
    if (below < 0) return c->ns[above]; /* fewer rows cost no more */
    if (above < 0) return c->ns[below] * (double)rows / c->rows[below];
    if (above == below) return c->ns[below];
    share = ((double)rows - c->rows[below]) / (c->rows[above] - c->rows[below]);
    return c->ns[below] + share * (c->ns[above] - c->ns[below]);
}

int64_t kt_step_cost_rows(const kt_step_cost *c, int64_t limit_ns, int64_t most) {
    int64_t low = 0, high = most;

    if (kt_step_cost_ns(c, 1) == 0) return 0;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (kt_step_cost_ns(c, middle) <= (double)limit_ns)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}
