/* kt bench serve, kt bench compare. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_serve.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/cli/interrupt.h"
#include "runtime/cli/options.h"
#include "runtime/client/load_stats.h"

typedef struct load_flags {
    const char *dataset, *goodput, *model, *api_key, *temperature;
    int64_t n, input_len, output_len, concurrency, seed, warmups, rounds;
    double rate, range, timeout, margin;
    bool chat, stop_early, json;
} load_flags;

#define LOAD_FLAGS_INITIAL                                                                       \
    {                                                                                            \
        .n = 32, .input_len = 256, .output_len = -1, .concurrency = -1, .seed = 1, .warmups = 1, \
        .rounds = 6, .timeout = 600, .margin = 3                                                 \
    }

#define LOAD_OPTIONS(f)                                                                           \
    KT_OPTION_STRING(                                                                             \
        "dataset", 0, &(f).dataset, "FILE",                                                       \
        "prompts: JSON lines with \"prompt\" and \"max_tokens\", or ShareGPT; default "           \
        "made up"),                                                                               \
        KT_OPTION_INT("input-len", 0, &(f).input_len, 1, 1 << 22,                                 \
                      "words of a made-up prompt, each about a token (default 256)"),             \
        KT_OPTION_INT("output-len", 0, &(f).output_len, 1, 1 << 22,                               \
                      "tokens of an answer (default 128, or as the dataset says)"),               \
        KT_OPTION_DOUBLE("range-ratio", &(f).range, 0, 1,                                         \
                         "made-up lengths vary by this part (default 0)"),                        \
        KT_OPTION_DOUBLE("request-rate", &(f).rate, 0, 1e6,                                       \
                         "open loop: Poisson arrivals per second (default 0 = closed loop)"),     \
        KT_OPTION_INT("max-concurrency", 'c', &(f).concurrency, 1, 4096,                          \
                      "requests under way at once (default 1; no limit with --request-rate)"),    \
        KT_OPTION_FLAG("chat", &(f).chat, "/v1/chat/completions instead of /v1/completions"),     \
        KT_OPTION_FLAG("stop-early", &(f).stop_early,                                             \
                       "let answers end by themselves (no ignore_eos)"),                          \
        KT_OPTION_STRING("temperature", 0, &(f).temperature, "T", "default: the server's"),       \
        KT_OPTION_STRING("model", 0, &(f).model, "NAME", "model field of the requests"),          \
        KT_OPTION_STRING("api-key", 0, &(f).api_key, "KEY", "default $OPENAI_API_KEY"),           \
        KT_OPTION_INT("warmups", 0, &(f).warmups, 0, 1000,                                        \
                      "requests before measuring (default 1)"),                                   \
        KT_OPTION_DOUBLE("timeout", &(f).timeout, 0.1, 1e6,                                       \
                         "seconds for an answer (default 600)"),                                  \
        KT_OPTION_INT("seed", 0, &(f).seed, 0, 1LL << 53, "of prompts and arrivals (default 1)"), \
        KT_OPTION_FLAG("json", &(f).json, "print one JSON object")

static const kt_usage serve_usage = {
    .command = "bench serve",
    .arguments = "URL",
    .about =
        "Load a running OpenAI-compatible server and measure TTFT, TPOT, ITL, E2EL (milliseconds) "
        "and throughput,\nunder the names of vllm bench serve and sglang.bench_serving. URL may be "
        "unix:PATH.",
    .examples =
        "  kt bench serve http://127.0.0.1:8000 -n 64 -c 8 --input-len 512 --output-len 128\n"
        "  kt bench serve http://127.0.0.1:8000 --request-rate 2 --goodput ttft:500,tpot:100\n"
        "  kt bench serve http://127.0.0.1:8000 --chat --dataset sharegpt.json --json\n"};

static const kt_usage compare_usage = {
    .command = "bench compare",
    .arguments = "URL_A URL_B",
    .about =
        "Decide whether server B should replace server A: rounds of the same requests to both in "
        "turn, ratios with 95 %\nintervals, and promote (something better, nothing worse), "
        "trade-off "
        "(some better, some worse) or retain. With\nunder 4 rounds intervals are wide.",
    .examples = "  kt bench compare http://old:8000 http://new:8000 --rounds 8 -n 16 -c 4\n"};

static bool is_cancelled(void *arg) {
    (void)arg;
    return kt_interrupted(NULL);
}

static void show_progress(void *arg, size_t done, size_t failed) {
    (void)arg;
    if (!isatty(STDERR_FILENO)) return;
    fprintf(stderr, "\r%zu answers", done);
    if (failed) fprintf(stderr, ", %zu failed", failed);
    fputc(' ', stderr);
}

static void end_progress(void) {
    if (isatty(STDERR_FILENO)) fprintf(stderr, "\r%40s\r", "");
}

static kt_load_options options_of(const load_flags *f) {
    kt_load_options o = {.model = f->model,
                         .api_key = f->api_key ? f->api_key : getenv("OPENAI_API_KEY"),
                         .chat = f->chat,
                         .stop_early = f->stop_early,
                         .temperature = f->temperature,
                         .rate = f->rate,
                         .concurrency = (int)f->concurrency,
                         .timeout_s = f->timeout,
                         .seed = (uint64_t)f->seed,
                         .cancelled = is_cancelled,
                         .progress = show_progress};

    if (f->concurrency < 0) o.concurrency = f->rate > 0 ? 0 : 1;
    if (o.api_key && !*o.api_key) o.api_key = NULL;
    return o;
}

/* A wrong URL or limit is a mistake of the command line. */
static int fail(const kt_usage *usage, const kt_err *err) {
    if (err->status == KT_E_INVALID) return kt_usage_fail(usage, "%s", err->message);
    return kt_command_fail(err);
}

