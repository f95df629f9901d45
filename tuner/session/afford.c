/* What a fresh contest may cost when time is short.
 *
 * A contest needs every contender's gate and, for each layout of weights, a quarter of a gigabyte packed: of a cell
 * with twenty contenders in five layouts two seconds, of which the race takes a tenth. A budget of three seconds
 * would end in the middle of it. So gates and packing take a share of what is left, in the order of promise, and
 * who is not reached does not count as known: the next run races those against the winner.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/session/session_parts.h"

/* Of the time that is left: what remains is for the race and for cells after this one. */
static const double gate_share = 0.25, pack_share = 0.35;
/* Of the whole budget: weights of the default's layout are packed in any case, others as long as
 * packing and its like took less. A layout that is left out is new to a later run, which has
 * more of its time for it. */
static const double most_packing = 0.12;

static double left_ns(const kt_session *s) {
    return (double)(s->setup.deadline_ns - kt_clock_ns());
}

int64_t kt_session_gate_end(const kt_session *s) {
    if (s->setup.deadline_ns == INT64_MAX) return 0;
    return kt_clock_ns() + (int64_t)(gate_share * left_ns(s));
}

static double packing_left_ns(const kt_session *s) {
    double budget = (double)(s->setup.deadline_ns - s->start_ns);
    return most_packing * budget - 1e9 * s->progress.setup_seconds;
}

static int promise(const kt_contenders *c, const kt_choice *near, int i) {
    if (i == c->default_index) return 0;
    return near && kt_choice_equal(&c->list[i].choice, near) ? 1 : 2;
}

void kt_session_order(const kt_contenders *c, const kt_choice *near, int *order) {
    for (int i = 0; i < c->n; i++) {
        const int rank = promise(c, near, i);
        int at = i;
        for (; at > 0; at--) {
            const int other = order[at - 1], of_other = promise(c, near, other);
            if (of_other < rank ||
                (of_other == rank && c->list[other].bound_ns <= c->list[i].bound_ns))
                break;
            order[at] = other;
        }
        order[at] = i;
    }
}

static const char *layout_of(const kt_contender *c) {
    return c->choice.variant->layout ? c->choice.variant->layout : c->choice.variant->name;
}

/* Does one of the first n stay that reads the same weights? */
static bool shares_weights(const kt_contenders *c, const int *order, int n, const bool *is_out) {
    for (int i = 0; i < n; i++)
        if (!is_out[order[i]] &&
            strcmp(layout_of(&c->list[order[i]]), layout_of(&c->list[order[n]])) == 0)
            return true;
    return false;
}

/* is_out[i]: contender i is too dear. */
static void find_dear(const kt_session *s, const kt_tune_cell *cell, const kt_contenders *c,
                      const int *order, bool *is_out) {
    const int64_t slots = cell->problem.op == KT_OP_MOE_FFN ? 2 * cell->problem.topk : 1;
    double left = pack_share * left_ns(s), in_all = packing_left_ns(s);
    int n = 0;

    if (in_all < left) left = in_all;

    for (int i = 0; i < c->n; i++) {
        const kt_variant *v = c->list[order[i]].choice.variant;
        double ns = !kt_problem_is_packed(&cell->problem) || shares_weights(c, order, i, is_out)
                        ? 0
                        : kt_banks_cost_ns(&s->banks, &cell->problem, v, slots);
        is_out[order[i]] = i > 0 && ns > left;
        if (!is_out[order[i]]) left -= ns;
        n += !is_out[order[i]];
    }
    if (n == 1 && c->n > 1 && in_all > 0)
        is_out[order[1]] = false; /* without a pair there is no contest */
}

static void keep(kt_contenders *c, const bool *is_out) {
    kt_choice standard = c->list[c->default_index].choice;
    int n = 0;

    for (int i = 0; i < c->n; i++)
        if (!is_out[i]) c->list[n++] = c->list[i];
    c->n = n;
    c->default_index = kt_contenders_find(c, &standard);
}

kt_status kt_session_afford(const kt_session *s, const kt_tune_cell *cell, const kt_choice *near,
                            kt_contenders *all, kt_contenders *in, kt_err *err) {
    int *order;
    bool *is_out, *is_unknown, has_memory;

    if (s->setup.deadline_ns == INT64_MAX || in->n == 0) return KT_OK;
    order = calloc((size_t)in->n, sizeof *order);
    is_out = calloc((size_t)in->n, sizeof *is_out);
    is_unknown = calloc((size_t)all->n, sizeof *is_unknown);
    has_memory = order && is_out && is_unknown;
    if (has_memory) {
        kt_session_order(in, near, order);
        find_dear(s, cell, in, order, is_out);
        for (int i = 0; i < all->n; i++) {
            const kt_choice *choice = &all->list[i].choice;
            const int at = kt_contenders_find(in, choice);
            is_unknown[i] = at >= 0 ? is_out[at]
                                    : !kt_verdicts_find(&s->verdicts, &cell->problem, choice) &&
                                          !kt_session_is_hopeless(s, cell, choice);
        }
        keep(in, is_out);
        keep(all, is_unknown);
    }
    free(order);
    free(is_out);
    free(is_unknown);
    return has_memory ? KT_OK : kt_fail(err, KT_E_NOMEM, "run: no memory");
}
