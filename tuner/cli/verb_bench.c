/* kttune bench: kernels against the machine's ceilings, or against each other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "tuner/cli/bench_duel.h"
#include "tuner/cli/workbench.h"
#include "tuner/session/suite.h"
#include "tuner/space/cell.h"

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

static void repeat_line(const char *suite, int64_t threads, const char *row, char out[160]) {
    snprintf(out, 160, "kttune bench --suite %.40s --threads %lld --rows '%.40s'", suite,
             (long long)threads, row);
}

static const char *verdict_of(const kt_suite_row *r) {
    return r->ok ? "ok" : r->skipped ? "skipped" : *r->note ? "failed" : "missed";
}

static const char *rate_unit(const kt_suite_row *r) {
    return r->kind == KT_ROW_ACCURACY ? "percent" : r->is_gbs ? "GB/s" : "Gop/s";
}

/* The caller frees it; it ends in a newline. */
static char *json_text(const char *machine, const char *suite, int64_t threads,
                       const kt_suite_row *rows, int n) {
    kt_json_writer w = {.indent = 2};
    char repeat[160], *text;
    size_t size = 0;
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "machine", machine);
    kt_json_key(&w, "rows");
    kt_json_begin_array(&w);
    for (int i = 0; i < n; i++) {
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "name", rows[i].name);
        kt_json_add_fixed(&w, "measured", rows[i].measured, 4);
        kt_json_add_fixed(&w, "bar", rows[i].bar, 4);
        kt_json_add_string(&w, "unit", rows[i].unit);
        kt_json_add_bool(&w, "ok", rows[i].ok);
        kt_json_add_string(&w, "verdict", verdict_of(&rows[i]));
        kt_json_add_fixed(&w, "rate", rows[i].rate, 3);
        kt_json_add_fixed(&w, "ceiling", rows[i].ceiling, 3);
        kt_json_add_string(&w, "rate_unit", rate_unit(&rows[i]));
        kt_json_add_int(&w, "rounds", rows[i].rounds);
        kt_json_key(&w, "interval");
        kt_json_begin_array(&w);
        kt_json_put_fixed(&w, rows[i].spread.low, 4);
        kt_json_put_fixed(&w, rows[i].spread.high, 4);
        kt_json_end_array(&w);
        if (rows[i].n_placements > 0) {
            kt_json_key(&w, "placements");
            kt_json_begin_array(&w);
            for (int p = 0; p < rows[i].n_placements; p++)
                kt_json_put_fixed(&w, rows[i].placement[p], 4);
            kt_json_end_array(&w);
            kt_json_key(&w, "least_ns");
            kt_json_begin_array(&w);
            for (int k = 0; k < 2; k++) kt_json_put_fixed(&w, rows[i].least_ns[k], 1);
            kt_json_end_array(&w);
            kt_json_add_fixed(&w, "least_times", rows[i].least_times, 4);
        }
        kt_json_add_bool(&w, "at_most", rows[i].at_most);
        kt_json_add_bool(&w, "skipped", rows[i].skipped);
        kt_json_add_string(&w, "contender", rows[i].contender);
        kt_json_key(&w, "repeat");
        repeat_line(suite, threads, rows[i].name, repeat);
        kt_json_put_string(&w, repeat);
        if (*rows[i].detail) kt_json_add_string(&w, "detail", rows[i].detail);
        kt_json_add_string(&w, "note", rows[i].note);
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size) ? malloc(size + 2) : NULL;
    if (text) snprintf(text, size + 2, "%s\n", kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
    return text;
}