/* What the command line cannot mean; 0 or an exit code. */
static int check_flags(const load_flags *f, const kt_usage *usage) {
    char *end;

    if (f->api_key && strpbrk(f->api_key, "\r\n"))
        return kt_usage_fail(usage, "--api-key holds a line's end");
    if (!f->temperature) return 0;
    if (!(strtod(f->temperature, &end) >= 0) || *end || end == f->temperature ||
        strspn(f->temperature, "0123456789.") != strlen(f->temperature))
        return kt_usage_fail(usage, "--temperature '%s' is no number", f->temperature);
    return 0;
}

static kt_status make_data(const load_flags *f, size_t n, kt_load_data *data, kt_err *err) {
    if (f->dataset)
        return kt_load_data_file(f->dataset, n, f->output_len > 0 ? f->output_len : 0, data, err);
    return kt_load_data_synthetic(n, f->input_len, f->output_len > 0 ? f->output_len : 128,
                                  f->range, (uint64_t)f->seed, data, err);
}

static kt_status warm_up(const kt_target *target, const load_flags *f, const kt_load_data *data,
                         kt_err *err) {
    kt_load_options o = options_of(f);
    kt_load_result r;
    kt_status st;

    if (f->warmups == 0) return KT_OK;
    o.rate = 0;
    o.concurrency = 1;
    KT_TRY(kt_load_run(target, &o, data, 0, (size_t)f->warmups, &r, err));
    st = KT_OK;
    if (*r.answers[r.n - 1].error)
        st = kt_fail(err, KT_E_IO, "%s: %s", target->name, r.answers[r.n - 1].error);
    kt_load_result_deinit(&r);
    return st;
}

static kt_status measure(const kt_target *target, const load_flags *f, const kt_load_data *data,
                         size_t from, const kt_load_slo *slo, kt_load_report *report, kt_err *err) {
    kt_load_options o = options_of(f);
    kt_load_result r;
    kt_status st;

    o.seed += from;
    st = kt_load_run(target, &o, data, from, (size_t)f->n, &r, err);
    end_progress();
    if (st != KT_OK) return st;
    st = kt_load_report_make(&r, slo, report, err);
    kt_load_result_deinit(&r);
    return st;
}

/* ---- serve ---- */

static void put_load(const load_flags *f, kt_json_writer *w) {
    const kt_load_options o = options_of(f);

    kt_json_add_string(w, "version", KT_VERSION);
    kt_json_add_string(w, "dataset", f->dataset ? f->dataset : "synthetic");
    kt_json_add_string(w, "endpoint", f->chat ? "/v1/chat/completions" : "/v1/completions");
    kt_json_add_int(w, "num_prompts", f->n);
    kt_json_key(w, "request_rate");
    if (f->rate > 0)
        kt_json_put_double(w, f->rate);
    else
        kt_json_put_string(w, "inf");
    kt_json_key(w, "max_concurrency");
    if (o.concurrency)
        kt_json_put_int(w, o.concurrency);
    else
        kt_json_put_null(w);
}

