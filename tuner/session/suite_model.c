/* Whole-model rows of the bench suites: `kt bench --synthetic` in a process of its own, once per number of
 * threads. The runtime is a sibling of the tuner that neither includes; its program is the way to it.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/err.h"
#include "base/json.h"
#include "tuner/session/suite_impl.h"

enum { MAX_OUTPUT = 1 << 20 };

/* The program beside this one. */
static kt_status find_program(const kt_suite_options *o, char *out, size_t bytes, kt_err *err) {
    ssize_t n;
    char *slash;

    if (o->kt) {
        snprintf(out, bytes, "%s", o->kt);
    } else {
        n = readlink("/proc/self/exe", out, bytes - 4);
        out[n > 0 ? n : 0] = '\0';
        slash = strrchr(out, '/');
        snprintf(slash ? slash + 1 : out, 3, "kt");
    }
    if (access(out, X_OK) == 0) return KT_OK;
    return kt_fail(err, KT_E_NOT_FOUND, "%s: no such program (build the target kt)", out);
}

static kt_status read_all(int fd, char **out, size_t *size, kt_err *err) {
    char *text = malloc(MAX_OUTPUT);
    ssize_t n = 1;

    *size = 0;
    if (!text) return kt_fail(err, KT_E_NOMEM, "kt bench: no memory for its output");
    while (n > 0 && *size < MAX_OUTPUT) {
        n = read(fd, text + *size, MAX_OUTPUT - *size);
        if (n < 0 && errno == EINTR)
            n = 1;
        else if (n > 0)
            *size += (size_t)n;
    }
    *out = text;
    return KT_OK;
}

