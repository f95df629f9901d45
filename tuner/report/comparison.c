/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/report/comparison.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

static const double false_discoveries = 0.01, smallest_effect = 0.03;

/* Half the width of a row's interval on the log scale, at 95 %. */
static double half_width(const kt_table_row *r) {
    return r->ci_low > 0 && r->ci_high >= r->ci_low ? log(r->ci_high / r->ci_low) / 2 : 0;
}

/* The two runs are independent: variances add. */
static kt_interval recorded_ratio(const kt_table_row *a, const kt_table_row *b) {
    double point = log(b->time_ns / a->time_ns), half = hypot(half_width(a), half_width(b));
    return (kt_interval){point, point - half, point + half};
}

kt_status kt_comparison_make(const kt_table *a, const kt_table *b, kt_comparison *out,
                             kt_err *err) {
    double noise = fmax(a->fingerprint.ceilings.aa_noise_p95, b->fingerprint.ceilings.aa_noise_p95);

    memset(out, 0, sizeof *out);
    out->list = calloc(a->n_rows + 1, sizeof *out->list);
    if (!out->list) return kt_fail(err, KT_E_NOMEM, "compare: no memory");
    out->least_effect = fmax(smallest_effect, 2 * noise);
    for (size_t i = 0; i < a->n_rows && out->n < KT_MAX_DISCOVERIES; i++) {
        const kt_table_row *x = &a->rows[i], *y = kt_table_find(b, &x->problem, x->threads);
        if (!y) {
            out->only_a++;
            continue;
        }
        out->list[out->n++] =
            (kt_compared){.a = x, .b = y, .ratio = recorded_ratio(x, y), .confidence = 0.95};
    }
    out->only_b = b->n_rows - (size_t)out->n;
    return KT_OK;
}

void kt_comparison_deinit(kt_comparison *c) {
    if (!c) return;
    free(c->list);
    memset(c, 0, sizeof *c);
}

void kt_comparison_judge(kt_comparison *c, double least_effect) {
    double p[KT_MAX_DISCOVERIES];
    bool marked[KT_MAX_DISCOVERIES];

    c->least_effect = least_effect;
    c->n_faster = c->n_slower = 0;
    c->log_sum = 0;
    for (int i = 0; i < c->n; i++) {
        p[i] = kt_interval_p(c->list[i].ratio, c->list[i].confidence);
        c->log_sum += c->list[i].ratio.point;
    }
    kt_false_discovery(p, c->n, false_discoveries, marked);
    for (int i = 0; i < c->n; i++) {
        kt_compared *x = &c->list[i];
        x->change = KT_CHANGE_NONE;
        if (!marked[i] || fabs(x->ratio.point) < log1p(least_effect)) continue;
        x->change = x->ratio.point > 0 ? KT_CHANGE_SLOWER : KT_CHANGE_FASTER;
        c->n_slower += x->ratio.point > 0;
        c->n_faster += x->ratio.point < 0;
    }
}
