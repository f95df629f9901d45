/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/format_budget.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/err.h"
#include "runtime/model/bytes.h"

/* From one option of an item to the next one of its hull. */
typedef struct hull_step {
    int item, to;
    size_t more; /* bytes */
    double gain; /* error saved per byte */
} hull_step;

static int smallest(const kt_budget_item *item) {
    const kt_budget_option *o = item->options;
    int best = 0;

    for (int i = 1; i < item->n_options; i++)
        if (o[i].bytes < o[best].bytes ||
            (o[i].bytes == o[best].bytes && o[i].error < o[best].error))
            best = i;
    return best;
}

static double gain_of(const kt_budget_option *from, const kt_budget_option *to) {
    return (from->error - to->error) / (double)(to->bytes - from->bytes);
}

/* The option that saves most error per byte behind `from`, of equals the largest, so that points on
 * one line are one step; -1 = none saves any. */
static int next_of_hull(const kt_budget_item *item, int from) {
    const kt_budget_option *o = item->options;
    int best = -1;

    for (int i = 0; i < item->n_options; i++) {
        if (o[i].bytes <= o[from].bytes || !(o[i].error < o[from].error)) continue;
        if (best < 0 || gain_of(&o[from], &o[i]) > gain_of(&o[from], &o[best]) ||
            (gain_of(&o[from], &o[i]) >= gain_of(&o[from], &o[best]) && o[i].bytes > o[best].bytes))
            best = i;
    }
    return best;
}

static int compare(const void *a, const void *b) {
    const hull_step *p = a, *q = b;

    if (p->gain != q->gain) return p->gain > q->gain ? -1 : 1;
    if (p->item != q->item) return p->item < q->item ? -1 : 1;
    return p->more < q->more ? -1 : p->more > q->more;
}

size_t kt_format_budget_least(const kt_budget_item *items, int n_items) {
    size_t least = 0;

    for (int i = 0; i < n_items; i++)
        least = kt_bytes_add(least, items[i].options[smallest(&items[i])].bytes);
    return least;
}

static int list_steps(const kt_budget_item *items, int n_items, hull_step *steps) {
    int n = 0;

    for (int i = 0; i < n_items; i++) {
        const kt_budget_option *o = items[i].options;
        for (int from = smallest(&items[i]), to; (to = next_of_hull(&items[i], from)) >= 0;
             from = to)
            steps[n++] = (hull_step){i, to, o[to].bytes - o[from].bytes, gain_of(&o[from], &o[to])};
    }
    qsort(steps, (size_t)n, sizeof *steps, compare);
    return n;
}

/* Steps of an item come in its own order, since gains fall along a hull. */
static void take_steps(kt_budget_item *items, const hull_step *steps, int n, bool *is_stuck,
                       size_t budget, size_t *bytes) {
    for (int i = 0; i < n; i++) {
        const hull_step *s = &steps[i];
        if (is_stuck[s->item] || s->more > budget - *bytes) {
            is_stuck[s->item] = true;
            continue;
        }
        *bytes += s->more;
        items[s->item].taken = s->to;
    }
}

kt_status kt_format_budget_choose(kt_budget_item *items, int n_items, size_t budget, size_t *bytes,
                                  kt_err *err) {
    const size_t least = kt_format_budget_least(items, n_items);
    size_t n_options = 1;
    hull_step *steps;
    bool *is_stuck;
    kt_status st = KT_OK;

    *bytes = 0;
    if (least > budget)
        return kt_fail(err, KT_E_INVALID, "%zu bytes at least, expected at most %zu", least,
                       budget);
    for (int i = 0; i < n_items; i++) n_options += (size_t)items[i].n_options;
    steps = malloc(n_options * sizeof *steps);
    is_stuck = calloc((size_t)n_items + 1, sizeof *is_stuck);
    if (steps && is_stuck) {
        for (int i = 0; i < n_items; i++) items[i].taken = smallest(&items[i]);
        *bytes = least;
        take_steps(items, steps, list_steps(items, n_items, steps), is_stuck, budget, bytes);
    }
    if (!steps || !is_stuck)
        st = kt_fail(err, KT_E_NOMEM, "no memory to choose formats of %d weights", n_items);
    free(is_stuck);
    free(steps);
    return st;
}
