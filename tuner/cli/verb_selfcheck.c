/* kttune selfcheck: does the tuner keep what it promises? SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "tuner/cli/tune_options.h"
#include "tuner/cli/workbench.h"
#include "tuner/selfcheck/goal.h"

typedef struct selfcheck_state {
    const kt_verb_context *context;
    kt_workbench bench;
    kt_check check;
    const char *goals, *results, *filed, *out;
    int64_t seed;
    bool quick, full, json;
    char program[KT_CHECK_PATH_BYTES];
} selfcheck_state;

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

/* Is the goal's number in "1,4,9"? Everything is in NULL. */
static bool is_wanted(const char *goals, int number) {
    while (goals && *goals) {
        char *end;
        if (strtol(goals, &end, 10) == number) return true;
        goals = *end == ',' ? end + 1 : end;
    }
    return goals == NULL;
}

static bool is_class(const char *results, const char *name) {
    char path[KT_CHECK_PATH_BYTES];
    return *name && !strchr(name, '/') &&
           snprintf(path, sizeof path, "%s/%s", results, name) < (int)sizeof path &&
           access(path, R_OK | X_OK) == 0;
}

static bool is_list(const char *goals) {
    const char *at = goals;
    while (at) {
        char *end;
        long number = strtol(at, &end, 10);
        bool is_known = false;
        for (size_t i = 0; i < kt_builtin_goal_count && end != at; i++)
            is_known |= kt_builtin_goals[i]->number == number;
        if (!is_known || (*end && *end != ',')) return false;
        at = *end ? end + 1 : NULL;
    }
    return true;
}

/* As many digits as tell something, whatever the unit. */
static int decimals_of(double v) {
    return v == (double)(int64_t)v ? 0 : v < 1 ? 3 : 2;
}

static void print_row(const kt_check_row *r) {
    char measured[32] = "-";
    if (r->is_measured)
        snprintf(measured, sizeof measured, "%.*f", decimals_of(r->measured), r->measured);
    printf("%2d  %-42s %9s %-8s bar %s %-5g %-10s %s\n", r->goal, r->name, measured, r->unit,
           r->at_least ? ">=" : "<=", r->bar, kt_check_verdict_name(r->verdict), r->how);
    if (isfinite(r->bound))
        printf("    %-42s %9.*f %-8s the bound that this sample supports\n", "",
               decimals_of(r->bound), r->bound, r->unit);
    fflush(stdout);
}

static void put_row(kt_json_writer *w, const kt_check_row *r) {
    kt_json_begin_object(w);
    kt_json_add_int(w, "goal", r->goal);
    kt_json_add_string(w, "name", r->name);
    kt_json_key(w, "measured");
    if (r->is_measured)
        kt_json_put_double(w, r->measured);
    else
        kt_json_put_null(w);
    kt_json_add_double(w, "bar", r->bar);
    kt_json_add_bool(w, "at_least", r->at_least);
    kt_json_add_string(w, "unit", r->unit);
    kt_json_key(w, "bound");
    if (isfinite(r->bound))
        kt_json_put_double(w, r->bound);
    else
        kt_json_put_null(w);
    kt_json_add_bool(w, "ok", r->verdict == KT_CHECK_OK);
    kt_json_add_string(w, "verdict", kt_check_verdict_name(r->verdict));
    kt_json_add_string(w, "how", r->how);
    kt_json_end_object(w);
}

static void write_json(const selfcheck_state *s, double seconds, kt_json_writer *out) {
    kt_json_writer w = {.indent = 1, .line_at_depth = 1 << 2};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "machine", s->filed ? s->filed : s->bench.class_name);
    kt_json_add_bool(&w, "filed_only", s->filed != NULL);
    kt_json_add_bool(&w, "quick", s->quick);
    kt_json_add_bool(&w, "full", s->full);
    kt_json_add_fixed(&w, "seconds", seconds, 1);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (int i = 0; i < s->check.n_rows; i++) put_row(&w, &s->check.row[i]);
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    *out = w;
}

/* As the switches ask: printed, kept in a file, or both. */
static kt_status deliver_json(const selfcheck_state *s, double seconds, kt_err *err) {
    kt_json_writer w;
    kt_status st = KT_OK;
    size_t size = 0;
    char *text;

    write_json(s, seconds, &w);
    text = kt_json_writer_text(&w, &size) ? malloc(size + 1) : NULL;
    if (text) {
        memcpy(text, kt_json_writer_text(&w, NULL), size);
        text[size] = '\n';
        if (s->json) fwrite(text, 1, size + 1, stdout);
        if (s->out) st = kt_file_write(s->out, text, size + 1, err);
    } else {
        st = kt_fail(err, KT_E_NOMEM, "selfcheck: no memory for the result");
    }
    free(text);
    kt_json_writer_deinit(&w);
    return st;
}

static kt_status find_program(selfcheck_state *s, kt_err *err) {
    ssize_t n = readlink("/proc/self/exe", s->program, sizeof s->program - 1);
    if (n <= 0) return kt_fail(err, KT_E_IO, "/proc/self/exe: cannot be read");
    s->program[n] = '\0';
    return KT_OK;
}