static void print_serve(const char *url, const load_flags *f, const kt_load_report *r) {
    kt_json_writer w = {0};

    if (!f->json) {
        kt_load_report_print(r, stdout);
        return;
    }
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "url", url);
    put_load(f, &w);
    kt_load_report_put(r, &w);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

static kt_status run_serve(const char *url, const load_flags *f, kt_load_report *report,
                           kt_err *err) {
    kt_load_slo slo;
    kt_target target;
    kt_load_data data;
    kt_status st;

    if (f->goodput) KT_TRY(kt_load_slo_parse(f->goodput, &slo, err));
    KT_TRY(kt_target_parse(url, &target, err));
    KT_TRY(make_data(f, (size_t)(f->warmups + f->n), &data, err));
    st = warm_up(&target, f, &data, err);
    if (st == KT_OK)
        st = measure(&target, f, &data, (size_t)f->warmups, f->goodput ? &slo : NULL, report, err);
    kt_load_data_deinit(&data);
    return st;
}

int kt_bench_serve(int argc, char **argv) {
    load_flags f = LOAD_FLAGS_INITIAL;
    const kt_option options[] = {
        KT_OPTION_INT("num-prompts", 'n', &f.n, 1, 1 << 20, "requests to measure (default 32)"),
        KT_OPTION_STRING("goodput", 0, &f.goodput, "SLOS",
                         "count answers within limits, as in ttft:500,tpot:50,e2el:10000 (ms)"),
        LOAD_OPTIONS(f)};
    const char *url = NULL;
    int n_words = 0, code;
    kt_load_report report;
    kt_err err = {KT_OK, ""};

    code = kt_options_parse(&serve_usage, options, sizeof options / sizeof *options, argc, argv,
                            &url, 1, &n_words);
    if (code >= 0) return code;
    if (!n_words) return kt_usage_fail(&serve_usage, "no URL given");
    code = check_flags(&f, &serve_usage);
    if (code) return code;
    kt_interrupt_watch();
    if (run_serve(url, &f, &report, &err) != KT_OK) {
        end_progress();
        return fail(&serve_usage, &err);
    }
    print_serve(url, &f, &report);
    return report.completed ? KT_EXIT_OK : KT_EXIT_FAILURE;
}

/* ---- compare ---- */

typedef struct comparison {
    kt_target target[2];
    kt_load_report *reports[2]; /* [rounds] */
    kt_load_change changes[KT_LOAD_CHANGES];
    kt_load_decision decision;
} comparison;

/* ABBA: a drift of the machine over time meets both alike. */
static kt_status run_rounds(comparison *c, const load_flags *f, const kt_load_data *data,
                            kt_err *err) {
    for (int side = 0; side < 2; side++) KT_TRY(warm_up(&c->target[side], f, data, err));
    for (int64_t round = 0; round < f->rounds; round++)
        for (int turn = 0; turn < 2; turn++) {
            int side = turn ^ (int)(round & 1);
            KT_TRY(measure(&c->target[side], f, data, (size_t)(f->warmups + round * f->n), NULL,
                           &c->reports[side][round], err));
        }
    c->decision = kt_load_compare(c->reports[0], c->reports[1], (size_t)f->rounds, f->margin / 100,
                                  c->changes);
    return KT_OK;
}

static kt_status run_compare(comparison *c, const char *const *urls, const load_flags *f,
                             kt_err *err) {
    kt_load_data data;
    kt_status st;

    for (int side = 0; side < 2; side++) {
        KT_TRY(kt_target_parse(urls[side], &c->target[side], err));
        c->reports[side] = calloc((size_t)f->rounds, sizeof *c->reports[side]);
        if (!c->reports[side]) return kt_fail(err, KT_E_NOMEM, "no memory for the rounds");
    }
    KT_TRY(make_data(f, (size_t)(f->warmups + f->rounds * f->n), &data, err));
    st = run_rounds(c, f, &data, err);
    kt_load_data_deinit(&data);
    return st;
}

