/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sched/step_cost.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Share of the newest step: contexts grow and machines change within some ten steps. Other work
 * only makes steps slower, so a quicker one says more. */
static const double newest = 0.2, newest_of_quicker = 0.5;

void kt_step_cost_add(kt_step_cost *c, int64_t rows, int64_t ns) {
    double share;
    int i = 0;

    if (rows < 1 || ns < 1) return;
    while (i + 1 < KT_COST_BUCKETS && rows >> (i + 1)) i++;
    if (c->rows[i] == 0) {
        c->rows[i] = (double)rows;
        c->ns[i] = (double)ns;
        return;
    }
    share = (double)ns / (double)rows < c->ns[i] / c->rows[i] ? newest_of_quicker : newest;
    c->rows[i] += share * ((double)rows - c->rows[i]);
    c->ns[i] += share * ((double)ns - c->ns[i]);
}

void kt_step_cost_expect(kt_step_cost *c, double (*expected_ns)(void *self, int64_t rows),
                         void *self) {
    bool is_known = true;

    for (int i = 0; i < KT_COST_BUCKETS; i++) {
        c->expected[i] = expected_ns(self, (int64_t)1 << i);
        is_known = is_known && c->expected[i] > 0 && isfinite(c->expected[i]);
    }
    if (!is_known) memset(c->expected, 0, sizeof c->expected);
}

/* Between powers of two on a line; 0 = nothing is expected. */
static double expected_at(const kt_step_cost *c, double rows) {
    int i = 0;
    double low;

    while (i + 2 < KT_COST_BUCKETS && rows >= (double)((int64_t)2 << i)) i++;
    low = (double)((int64_t)1 << i);
    return c->expected[i] + (c->expected[i + 1] - c->expected[i]) * (rows - low) / low;
}

/* What a measured size took of what is expected of it. */
static double ratio_of(const kt_step_cost *c, int bucket) {
    return c->ns[bucket] / expected_at(c, c->rows[bucket]);
}

/* The measured sizes next to `rows`, -1 where there is none. */
static void find_measured(const kt_step_cost *c, int64_t rows, int *below, int *above) {
    *below = *above = -1;
    for (int i = 0; i < KT_COST_BUCKETS; i++) {
        if (c->rows[i] == 0) continue;
        if (c->rows[i] <= (double)rows) *below = i;
        if (c->rows[i] >= (double)rows && *above < 0) *above = i;
    }
}

/* How far `rows` is from one measured size to the other. */
static double share_between(const kt_step_cost *c, int below, int above, int64_t rows) {
    if (above == below) return 0;
    return ((double)rows - c->rows[below]) / (c->rows[above] - c->rows[below]);
}

static double corrected_ns(const kt_step_cost *c, int64_t rows, int below, int above) {
    const double expected = expected_at(c, (double)rows);
    double low, high;

    if (below < 0 && above < 0) return expected;
    low = ratio_of(c, below < 0 ? above : below);
    high = ratio_of(c, above < 0 ? below : above);
    if (below < 0 || above < 0) return expected * low;
    return expected * (low + share_between(c, below, above, rows) * (high - low));
}

double kt_step_cost_ns(const kt_step_cost *c, int64_t rows) {
    int below, above;

    find_measured(c, rows, &below, &above);
    if (c->expected[0] > 0) return corrected_ns(c, rows, below, above);
    if (below < 0 && above < 0) return 0;
    if (below < 0) return c->ns[above]; /* fewer rows cost no more */
    if (above < 0) return c->ns[below] * (double)rows / c->rows[below];
    return c->ns[below] + share_between(c, below, above, rows) * (c->ns[above] - c->ns[below]);
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
