/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/report/progress.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

void kt_progress_init(kt_progress *p, FILE *to, int64_t start_ns, int64_t deadline_ns) {
    *p = (kt_progress){.to = to, .start_ns = start_ns, .deadline_ns = deadline_ns};
    p->is_terminal = to && isatty(fileno(to));
    p->last_ns = kt_clock_ns();
}

/* The prediction is corrected by how wrong it was so far. */
static double eta_seconds(const kt_progress *p, const kt_session_progress *s) {
    double spent = (double)(kt_clock_ns() - p->start_ns) * 1e-9;
    double done = s->seconds_total - s->seconds_left;
    double eta = done > 0.02 * s->seconds_total ? s->seconds_left * spent / done : s->seconds_left;
    if (p->deadline_ns != INT64_MAX) {
        double until_end = (double)(p->deadline_ns - kt_clock_ns()) * 1e-9;
        if (eta > until_end) eta = until_end;
    }
    return eta > 0 ? eta : 0;
}

void kt_progress_show(kt_progress *p, const kt_session *session) {
    const int64_t pause = p->is_terminal ? 100000000 : 10000000000;
    int64_t now = kt_clock_ns();
    char cell[96] = "", budget[32] = "", bar[11];
    kt_session_progress s;
    int marks;

    if (!p->to || now - p->last_ns < pause) return;
    p->last_ns = now;
    kt_session_progress_get(session, &s);
    marks = s.n_cells ? (int)(10 * s.n_decided / s.n_cells) : 10;
    for (int i = 0; i < 10; i++) bar[i] = i < marks ? '#' : '.';
    bar[10] = '\0';
    if (s.cell)
        snprintf(cell, sizeof cell, "%s m=%lld t=%d  rung %d  %d live", s.cell->role,
                 (long long)s.cell->problem.m, s.cell->threads, s.n_rungs, s.n_contenders);
    if (p->deadline_ns != INT64_MAX)
        snprintf(budget, sizeof budget, " of %.0f", (double)(p->deadline_ns - p->start_ns) * 1e-9);
    fprintf(p->to, "%s[%s] %zu/%zu cells  %s  gain %+.1f %%  %.0f%s s  ETA %.0f s%s",
            p->is_terminal ? "\r\033[K" : "", bar, s.n_decided, s.n_cells, cell,
            s.n_tuned ? 100 * expm1(s.log_gain_sum / (double)s.n_tuned) : 0.0,
            (double)(now - p->start_ns) * 1e-9, budget, eta_seconds(p, &s),
            p->is_terminal ? "" : "\n");
    fflush(p->to);
}

void kt_progress_end(kt_progress *p) {
    if (p->to && p->is_terminal) fprintf(p->to, "\r\033[K");
}