static void print_row(const kt_suite_row *r) {
    if (*r->note) {
        printf("%-30s  %s: %s\n", r->name, r->skipped ? "skipped" : "failed", r->note);
        return;
    }
    printf("%-30s %.3f %s", r->name, r->measured, r->unit);
    if (r->kind == KT_ROW_ACCURACY)
        printf("  (%d variants)  error %.3f %%, the format's %.3f %%  ", r->rounds, r->rate,
               r->ceiling);
    else if (r->n_placements > 0)
        printf("  (%.3f .. %.3f, %d placements, %d rounds; least times %.3f)", r->spread.low,
               r->spread.high, r->n_placements, r->rounds, r->least_times);
    else
        printf("  (%.3f .. %.3f, %d rounds)", r->spread.low, r->spread.high, r->rounds);
    if (r->kind != KT_ROW_ACCURACY)
        printf("  %.1f of %.1f %s  ", r->rate, r->ceiling, r->is_gbs ? "GB/s" : "Gop/s");
    if (r->bar > 0) {
        /* Percent of what the bar asks for; above 100 is better either way. */
        double percent = 100 * (r->at_most ? r->bar / r->measured : r->measured / r->bar);
        printf("bar %s%.3g %s (%.0f %%)  ", r->at_most ? "<= " : "", r->bar,
               r->ok ? "ok" : "MISSED", percent);
    }
    printf("[verified] %s\n", r->contender);
    if (*r->detail) printf("%-30s %s\n", "", r->detail);
}

static void print_text(const kt_workbench *b, const kt_suite *suite, const kt_suite_row *rows,
                       int n, int64_t threads) {
    printf("machine %s, %lld thread%s, %s, A/A noise p95 %.1f %%\n", b->class_name,
           (long long)threads, threads == 1 ? "" : "s", suite->about,
           100 * b->machine.ceilings.aa_noise_p95);
    for (int i = 0; i < n; i++) print_row(&rows[i]);
    printf("repeat: kttune bench --suite %s --threads %lld; one row: --rows NAME\n", suite->name,
           (long long)threads);
}

