/* Gates run in a child process that reports through a pipe. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "kernels/attn/attn_gate.h"
#include "kernels/gemm/gemm_gate.h"
#include "kernels/formats/p64_spec.h"
#include "kernels/indexer/index_gate.h"
#include "kernels/linattn/conv_gate.h"
#include "kernels/linattn/delta_gate.h"
#include "kernels/moe_ffn/moe_gate.h"
#include "tuner/space/cell.h"
#include "tuner/verify/verdicts.h"

/* Row counts of the gate: all few, then every remainder by the 4 and 6 rows of a tile, full tiles of 16,
 * and one count above all blocks. */
static const int64_t gate_rows[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 13, 16, 17, 27, 32, 48, 72};
enum { N_GATE_ROWS = sizeof gate_rows / sizeof *gate_rows, MOST_ROWS = 72 };

/* Queries of attention, whose reference takes some 0.1 ms each in plain C: a tile and some more. */
enum { MOST_GATED_QUERIES = 96 };

/* Keep the remainder by 256 (no kernel unrolls further) and a few panels. */
static int64_t cut(int64_t size, int64_t most) {
    return size <= most ? size : most / 256 * 256 - (most >= 512 ? 256 : 0) + size % 256;
}

/* A few heads, keys or channels: variants treat all alike. Value heads stay as many a key head. */
static kt_problem cut_sequence(kt_problem p) {
    const int64_t group = p.kv_heads > 0 ? p.n / p.kv_heads : 1;

    if (p.op == KT_OP_CONV) p.n = p.n <= 256 ? p.n : 128 + p.n % 128;
    if (p.op == KT_OP_DELTA && p.kv_heads > 2) p.kv_heads = 2, p.n = 2 * group;
    if (p.op == KT_OP_INDEX && p.n > 16) p.n = 16 + p.n % 16;
    if (p.op == KT_OP_ATTN) {
        p.kv_heads = p.kv_heads > 2 ? 2 : p.kv_heads;
        p.n = p.kv_heads * (group > 16 ? 16 + group % 16 : group);
        if (p.context < MOST_ROWS) p.context = MOST_ROWS;
    }
    if ((p.op == KT_OP_INDEX || p.op == KT_OP_ATTN) && p.context > 200)
        p.context = 200 + p.context % 64;
    p.m = MOST_ROWS;
    return p;
}

kt_problem kt_gate_problem(const kt_problem *problem) {
    kt_problem p = *problem;
    if (!kt_problem_is_packed(&p)) return cut_sequence(p);
    if (p.op == KT_OP_MOE_FFN) { /* n is what down sums over, in whole blocks of the format */
        const int64_t block = kt_p64_spec_of(p.weights).span > 128 ? 256 : 128;
        p.n = p.n <= 256 ? p.n : block + p.n % block;
        p.k = cut(p.k, 768);
    } else {
        p.n = p.n <= 256 ? p.n : 128 + p.n % 128;
        p.k = cut(p.k, 1280);
    }
    p.m = MOST_ROWS;
    return p;
}

/* One report; smaller than PIPE_BUF, so that it arrives whole or not at all. */
typedef struct report {
    int index;
    int status;
    double rel_rms;
    char message[KT_ERR_SIZE];
} report;

/* The cases of one op, made once and used for all choices. */
typedef struct cases {
    kt_problem problem;
    uint64_t seed;
    kt_gemm_case *gemm;
    kt_moe_case *moe;
} cases;

static kt_status cases_create(cases *c, kt_err *err) {
    if (!kt_problem_is_packed(&c->problem)) return KT_OK;
    if (c->problem.op == KT_OP_MOE_FFN)
        return kt_moe_case_create(&c->problem, c->seed, &c->moe, err);
    return kt_gemm_case_create(&c->problem, c->seed, &c->gemm, err);
}

/* Their gates draw inputs for themselves. */
static kt_status check_sequence(const cases *c, const kt_choice *choice, int64_t m,
                                kt_gate_sums *sums, kt_err *err) {
    kt_problem p = c->problem;
    kt_gate_report one = {0};
    kt_status st;

    p.m = m;
    if (p.op == KT_OP_ATTN && m > MOST_GATED_QUERIES / p.n && m > 1) return KT_E_UNSUPPORTED;
    st = p.op == KT_OP_ATTN ? kt_attn_gate(choice->variant, &choice->config, &p, c->seed, &one, err)
         : p.op == KT_OP_CONV
             ? kt_conv_gate(choice->variant, &choice->config, &p, c->seed, &one, err)
         : p.op == KT_OP_DELTA
             ? kt_delta_gate(choice->variant, &choice->config, &p, c->seed, &one, err)
             : kt_index_gate(choice->variant, &choice->config, &p, c->seed, &one, err);
    sums->error_sq += one.rel_rms * one.rel_rms; /* all calls alike */
    sums->want_sq += 1;
    return st;
}

static kt_status check(cases *c, const kt_choice *choice, int64_t m, kt_gate_sums *sums,
                       kt_err *err) {
    if (!kt_problem_is_packed(&c->problem)) return check_sequence(c, choice, m, sums, err);
    if (c->moe) return kt_moe_case_check(c->moe, choice->variant, &choice->config, m, sums, err);
    return kt_gemm_case_check(c->gemm, choice->variant, &choice->config, m, sums, err);
}

