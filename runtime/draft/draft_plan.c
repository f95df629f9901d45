/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/draft/draft_plan.h"

static const double begins_at = 1.10, ends_under = 1.02;

/* The offer whose next token is the likeliest of those that are left; -1 = none is. */
static int likeliest(const kt_draft_offer *offers, int n) {
    int best = -1;

    for (int i = 0; i < n; i++) {
        const kt_draft_offer *o = &offers[i];
        if (o->taken == o->n) continue;
        if (best < 0 || o->p[o->taken] > offers[best].p[offers[best].taken]) best = i;
    }
    return best;
}

/* Take the likeliest tokens until `most` are; whatever they cost. */
static void take(kt_draft_offer *offers, int n, int64_t most) {
    int next;

    for (int i = 0; i < n; i++) offers[i].taken = 0;
    while (most-- > 0 && (next = likeliest(offers, n)) >= 0) offers[next].taken++;
}

/* The cost of rows may rise in steps, so every number of rows is looked at. */
double kt_draft_plan(const kt_draft_step *step, kt_draft_offer *offers, int n) {
    const double plain_ns = step->cost_ns(step->arg, step->rows);
    const double plain = plain_ns > 0 ? step->tokens / plain_ns : 0;
    double best = plain, tokens = step->tokens;
    int64_t best_rows = 0;
    int next;

    take(offers, n, step->is_indifferent ? step->most : 0);
    if (step->is_indifferent || plain <= 0) return 1;
    for (int64_t rows = 1; rows <= step->most && (next = likeliest(offers, n)) >= 0; rows++) {
        const double ns = step->cost_ns(step->arg, step->rows + rows) + step->extra_ns;
        if (step->longest_ns > 0 && ns > step->longest_ns) break;
        tokens += offers[next].p[offers[next].taken++];
        if (tokens <= best * ns) continue;
        best = tokens / ns;
        best_rows = rows;
    }
    take(offers, n, best_rows);
    return best / plain;
}

bool kt_draft_is_worth(bool is_on, double gain) {
    return gain >= (is_on ? ends_under : begins_at);
}
