/* Rows of a suite in processes of their own.
 *
 * Rows race other people's libraries, and a library may take minutes for what should take milliseconds: oneDNN 2.6
 * falls back to plain loops without a word, 94 s for 512 rows of 4096 x 2048, seven times a row. Nothing stops a
 * call from outside but the end of its process. What a row leaves behind (threads, pages, JIT buffers) ends too.
 *
 * The child is made before this process has threads; it makes its own pool. Its group has its gates and its
 * busy neighbour in it, so that all end together.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "tuner/session/suite_impl.h"

enum { POLL_MS = 50 };
static const double default_limit_seconds =
    120; /* rows take two or three, with many shapes thirty */

typedef struct report {
    kt_status status;
    kt_err why;
    kt_suite_row row;
    kt_suite_memory memory;
} report;

static void child_main(int fd, kt_suite_measure measure, kt_suite_bench *s,
                       const kt_suite_spec *spec, double seconds, const kt_suite_row *row) {
    const kt_pool_options options = {.n_threads = s->options.threads};
    report r = {.row = *row, .memory = *s->memory};

    (void)setpgid(0, 0);
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    s->memory = &r.memory;
    r.status = kt_pool_create(&options, &s->pool, &r.why);
    if (r.status == KT_OK) r.status = measure(s, spec, seconds, &r.row, &r.why);
    _exit(write(fd, &r, sizeof r) == (ssize_t)sizeof r ? 0 : 1);
}

/* It is larger than what a pipe passes at once for sure. */
static int read_report(int fd, report *r) {
    size_t done = 0;
    ssize_t n = 1;

    while (done < sizeof *r && n > 0) {
        n = read(fd, (char *)r + done, sizeof *r - done);
        if (n > 0) done += (size_t)n;
        if (n < 0 && errno == EINTR) n = 1;
    }
    return done == sizeof *r;
}

/* The child's report: 1 = it came, 0 = the child ended without, -1 = too late, -2 = asked to stop. */
static int await(int fd, const kt_suite_options *o, double limit, report *r) {
    const int64_t end = kt_clock_ns() + (int64_t)(limit * 1e9);

    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        const int64_t left_ms = (end - kt_clock_ns()) / 1000000;
        const bool is_done = poll(&p, 1, left_ms < POLL_MS ? (int)left_ms + 1 : POLL_MS) > 0;
        if (o->stop && o->stop(o->stop_arg)) return -2;
        if (kt_clock_ns() > end) return -1; /* what comes then does not count, however soon */
        if (is_done) return read_report(fd, r);
    }
}

static void end_group(pid_t child, int *state) {
    (void)kill(-child, SIGKILL);
    while (waitpid(child, state, 0) < 0 && errno == EINTR) continue;
}

static void unmap(kt_suite_bench *s) {
    (void)munmap((void *)(uintptr_t)s->in_library, sizeof *s->in_library);
    s->in_library = NULL;
}

kt_status kt_suite_in_child(kt_suite_measure measure, kt_suite_bench *s, const kt_suite_spec *spec,
                            double seconds, kt_suite_row *row, kt_err *err) {
    const double limit = s->options.row_limit > 0 ? s->options.row_limit : default_limit_seconds;
    int ends[2], came, state = 0;
    bool was_library;
    report r;
    pid_t child;

    s->in_library = mmap(NULL, sizeof *s->in_library, PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (s->in_library == MAP_FAILED) return kt_fail(err, KT_E_NOMEM, "bench: no shared page");
    if (pipe(ends) != 0) {
        unmap(s);
        return kt_fail(err, KT_E_IO, "bench: pipe: %s", strerror(errno));
    }
    fflush(NULL);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        child_main(ends[1], measure, s, spec, seconds, row);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        unmap(s);
        return kt_fail(err, KT_E_NOMEM, "bench: fork: %s", strerror(errno));
    }
    (void)setpgid(child, child); /* whoever is first */
    came = await(ends[0], &s->options, limit, &r);
    close(ends[0]);
    if (came == 0) /* let it say how it ended */
        while (waitpid(child, &state, 0) < 0 && errno == EINTR) continue;
    else
        end_group(child, &state);
    was_library = *s->in_library;
    unmap(s);
    if (came == 1) {
        *row = r.row;
        *s->memory = r.memory;
        return r.status == KT_OK ? KT_OK : kt_fail(err, r.status, "%s", r.why.message);
    }
    if (came == -2) return kt_fail(err, KT_E_CANCELLED, "bench: stopped");
    if (came == -1)
        return kt_fail(err, was_library ? KT_E_UNSUPPORTED : KT_E_INTERNAL,
                       "%s took longer than %g s", was_library ? "a library" : "our side", limit);
    return kt_fail(err, KT_E_INTERNAL, "ended its process, %s %d",
                   WIFSIGNALED(state) ? "signal" : "code",
                   WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
}
