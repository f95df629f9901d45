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

double kt_progress_pace(const kt_session_progress *s) {
    const double prior = 0.02 * s->seconds_total; /* as if so much had gone as predicted */
    return s->seconds_raced > 0 ? (s->wall_raced + prior) / (s->seconds_raced + prior) : 1;
}

/* When it will be over; or, when the budget ends before, how much will be missing. */
static void put_end(const kt_progress *p, const kt_session *session, const kt_session_progress *s,
                    char *out, size_t bytes) {
    const double pace = kt_progress_pace(s), needed = s->seconds_left * pace;
    const double spent = (double)(p->last_ns - p->start_ns) * 1e-9;
    const double left = (double)(p->deadline_ns - p->last_ns) * 1e-9;
    const size_t beyond =
        p->deadline_ns == INT64_MAX || needed <= left ? 0 : kt_session_beyond(session, left / pace);

    if (beyond == 0)
        snprintf(out, bytes, "about %.0f s left", needed > 0 ? ceil(needed) : 0.0);
    else
        snprintf(out, bytes, "%zu cell%s will not be reached, %.0f s would do", beyond,
                 beyond == 1 ? "" : "s", ceil((spent + needed) / 5) * 5);
}

static const char *plural(int64_t n) {
    return n == 1 ? "" : "s";
}

static void put_cell(const kt_session_progress *s, char *out, size_t bytes) {
    out[0] = '\0';
    if (s->cell)
        snprintf(out, bytes, "%s, %lld row%s, %d thread%s: %d kernel%s race", s->cell->role,
                 (long long)s->cell->problem.m, plural(s->cell->problem.m), s->cell->threads,
                 plural(s->cell->threads), s->n_contenders, plural(s->n_contenders));
}

void kt_progress_show(kt_progress *p, const kt_session *session) {
    const int64_t pause = p->is_terminal ? 100000000 : 10000000000;
    int64_t now = kt_clock_ns();
    char cell[96], budget[32] = "", end[96], bar[11];
    kt_session_progress s;
    double share;

    if (!p->to || now - p->last_ns < pause) return;
    p->last_ns = now;
    kt_session_progress_get(session, &s);
    share = fmin(1, s.weight_done + s.weight_in_hand);
    for (int i = 0; i < 10; i++) bar[i] = i < (int)(10 * share) ? '#' : '.';
    bar[10] = '\0';
    put_cell(&s, cell, sizeof cell);
    put_end(p, session, &s, end, sizeof end);
    if (p->deadline_ns != INT64_MAX)
        snprintf(budget, sizeof budget, " of %.0f", (double)(p->deadline_ns - p->start_ns) * 1e-9);
    fprintf(p->to, "%s[%s] %.0f %% of the serving time  %s  gain %+.1f %%  %.0f%s s, %s%s",
            p->is_terminal ? "\r\033[K" : "", bar, 100 * share, cell,
            s.n_tuned ? 100 * expm1(s.log_gain_sum / (double)s.n_tuned) : 0.0,
            (double)(now - p->start_ns) * 1e-9, budget, end, p->is_terminal ? "" : "\n");
    fflush(p->to);
}

void kt_progress_end(kt_progress *p) {
    if (p->to && p->is_terminal) fprintf(p->to, "\r\033[K");
}