/* Run the program; its standard output. What it says besides is of no use here. */
static kt_status run_program(char *const argv[], char **out, size_t *size, kt_err *err) {
    posix_spawn_file_actions_t actions;
    int pipes[2], rc, state = 0;
    kt_status st;
    pid_t pid;

    *out = NULL;
    if (pipe2(pipes, O_CLOEXEC) != 0)
        return kt_fail(err, KT_E_IO, "kt bench: pipe: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipes[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    rc = posix_spawn(&pid, argv[0], &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(pipes[1]);
    if (rc != 0) {
        close(pipes[0]);
        return kt_fail(err, KT_E_IO, "%s: %s", argv[0], strerror(rc));
    }
    st = read_all(pipes[0], out, size, err);
    close(pipes[0]);
    while (waitpid(pid, &state, 0) < 0 && errno == EINTR) continue;
    if (st == KT_OK && (!WIFEXITED(state) || WEXITSTATUS(state) != 0))
        st = kt_fail(err, KT_E_IO, "%s bench --synthetic ended with %s %d", argv[0],
                     WIFEXITED(state) ? "code" : "signal",
                     WIFEXITED(state) ? WEXITSTATUS(state) : WTERMSIG(state));
    if (st != KT_OK) {
        free(*out);
        *out = NULL;
    }
    return st;
}

static double number(const kt_json *object, const char *key) {
    return kt_json_double(kt_json_get(object, key), NAN);
}

static kt_status read_figures(const char *text, size_t size, kt_suite_model *m, kt_err *err) {
    kt_json_doc *doc = NULL;
    const kt_json *results, *prefill, *decode;

    KT_TRY(kt_json_parse(text, size, NULL, &doc, err));
    results = kt_json_get(kt_json_root(doc), "results");
    prefill = kt_json_at(results, 0);
    decode = kt_json_at(results, 1);
    m->prefill_rate = number(prefill, "tokens_per_second");
    m->prefill_deviation = number(prefill, "deviation");
    m->prefill_of_peak = number(prefill, "of_peak");
    m->peak_gops = number(prefill, "peak_int8_gops");
    m->decode_rate = number(decode, "tokens_per_second");
    m->decode_deviation = number(decode, "deviation");
    m->decode_of_stream = number(decode, "of_stream");
    m->decode_gbs = number(decode, "gbs");
    m->stream_gbs = number(decode, "stream_gbs");
    m->decode_waiting = number(decode, "waiting_share");
    m->repetitions = (int)kt_json_int(kt_json_get(decode, "repetitions"), 0);
    kt_json_destroy(doc);
    if (!(m->prefill_rate > 0 && m->decode_rate > 0 && m->prefill_of_peak > 0 &&
          m->decode_of_stream > 0 && m->decode_waiting > -1 && m->repetitions > 0))
        return kt_fail(err, KT_E_FORMAT,
                       "kt bench --json: expected the figures of a prefill and a decode run");
    return KT_OK;
}

static kt_status measure(const kt_suite_options *o, int threads, kt_suite_model *m, kt_err *err) {
    char program[4096], count[16];
    char words[][16] = {"bench",     "--synthetic", "qwen3-30b", "--layers", "8",
                        "--weights", "int4",        "-p",        "512",      "-n",
                        "16",        "-r",          "3",         "--json",   "--threads"};
    enum { WORDS = sizeof words / sizeof *words };
    char *argv[WORDS + 3] = {program}, *text = NULL;
    size_t size = 0;
    kt_status st;

    KT_TRY(find_program(o, program, sizeof program, err));
    snprintf(count, sizeof count, "%d", threads);
    for (int i = 0; i < WORDS; i++) argv[1 + i] = words[i];
    argv[1 + WORDS] = count;
    st = run_program(argv, &text, &size, err);
    if (st == KT_OK) st = read_figures(text, size, m, err);
    free(text);
    return st;
}

/* Measured once per run of the suite: its rows share the figures. */
static kt_status get(kt_suite_bench *s, int threads, kt_suite_model **out, kt_err *err) {
    kt_suite_model *m = &s->model[threads - 1];

    *out = m;
    if (threads > kt_usable_cores())
        return kt_fail(err, KT_E_UNSUPPORTED, "needs %d cores", threads);
    if (!m->is_known) {
        m->status = measure(&s->options, threads, m, &m->why);
        m->is_known = true;
    }
    if (m->status != KT_OK) return kt_fail(err, m->status, "%s", m->why.message);
    return KT_OK;
}

/* The interval of a figure that is proportional to the mean of the repetitions: twice its standard error. */
static kt_interval spread_of(double figure, double rate, double deviation, int repetitions) {
    const double relative = 2 * deviation / sqrt((double)repetitions) / rate;
    return (kt_interval){figure, figure * (1 - relative), figure * (1 + relative)};
}

static kt_status scaling(kt_suite_bench *s, kt_suite_row *row, kt_err *err) {
    kt_suite_model *one, *two;
    double ratio, relative;

    snprintf(row->unit, sizeof row->unit, "times one thread");
    KT_TRY(get(s, 2, &two, err));
    KT_TRY(get(s, 1, &one, err));
    ratio = two->prefill_rate / one->prefill_rate;
    relative = 2 *
               hypot(one->prefill_deviation / one->prefill_rate,
                     two->prefill_deviation / two->prefill_rate) /
               sqrt((double)one->repetitions);
    row->measured = ratio;
    row->spread = (kt_interval){ratio, ratio * (1 - relative), ratio * (1 + relative)};
    row->rate = two->prefill_of_peak * two->peak_gops;
    row->ceiling = one->prefill_of_peak * one->peak_gops;
    row->rounds = one->repetitions;
    return KT_OK;
}

kt_status kt_suite_models(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                          kt_suite_row *row, kt_err *err) {
    kt_suite_model *m;

    (void)seconds;
    snprintf(row->contender, sizeof row->contender, "kt bench --synthetic qwen3-30b --layers 8");
    if (spec->figure == KT_MODEL_PREFILL_SCALING) return scaling(s, row, err);
    KT_TRY(get(s, spec->threads, &m, err));
    row->rounds = m->repetitions;
    if (spec->figure == KT_MODEL_PREFILL_OF_PEAK) {
        snprintf(row->unit, sizeof row->unit, "of peak");
        row->measured = m->prefill_of_peak;
        row->spread = spread_of(row->measured, m->prefill_rate, m->prefill_deviation, row->rounds);
        row->ceiling = m->peak_gops;
    } else if (spec->figure == KT_MODEL_DECODE_OF_STREAM) {
        snprintf(row->unit, sizeof row->unit, "of read stream");
        row->measured = m->decode_of_stream;
        row->spread = spread_of(row->measured, m->decode_rate, m->decode_deviation, row->rounds);
        row->is_gbs = true;
        row->ceiling = m->stream_gbs;
    } else {
        snprintf(row->unit, sizeof row->unit, "of the threads' time");
        row->measured = m->decode_waiting;
        row->spread = spread_of(row->measured, m->decode_rate, m->decode_deviation, row->rounds);
        row->is_gbs = true;
        row->ceiling = m->stream_gbs;
    }
    row->rate =
        spec->figure == KT_MODEL_PREFILL_OF_PEAK ? row->measured * row->ceiling : m->decode_gbs;
    return KT_OK;
}
