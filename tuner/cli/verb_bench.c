/* kttune bench: kernels against the machine's ceilings, or against each other.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/json.h"
#include "tuner/cli/bench_duel.h"
#include "tuner/cli/bench_rows.h"
#include "tuner/cli/workbench.h"
#include "tuner/session/gpu_suite.h"
#include "tuner/session/suite.h"
#include "tuner/space/cell.h"

static const kt_verb_usage usage = {
    "bench", "(--suite NAME | --op OP --variant NAME) ",
    "Time kernels as they are served: after the correctness gate, in the serving pool, on cold\n"
    "weights, in interleaved rounds. Exit code 5 when a bar is missed or A loses against B.\n"
    "The suites line and cpu measure every row six times, minutes apart, each time in a new "
    "process\n"
    "on freshly mapped weights, kernel and ceiling in turns. A figure is the median of the six, "
    "its\n"
    "interval their least and largest (97 %); 'least times' is the fraction by the least time of\n"
    "either. The suite gpu races the kernels of --device for each row, then measures the fastest\n"
    "and its ceilings (copies, products of cuBLASLt) in turns; figures are medians of rounds.",
    "  kttune bench --suite line --json\n"
    "  kttune bench --suite cpu --rows 'dense*'\n"
    "  kttune bench --suite gpu --device cuda --seconds 60s --out bench-gpu.json\n"
    "  kttune bench --op moe_ffn --weights w4g32 --m 1 --n 768 --k 2048 --experts 128/8 \\\n"
    "      --variant w4g32_a8_moe64__avx512vnni --against w4g32_a8_moe64__avx2\n"};

static bool stop_asked(void *arg) {
    const kt_verb_context *context = arg;
    return *context->stop != 0;
}

static void repeat_line(const char *suite, int64_t threads, const char *row, char out[160]) {
    snprintf(out, 160, "kttune bench --suite %.40s --threads %lld --rows '%.40s'", suite,
             (long long)threads, row);
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
        repeat_line(suite, threads, rows[i].name, repeat);
        kt_bench_row_put(&rows[i], repeat, &w);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    text = kt_json_writer_text(&w, &size) ? malloc(size + 2) : NULL;
    if (text) snprintf(text, size + 2, "%s\n", kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
    return text;
}

static void print_text(const kt_workbench *b, const kt_suite *suite, const kt_suite_row *rows,
                       int n, int64_t threads) {
    printf("machine %s, %lld thread%s, %s, A/A noise p95 %.1f %%\n", b->class_name,
           (long long)threads, threads == 1 ? "" : "s", suite->about,
           100 * b->machine.ceilings.aa_noise_p95);
    for (int i = 0; i < n; i++) kt_bench_row_print(&rows[i]);
    printf("repeat: kttune bench --suite %s --threads %lld; one row: --rows NAME\n", suite->name,
           (long long)threads);
}

static int run_suite(const kt_verb_context *context, const char *name, const char *pattern,
                     const char *out, const kt_duel_options *o, double seconds) {
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

    if (!suite) return kt_switch_fail(&usage, "--suite '%s': expected line, cpu or gpu", name);
    if (threads < 1 || threads > 1024)
        return kt_switch_fail(&usage, "--threads: expected 1 to 1024");
    st = kt_workbench_init(&b, true, &err);
    if (st == KT_OK) st = kt_suite_run(suite, b.registry, &b.machine, &options, rows, &n, &err);
    /* What was measured before a stop is shown too. */
    if (st == KT_OK || n > 0) text = json_text(b.class_name, name, threads, rows, n);
    if (text && o->json) fputs(text, stdout);
    if (text && out && kt_file_write(out, text, strlen(text), &why) != KT_OK)
        code = kt_verb_fail(&why);
    free(text);
    if ((st == KT_OK || n > 0) && !o->json) print_text(&b, suite, rows, n, threads);
    if (code == KT_TUNE_OK) code = kt_bench_rows_code(rows, n);
    kt_workbench_deinit(&b);
    return st == KT_OK ? code : kt_verb_fail(&err);
}

/* What --threads and --limit are where nobody says: the suites do not agree. */
enum { UNSAID = -1, USUAL_THREADS = 1, USUAL_LIMIT_SECONDS = 180 };

static int run_on_device(const kt_verb_context *context, const kt_duel_options *o,
                         kt_bench_device *ask) {
    ask->json = o->json;
    ask->seed = (uint64_t)o->seed;
    ask->threads = o->threads == UNSAID ? 0 : o->threads;
    ask->limit = o->limit < 0 ? 0 : o->limit;
    if (!ask->device) ask->device = "cuda";
    return kt_bench_device_run(context, ask);
}

static int run(const kt_verb_context *context, int argc, char **argv) {
    const char *suite = NULL;
    kt_bench_device of = {.device = NULL};
    kt_duel_options o = {.threads = UNSAID, .rounds = 60, .seed = 1, .limit = UNSAID};
    const kt_switch switches[] = {
        {"suite", KT_SWITCH_TEXT, &suite, "NAME",
         "line, cpu or gpu: kernels as fractions of the ceilings"},
        {"device", KT_SWITCH_TEXT, &of.device, "DEV", "of the suite gpu: cuda (default), cuda:1"},
        {"rows", KT_SWITCH_TEXT, &of.rows, "GLOB", "only these rows of the suite: 'int4*'"},
        {"seconds", KT_SWITCH_DURATION, &of.seconds, "TIME",
         "of timing, without choosing the variants; default 1s (line: 2s) a row. Of the suite gpu "
         "all of the run, default 5s a row"},
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
        {"threads", KT_SWITCH_COUNT, &o.threads, "N",
         "default 1; of the suite gpu those that compile, default all cores"},
        {"limit", KT_SWITCH_DURATION, &o.limit, "TIME",
         "until --variant, or a row of the suite, is given up as hanging; default 3m"},
        {"seed", KT_SWITCH_COUNT, &o.seed, "N", "default 1"},
        {"out", KT_SWITCH_TEXT, &of.out, "FILE", "also write a suite's JSON object there"},
        {"pretend-clock", KT_SWITCH_FLAG, &of.pretend_clock, NULL,
         "computed times of an emulated device, for tests"},
        {"json", KT_SWITCH_FLAG, &o.json, NULL, "print a JSON object"},
    };
    int code = kt_switches_parse(&usage, switches, sizeof switches / sizeof *switches, argc, argv,
                                 NULL, 0, NULL);

    if (code >= 0) return code;
    if (suite && strcmp(suite, KT_GPU_SUITE_NAME) == 0) return run_on_device(context, &o, &of);
    if (of.device || of.pretend_clock)
        return kt_switch_fail(&usage, "--device and --pretend-clock go with --suite gpu");
    if (o.threads == UNSAID) o.threads = USUAL_THREADS;
    if (o.limit < 0) o.limit = USUAL_LIMIT_SECONDS;
    if (suite) return run_suite(context, suite, of.rows, of.out, &o, of.seconds);
    if (o.variant) return kt_bench_duel(context, &o, &usage);
    return kt_switch_fail(&usage, "say --suite or --variant");
}

const kt_verb kt_verb_bench = {.name = "bench",
                               .summary = "kernels against the ceilings or each other",
                               .run = run,
                               .finishes_on_signal = true};
