/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/step_estimate.h"

#include <math.h>

/* Of m rows, which need not be whole: on the line between powers of two, in proportion above. */
static double time_of(const kt_plan_source *s, double m) {
    const double most = (double)((int64_t)1 << (KT_PLAN_TIMES - 1));
    int i = 0;
    double low;

    if (m <= 1) return s->time_ns[0];
    if (m >= most) return s->time_ns[KT_PLAN_TIMES - 1] * m / most;
    while (m >= (double)((int64_t)2 << i)) i++;
    low = (double)((int64_t)1 << i);
    return s->time_ns[i] + (s->time_ns[i + 1] - s->time_ns[i]) * (m - low) / low;
}

/* Each expert that is met has its rows. */
static double experts_ns(const kt_weight *w, const kt_plan_source *s, double rows) {
    const double all = (double)w->count;
    const double met = all * (1 - pow(1 - (double)w->topk / all, rows));

    return met > 0 ? met * time_of(s, rows * (double)w->topk / met) : 0;
}

double kt_step_estimate_ns(const kt_model_plan *plan, int64_t rows, int64_t logits,
                           double *experts) {
    double routed = 0, rest = 0;

    for (int i = 0; i < plan->graph->n_weights; i++) {
        const kt_weight *w = &plan->graph->weights[i];
        const double m = (double)(w->use == KT_USE_HEAD ? logits : rows);
        const bool is_draft = w->layer >= plan->graph->numbers.layers; /* no part of a step */
        kt_run runs[KT_WEIGHT_PARTS];
        const int n = m > 0 && !is_draft ? kt_weight_runs(w, plan->quant, runs) : 0;
        for (int r = 0; r < n; r++) {
            const kt_plan_source *s = &kt_model_plan_run(plan, i, r)->source;
            if (w->use == KT_USE_EXPERTS)
                routed += experts_ns(w, s, m);
            else
                rest += (w->kind == KT_WEIGHT_MATRIX ? 1 : (double)w->count) * time_of(s, m);
        }
    }
    if (experts) *experts = routed;
    return routed + rest;
}