static kt_status check_all(selfcheck_state *s, kt_err *err) {
    kt_check *c = &s->check;

    KT_TRY(find_program(s, err));
    if (s->filed) /* what is filed names variants of its machine, not of this one */
        KT_TRY(kt_registry_create(kt_builtin_variants, kt_builtin_variant_count, ~(kt_isa)0,
                                  &s->bench.registry, err));
    else
        KT_TRY(kt_workbench_init(&s->bench, true, err));
    *c = (kt_check){.registry = s->bench.registry,
                    .topology = &s->bench.topology,
                    .machine = &s->bench.machine,
                    .program = s->program,
                    .results = s->results,
                    .filed_class = s->filed,
                    .quick = s->quick,
                    .full = s->full,
                    .seed = (uint64_t)s->seed,
                    .ask = stop_asked,
                    .ask_arg = (void *)(uintptr_t)s->context};
    KT_TRY(kt_check_init(c, err));
    for (size_t i = 0; i < kt_builtin_goal_count && !*s->context->stop; i++) {
        int first = c->n_rows;
        if (!is_wanted(s->goals, kt_builtin_goals[i]->number) ||
            (s->filed && !kt_builtin_goals[i]->reads_filed))
            continue;
        kt_check_goal(c, kt_builtin_goals[i]);
        for (int r = first; r < c->n_rows && !s->json; r++) print_row(&c->row[r]);
    }
    return *s->context->stop ? kt_fail(err, KT_E_CANCELLED, "selfcheck: stopped") : KT_OK;
}

static int verdict(const selfcheck_state *s) {
    double seconds = (double)(kt_clock_ns() - s->context->start_ns) * 1e-9;
    int n[4] = {0};
    kt_err err = {0};

    for (int i = 0; i < s->check.n_rows; i++) n[s->check.row[i].verdict]++;
    if (deliver_json(s, seconds, &err) != KT_OK) return kt_verb_fail(&err);
    if (!s->json)
        printf("%d rows: %d ok, %d missed, %d unproven, %d not measured; %.0f s\n", s->check.n_rows,
               n[KT_CHECK_OK], n[KT_CHECK_MISSED], n[KT_CHECK_UNPROVEN], n[KT_CHECK_UNMEASURED],
               seconds);
    return n[KT_CHECK_MISSED] ? KT_TUNE_REGRESSION : KT_TUNE_OK;
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    selfcheck_state *s = calloc(1, sizeof *s); /* large */
    const char *words[1];
    kt_err err = {0};
    kt_status st;
    int code;

    if (!s) return KT_TUNE_RESOURCE;
    s->context = context;
    s->results = KT_SOURCE_DIR "/results";
    s->seed = 1;
    const kt_switch switches[] = {
        {"goals", KT_SWITCH_TEXT, &s->goals, "N,N", "only these, 1 to 16; default all"},
        {"quick", KT_SWITCH_FLAG, &s->quick, NULL, "fewer trials and cells: a minute or two"},
        {"full", KT_SWITCH_FLAG, &s->full, NULL,
         "as many trials as the promises name, 20 quick profiles among them: over half an hour"},
        {"results", KT_SWITCH_TEXT, &s->results, "DIR",
         "filed journals; default those of the source tree"},
        {"filed", KT_SWITCH_TEXT, &s->filed, "CLASS",
         "only rows that read filed data, of this machine class: nothing is measured"},
        {"seed", KT_SWITCH_COUNT, &s->seed, "N", "of inputs, kills and resamples; default 1"},
        {"out", KT_SWITCH_TEXT, &s->out, "FILE", "also write the JSON object there"},
        {"json", KT_SWITCH_FLAG, &s->json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "selfcheck", "",
        "Measure what the tuner promises: regret against an oracle, cost of a decision, budgets, "
        "never "
        "worse\nthan the default, noise, gates, kill -9, look-ups, transfer, skew, layers, new "
        "variants, "
        "foreign\ntables, its own overhead, open data. Exit code 5: a bar is missed.",
        "  kttune selfcheck --quick\n  kttune selfcheck --goals 1,4,9 --json\n"};
    code = kt_switches_parse(&usage, switches, 8, argc, argv, words, 0, NULL);
    if (code < 0 && !is_list(s->goals))
        code = kt_switch_fail(&usage, "--goals '%s': expected numbers from 1 to 16 such as 1,4,9",
                              s->goals);
    if (code < 0 && access(s->results, R_OK | X_OK) != 0)
        code = kt_switch_fail(&usage, "--results '%s': no such folder; expected one with journals",
                              s->results);
    if (code < 0 && s->filed && !is_class(s->results, s->filed))
        code =
            kt_switch_fail(&usage, "--filed '%s': no such folder in %s; expected a machine class",
                           s->filed, s->results);
    if (code < 0 && s->quick && s->full)
        code = kt_switch_fail(&usage, "--quick and --full exclude each other");
    if (code < 0) {
        st = check_all(s, &err);
        code = st == KT_OK ? verdict(s) : kt_verb_fail(&err);
        kt_check_deinit(&s->check);
        kt_workbench_deinit(&s->bench);
    }
    free(s);
    return code;
}

const kt_verb kt_verb_selfcheck = {.name = "selfcheck",
                                   .summary = "measure what the tuner promises of itself",
                                   .run = run,
                                   .finishes_on_signal = true};