/* A variant may refuse some row counts; those will not be asked of it. It must pass all others, and
 * there must be one. */
static void check_choice(cases *c, const kt_choice *choice, report *r) {
    kt_gate_sums sums = {0};
    kt_gate_report summary = {0};
    kt_err err = {0};
    int passed = 0;

    r->status = KT_OK;
    for (int i = 0; i < N_GATE_ROWS; i++) {
        kt_status st = check(c, choice, gate_rows[i], &sums, &err);
        if (st == KT_OK) passed++;
        if (st == KT_OK || st == KT_E_UNSUPPORTED) continue;
        r->status = st;
        break;
    }
    if (r->status == KT_OK && passed == 0) r->status = KT_E_UNSUPPORTED;
    kt_gate_finish(&sums, &summary);
    r->rel_rms = summary.rel_rms;
    if (r->status != KT_OK) memcpy(r->message, err.message, sizeof r->message);
}

static void child_main(int fd, const kt_problem *problem, const kt_choice *choices, int first,
                       int n, uint64_t seed) {
    cases c = {.problem = kt_gate_problem(problem), .seed = seed};
    kt_err err;
    kt_status st = cases_create(&c, &err);

    for (int i = first; i < n; i++) {
        report r = {.index = i};
        if (st == KT_OK) {
            check_choice(&c, &choices[i], &r);
        } else {
            r.status = st;
            memcpy(r.message, err.message, sizeof r.message);
        }
        if (write(fd, &r, sizeof r) != (ssize_t)sizeof r) break;
    }
    _exit(0);
}

/* Results that are waited for even when time presses: without a pair there is no contest. */
enum { LEAST_RESULTS = 2 };

/* Wait for the report on choice `index`: 1 = got it, 0 = the child ended, -1 = timeout, -2 = asked to stop,
 * -3 = enough. */
static int next_report(int fd, const kt_gate_limits *limits, int index, report *r) {
    double seconds = limits->seconds_each > 0 ? limits->seconds_each : 10;
    int64_t patience = kt_clock_ns() + (int64_t)(seconds * 1e9);
    for (;;) {
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int64_t now = kt_clock_ns();
        if ((limits->stop && limits->stop(limits->stop_arg)) || now > limits->deadline_ns)
            return -2;
        if (now > patience) return -1;
        if (limits->enough_ns && index >= LEAST_RESULTS && now > limits->enough_ns) return -3;
        if (poll(&p, 1, 20) <= 0) continue;
        return read(fd, r, sizeof *r) == (ssize_t)sizeof *r;
    }
}

static void store(const report *r, kt_gate_result *out) {
    out->passed = r->status == KT_OK;
    out->rel_rms = r->rel_rms;
    memcpy(out->message, r->message, sizeof out->message);
    snprintf(out->outcome, sizeof out->outcome, "%s", out->passed ? "passed" : "wrong");
}

static void reject(kt_gate_result *out, const char *outcome, const char *why, int number) {
    out->passed = false;
    snprintf(out->outcome, sizeof out->outcome, "%s", outcome);
    snprintf(out->message, sizeof out->message, "%s: %s (%d)", out->choice.variant->name, why,
             number);
}

/* One child for choices first .. n-1; returns the first that has no result yet, or a negative status. */
static int run_child(const kt_problem *problem, const kt_choice *choices, int first, int n,
                     const kt_gate_limits *limits, kt_gate_result *out, kt_err *err) {
    int ends[2], got, wait_status = 0;
    report r;
    pid_t child;

    if (pipe(ends) != 0) return -(int)kt_fail(err, KT_E_IO, "gate: pipe: %s", strerror(errno));
    fflush(NULL);
    child = fork();
    if (child == 0) {
        close(ends[0]);
        signal(SIGINT, SIG_IGN); /* the parent decides */
        child_main(ends[1], problem, choices, first, n, limits->seed);
    }
    close(ends[1]);
    if (child < 0) {
        close(ends[0]);
        return -(int)kt_fail(err, KT_E_IO, "gate: fork: %s", strerror(errno));
    }
    got = 1;
    while (first < n && (got = next_report(ends[0], limits, first, &r)) == 1)
        store(&r, &out[first++]);
    if (got < 0) kill(child, SIGKILL);
    waitpid(child, &wait_status, 0);
    close(ends[0]);
    if (got == -2) return -(int)kt_fail(err, KT_E_CANCELLED, "gate: stopped");
    if (first < n && got == -3) return n; /* nothing is known of the rest */
    if (first < n && got == -1) reject(&out[first++], "timeout", "no result in time, signal", 9);
    if (first < n && got == 0)
        reject(&out[first++], "crash", "ended its process, signal",
               WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0);
    return first;
}

kt_status kt_gate_choices(const kt_problem *problem, const kt_choice *choices, int n,
                          const kt_gate_limits *limits, kt_gate_result *out, kt_err *err) {
    for (int i = 0; i < n; i++) {
        memset(&out[i], 0, sizeof out[i]);
        out[i].choice = choices[i];
        out[i].problem = *problem;
        out[i].problem.m = 0;
    }
    for (int at = 0; at < n;) {
        int next = run_child(problem, choices, at, n, limits, out, err);
        if (next < 0) return (kt_status)-next;
        at = next;
    }
    return KT_OK;
}
