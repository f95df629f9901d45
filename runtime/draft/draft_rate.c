/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/draft/draft_rate.h"

/* Trials that are remembered: texts change their manner within a few hundred tokens. */
static const double remembered = 256;
/* What all texts say counts as so many trials of each. */
static const double prior_trials = 4;

static int class_of(int64_t matched) {
    int i = 0;

    while (i + 1 < KT_DRAFT_CLASSES && matched >> (i + 2)) i++;
    return i;
}

void kt_draft_rate_add(kt_draft_rate *rate, int64_t matched, bool is_hit) {
    const int i = class_of(matched);

    if (rate->trials[i] >= remembered) {
        rate->trials[i] /= 2;
        rate->hits[i] /= 2;
    }
    rate->trials[i] += 1;
    rate->hits[i] += is_hit;
}

double kt_draft_rate_of(const kt_draft_rate *own, const kt_draft_rate *all, int64_t matched) {
    const int i = class_of(matched);
    const double prior = (all->hits[i] + 1) / (all->trials[i] + 2);

    return (own->hits[i] + prior_trials * prior) / (own->trials[i] + prior_trials);
}