static size_t count_failed(const comparison *c, int side, int64_t rounds) {
    size_t n = 0;

    for (int64_t i = 0; i < rounds; i++) n += c->reports[side][i].failed;
    return n;
}

static void print_change(const kt_load_change *c) {
    if (c->n < 2) {
        printf("%-18s not measured in two rounds\n", c->name);
        return;
    }
    printf("%-18s A %10.2f   B %10.2f   B/A %.3f [%.3f, %.3f]   %s\n", c->name, c->a, c->b,
           c->ratio, c->low, c->high, kt_load_verdict_name(c->verdict));
}

static void print_compare(const comparison *c, const char *const *urls, const load_flags *f) {
    printf("A %s\nB %s\n%lld rounds of %lld requests, A and B in turn; margin %g %%, intervals of "
           "95 %%\n",
           urls[0], urls[1], (long long)f->rounds, (long long)f->n, f->margin);
    for (int i = 0; i < KT_LOAD_CHANGES; i++) print_change(&c->changes[i]);
    for (int side = 0; side < 2; side++)
        if (count_failed(c, side, f->rounds))
            printf("%s failed %zu requests\n", side ? "B" : "A", count_failed(c, side, f->rounds));
    printf("decision: %s\n", kt_load_decision_name(c->decision));
}

static void put_compare(const comparison *c, const char *const *urls, const load_flags *f) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "decision", kt_load_decision_name(c->decision));
    kt_json_add_string(&w, "url_a", urls[0]);
    kt_json_add_string(&w, "url_b", urls[1]);
    put_load(f, &w);
    kt_json_add_int(&w, "rounds", f->rounds);
    kt_json_add_double(&w, "margin_percent", f->margin);
    kt_json_add_int(&w, "failed_a", (int64_t)count_failed(c, 0, f->rounds));
    kt_json_add_int(&w, "failed_b", (int64_t)count_failed(c, 1, f->rounds));
    kt_json_key(&w, "changes");
    kt_json_begin_array(&w);
    for (int i = 0; i < KT_LOAD_CHANGES; i++) {
        const kt_load_change *x = &c->changes[i];
        kt_json_begin_object(&w);
        kt_json_add_string(&w, "name", x->name);
        kt_json_add_int(&w, "rounds", (int64_t)x->n);
        if (x->n >= 2) {
            kt_json_add_double(&w, "a", x->a);
            kt_json_add_double(&w, "b", x->b);
            kt_json_add_double(&w, "ratio", x->ratio);
            kt_json_add_double(&w, "low", x->low);
            kt_json_add_double(&w, "high", x->high);
        }
        kt_json_add_string(&w, "verdict", kt_load_verdict_name(x->verdict));
        kt_json_end_object(&w);
    }
    kt_json_end_array(&w);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

int kt_bench_compare(int argc, char **argv) {
    load_flags f = LOAD_FLAGS_INITIAL;
    const kt_option options[] = {
        KT_OPTION_INT("num-prompts", 'n', &f.n, 1, 1 << 16, "requests of a round (default 8)"),
        KT_OPTION_INT("rounds", 'r', &f.rounds, 2, 1000, "rounds (default 6)"),
        KT_OPTION_DOUBLE("margin", &f.margin, 0, 100, "percent that do not matter (default 3)"),
        LOAD_OPTIONS(f)};
    const char *urls[2] = {NULL, NULL};
    comparison c = {.decision = KT_LOAD_RETAIN};
    int n_words = 0, code;
    kt_err err = {KT_OK, ""};

    f.n = 8;
    code = kt_options_parse(&compare_usage, options, sizeof options / sizeof *options, argc, argv,
                            urls, 2, &n_words);
    if (code >= 0) return code;
    if (n_words != 2) return kt_usage_fail(&compare_usage, "expected two URLs");
    code = check_flags(&f, &compare_usage);
    if (code) return code;
    kt_interrupt_watch();
    code = KT_EXIT_OK;
    if (run_compare(&c, urls, &f, &err) != KT_OK) {
        end_progress();
        code = fail(&compare_usage, &err);
    } else if (f.json) {
        put_compare(&c, urls, &f);
    } else {
        print_compare(&c, urls, &f);
    }
    free(c.reports[0]);
    free(c.reports[1]);
    return code;
}