static int run_suite(const kt_verb_context *context, const char *name, const char *pattern,
                     const char *out, const kt_duel_options *o, double seconds,
                     const kt_verb_usage *usage) {
    const int64_t threads = o->threads;
    kt_suite_options options = {.threads = (int)threads,
                                .seconds = seconds,
                                .seed = (uint64_t)o->seed,
                                .row_limit = o->limit,
                                .rows = pattern,
                                .stop = stop_asked,
                                .stop_arg = (void *)(uintptr_t)context};
    const kt_suite *suite = kt_suite_find(name);
    kt_suite_row rows[KT_SUITE_ROWS];
    kt_workbench b = {0};
    kt_err err;
    kt_status st;
    int n = 0, code = KT_TUNE_OK;
    char *text = NULL;
    kt_err why;

    if (!suite) return kt_switch_fail(usage, "--suite '%s': expected line or cpu", name);
    if (threads < 1 || threads > 1024)
        return kt_switch_fail(usage, "--threads: expected 1 to 1024");
    st = kt_workbench_init(&b, true, &err);
    if (st == KT_OK) st = kt_suite_run(suite, b.registry, &b.machine, &options, rows, &n, &err);
    /* What was measured before a stop is shown too. */
    if (st == KT_OK || n > 0) text = json_text(b.class_name, name, threads, rows, n);
    if (text && o->json) fputs(text, stdout);
    if (text && out && kt_file_write(out, text, strlen(text), &why) != KT_OK)
        code = kt_verb_fail(&why);
    free(text);
    if ((st == KT_OK || n > 0) && !o->json) print_text(&b, suite, rows, n, threads);
    for (int i = 0; i < n && code == KT_TUNE_OK; i++)
        if (!rows[i].ok && !rows[i].skipped) code = KT_TUNE_REGRESSION;
    kt_workbench_deinit(&b);
    return st == KT_OK ? code : kt_verb_fail(&err);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *suite = NULL, *rows = NULL, *out = NULL;
    double seconds = 0;
    kt_duel_options o = {.threads = 1, .rounds = 60, .seed = 1, .limit = 180};
    const kt_switch switches[] = {
        {"suite", KT_SWITCH_TEXT, &suite, "NAME",
         "line or cpu: kernels as fractions of the ceilings"},
        {"rows", KT_SWITCH_TEXT, &rows, "GLOB", "only these rows of the suite: 'int4*'"},
        {"seconds", KT_SWITCH_DURATION, &seconds, "TIME",
         "of timing, without choosing the variants; default 1s (line: 2s) a row"},
        {"op", KT_SWITCH_TEXT, &o.op, "OP", KT_TUNED_OPS},
        {"acts", KT_SWITCH_TEXT, &o.acts, "F", "a8, a8p ...; default those that the variant reads"},
        {"weights", KT_SWITCH_TEXT, &o.weights, "F", "wbf16, w8c, w4g32, wq4_k ..."},
        {"variant", KT_SWITCH_TEXT, &o.variant, "NAME", "the variant to time"},
        {"set", KT_SWITCH_TEXT, &o.set, "P=V,..", "its parameters; default the initial ones"},
        {"against", KT_SWITCH_TEXT, &o.against, "NAME", "a second one, in alternating rounds"},
        {"against-set", KT_SWITCH_TEXT, &o.against_set, "P=V,..", "parameters of the second"},
        {"m", KT_SWITCH_COUNT, &o.m, "N", "rows (of each expert)"},
        {"n", KT_SWITCH_COUNT, &o.n, "N", "outputs (moe_ffn: intermediate size)"},
        {"k", KT_SWITCH_COUNT, &o.k, "N", "inputs (moe_ffn: hidden size)"},
        {"experts", KT_SWITCH_SIZE, o.experts, "E/K", "experts and how many a token uses"},
        {"kv-heads", KT_SWITCH_COUNT, &o.kv_heads, "N", "attn, delta: key heads"},
        {"v", KT_SWITCH_COUNT, &o.v, "N", "attn, delta: size of a value; --k that of a key"},
        {"context", KT_SWITCH_COUNT, &o.context, "N", "attn, index: keys"},
        {"rounds", KT_SWITCH_COUNT, &o.rounds, "N", "default 60"},
        {"threads", KT_SWITCH_COUNT, &o.threads, "N", "default 1"},
        {"limit", KT_SWITCH_DURATION, &o.limit, "TIME",
         "until --variant, or a row of the suite, is given up as hanging; default 3m"},
        {"seed", KT_SWITCH_COUNT, &o.seed, "N", "default 1"},
        {"out", KT_SWITCH_TEXT, &out, "FILE", "also write a suite's JSON object there"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "print a JSON object"},
    };
    const kt_verb_usage usage = {
        "bench", "(--suite NAME | --op OP --variant NAME) ",
        "Time kernels as they are served: after the correctness gate, in the serving pool, on "
        "cold\n"
        "weights, in interleaved rounds. Exit code 5 when a bar is missed or A loses against B.\n"
        "A suite measures every row six times, minutes apart, each time in a new process on "
        "freshly\n"
        "mapped weights, kernel and ceiling in turns. A figure is the median of the six, its "
        "interval\n"
        "their least and largest (97 %); 'least times' is the fraction by the least time of "
        "either.",
        "  kttune bench --suite line --json\n"
        "  kttune bench --suite cpu --rows 'dense*'\n"
        "  kttune bench --op moe_ffn --weights w4g32 --m 1 --n 768 --k 2048 --experts 128/8 \\\n"
        "      --variant w4g32_a8_moe64__avx512vnni --against w4g32_a8_moe64__avx2\n"};
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 NULL, 0, NULL);

    if (code >= 0) return code;
    if (suite) return run_suite(context, suite, rows, out, &o, seconds, &usage);
    if (o.variant) return kt_bench_duel(context, &o, &usage);
    return kt_switch_fail(&usage, "say --suite or --variant");
}

const kt_verb kt_verb_bench = {.name = "bench",
                               .summary = "kernels against the ceilings or each other",
                               .run = run,
                               .finishes_on_signal = true};
