/* Rows of a device in a process of their own.
 *
 * Whoever starts work on a GPU cannot take it back: a kernel that never ends, and a library that
 * crashes, end with their process alone. Opening a device takes a second, so that one process does
 * all rows until one of them spoils it; the parent, which never touches the device, then goes on
 * behind that row with another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/session/gpu_suite_impl.h"

enum { POLL_MS = 50 };
/* Until the first word: a driver starts, a library of half a gigabyte comes from the disk. */
static const double opening_seconds = 60, row_grace_seconds = 20, shares_of_a_row = 4;
static const double least_share_seconds = 0.2;

typedef struct letter {
    enum { OPENED = 1, REFUSED, MEASURED } kind;
    kt_status status; /* of REFUSED */
    kt_err why;
    kt_gpu_facts facts;
    kt_suite_row row;
} letter;

/* ---- the child ---- */

static bool post(int fd, const letter *l) {
    size_t done = 0;

    while (done < sizeof *l) {
        const ssize_t n = write(fd, (const char *)l + done, sizeof *l - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

/* An equal part of what is left for each row that is left. */
static double share_of(const kt_gpu_plan *plan, int i) {
    return (double)(plan->end_ns - kt_clock_ns()) * 1e-9 / (plan->n - i);
}

static void measure(kt_gpu_lab *lab, const kt_gpu_plan *plan, int i, kt_suite_row *row) {
    const double share = share_of(plan, i);
    kt_err why = {KT_OK, ""};
    kt_status st;

    kt_gpu_row_name(plan->spec[i], row);
    if (share < least_share_seconds) {
        st = kt_fail(&why, KT_E_UNSUPPORTED, "no time is left for it");
    } else {
        lab->row_end_ns = kt_clock_ns() + (int64_t)(share * 1e9);
        st = kt_gpu_row_measure(lab, plan->spec[i], row, &why);
    }
    kt_gpu_row_settle(row, st, &why);
}

static void child_main(int fd, const kt_gpu_plan *plan, int first) {
    static kt_gpu_lab lab;
    static letter l;
    bool needs_library = false;
    int i;

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    (void)signal(SIGPIPE, SIG_IGN);
    for (i = first; i < plan->n; i++)
        needs_library = needs_library || kt_gpu_needs_library(plan->spec[i]);
    l.status = kt_gpu_lab_begin(plan->o, needs_library, &lab, &l.facts, &l.why);
    l.kind = l.status == KT_OK ? OPENED : REFUSED;
    if (!post(fd, &l) || l.kind == REFUSED) _exit(1);
    l.kind = MEASURED;
    for (i = first; i < plan->n && !kt_gpu_lab_is_spoilt(&lab); i++) {
        measure(&lab, plan, i, &l.row);
        if (!post(fd, &l)) _exit(1);
    }
    _exit(0);
}

/* ---- the parent ---- */

typedef struct supervisor {
    const kt_gpu_plan *plan;
    kt_suite_row *rows;
    int n; /* rows that are known */
    bool has_begun;
    pid_t child;
    int fd; /* of its letters */
} supervisor;

typedef enum answer { CAME, ENDED, LATE, STOPPED } answer;

static void keep(supervisor *s, const kt_suite_row *row) {
    const kt_gpu_options *o = s->plan->o;

    s->rows[s->n++] = *row;
    if (o->measured) o->measured(o->arg, &s->rows[s->n - 1]);
}

static answer read_letter(int fd, letter *l) {
    size_t done = 0;

    while (done < sizeof *l) {
        const ssize_t n = read(fd, (char *)l + done, sizeof *l - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return ENDED;
        done += (size_t)n;
    }
    return CAME;
}

static answer await(const supervisor *s, double limit, letter *l) {
    const int64_t end = kt_clock_ns() + (int64_t)(limit * 1e9);
    const kt_gpu_options *o = s->plan->o;

    for (;;) {
        struct pollfd p = {.fd = s->fd, .events = POLLIN};
        const bool is_there = poll(&p, 1, POLL_MS) > 0;
        if (o->stop && o->stop(o->arg)) return STOPPED;
        if (is_there) return read_letter(s->fd, l);
        if (kt_clock_ns() > end) return LATE;
    }
}

static kt_status start(supervisor *s, kt_err *err) {
    int ends[2];

    if (pipe(ends) != 0) return kt_fail(err, KT_E_IO, "bench: pipe: %s", strerror(errno));
    fflush(NULL);
    s->child = fork();
    if (s->child == 0) {
        close(ends[0]);
        child_main(ends[1], s->plan, s->n);
    }
    close(ends[1]);
    if (s->child < 0) {
        close(ends[0]);
        return kt_fail(err, KT_E_NOMEM, "bench: fork: %s", strerror(errno));
    }
    (void)setpgid(s->child, s->child); /* whoever is first */
    s->fd = ends[0];
    return KT_OK;
}

/* Its state; a process that has not ended by itself is ended. */
static int finish(supervisor *s, bool ended) {
    int state = 0;

    close(s->fd);
    if (!ended) (void)kill(-s->child, SIGKILL);
    while (waitpid(s->child, &state, 0) < 0 && errno == EINTR) continue;
    return state;
}

static double limit_of(const supervisor *s) {
    const double share = share_of(s->plan, s->n);

    if (s->plan->o->row_limit > 0) return s->plan->o->row_limit;
    return row_grace_seconds + shares_of_a_row * (share > 0 ? share : 0);
}

/* The row in hand ends without a figure of its own. */
static void give_up(supervisor *s, kt_status status, const kt_err *why) {
    kt_suite_row row;

    kt_gpu_row_name(s->plan->spec[s->n], &row);
    kt_gpu_row_settle(&row, status, why);
    keep(s, &row);
}

/* How the child ended, as the note of the row that it was at; no note where it ended by itself
 * between rows. */
static void explain(supervisor *s, answer how, double limit, int state, bool was_useful) {
    kt_err why;

    if (how == LATE)
        kt_fail(&why, KT_E_INTERNAL, "took longer than %.3g s", limit);
    else if (WIFSIGNALED(state))
        kt_fail(&why, KT_E_INTERNAL, "ended its process, signal %d", WTERMSIG(state));
    else if (was_useful && WEXITSTATUS(state) == 0)
        return;
    else
        kt_fail(&why, KT_E_INTERNAL, "ended its process, code %d", WEXITSTATUS(state));
    give_up(s, why.status, &why);
}

/* Rows of one child, until it ends or all are known. */
static kt_status run_child(supervisor *s, kt_err *err) {
    const kt_gpu_options *o = s->plan->o;
    const int first = s->n;
    double limit = opening_seconds;
    answer how;
    letter l;
    int state;

    KT_TRY(start(s, err));
    while ((how = await(s, limit, &l)) == CAME) {
        if (l.kind == REFUSED) {
            finish(s, false);
            return kt_fail(err, l.status, "%s", l.why.message);
        }
        if (l.kind == OPENED && !s->has_begun && o->begun) o->begun(o->arg, &l.facts);
        s->has_begun = true;
        if (l.kind == MEASURED) keep(s, &l.row);
        if (s->n == s->plan->n) break;
        limit = limit_of(s);
    }
    state = finish(s, how == ENDED);
    if (how == STOPPED) return kt_fail(err, KT_E_CANCELLED, "bench: stopped");
    if (!s->has_begun && how == LATE)
        return kt_fail(err, KT_E_IO, "bench: the device does not open within %g s", limit);
    if (!s->has_begun)
        return kt_fail(err, KT_E_INTERNAL, "bench: opening the device ended the process (%s %d)",
                       WIFSIGNALED(state) ? "signal" : "code",
                       WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
    if (s->n < s->plan->n) explain(s, how, limit, state, s->n > first);
    return KT_OK;
}

kt_status kt_gpu_suite_in_child(const kt_gpu_plan *plan, kt_suite_row *rows, int *n_rows,
                                kt_err *err) {
    supervisor s = {.plan = plan, .rows = rows};
    kt_err why = {KT_OK, ""};
    kt_status st = KT_OK;

    while (s.n < plan->n && st == KT_OK) {
        if (s.n && kt_clock_ns() > plan->end_ns) {
            kt_fail(&why, KT_E_UNSUPPORTED, "no time is left for it");
            give_up(&s, why.status, &why);
            continue;
        }
        st = run_child(&s, &why);
        if (st == KT_OK || st == KT_E_CANCELLED || !s.n) continue;
        give_up(&s, KT_E_IO, &why); /* the device does not open again */
        st = KT_OK;
    }
    *n_rows = s.n;
    return st == KT_OK ? KT_OK : kt_fail(err, st, "%s", why.message);
}
