/* runtime/client: loading servers and what is made of the times.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/runtime/scripted_server.h"

#include <math.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/json.h"
#include "runtime/client/load_stats.h"
#include "tests/support/temp.h"

#define KT KT_BUILD_DIR "/kt "

/* ---- figures ---- */

static void near(double got, double want, const char *what) {
    cr_assert(fabs(got - want) <= 1e-6 * fmax(1, fabs(want)), "%s: %.9g, expected %.9g", what, got,
              want);
}

/* One answer of made-up times in ms: first text, then gaps. */
static kt_load_answer answer_of(double first, const float *gaps, int n_gaps, int64_t tokens) {
    kt_load_answer a = {.status = 200,
                        .start_ns = 1000,
                        .prompt_tokens = 10,
                        .cached_tokens = 4,
                        .output_tokens = tokens,
                        .n_pieces = n_gaps + 1};
    double sum = 0;

    a.gap_ms = malloc(((size_t)n_gaps + 1) * sizeof *a.gap_ms);
    for (int i = 0; i < n_gaps; i++) {
        a.gap_ms[i] = gaps[i];
        sum += (double)gaps[i];
    }
    a.first_ns = 1000 + (int64_t)(first * 1e6);
    a.last_ns = a.first_ns + (int64_t)(sum * 1e6);
    a.end_ns = a.last_ns + 1000000;
    return a;
}

Test(load, figures_follow_their_definitions) {
    static const float even[] = {10, 10, 10, 10}, odd[] = {5, 35};
    kt_load_answer answers[3] = {
        answer_of(100, even, 4, 5), answer_of(300, odd, 2, 5), {.error = "refused"}};
    kt_load_result r = {answers, 3, 2.0};
    kt_load_slo slo;
    kt_load_report report;
    const kt_load_spread *s = report.spread;

    cr_assert_eq(kt_load_slo_parse("ttft:200,tpot:50", &slo, NULL), KT_OK);
    cr_assert_eq(kt_load_report_make(&r, &slo, &report, NULL), KT_OK);
    cr_assert(report.completed == 2 && report.failed == 1 && report.good == 1);
    cr_assert_str_eq(report.first_error, "refused");
    cr_assert(report.input_tokens == 20 && report.output_tokens == 10 && report.cached_tokens == 8);
    near(s[KT_LOAD_TTFT].mean, 200, "mean TTFT");
    near(s[KT_LOAD_TTFT].p99, 298, "P99 TTFT, between the two");
    near(s[KT_LOAD_TTFT].deviation, 100, "deviation of TTFT");
    near(s[KT_LOAD_TPOT].mean, 10, "TPOT: 40 ms over 4 tokens, twice");
    cr_assert_eq(s[KT_LOAD_ITL].n, 6);
    near(s[KT_LOAD_ITL].median, 10, "median ITL");
    near(s[KT_LOAD_ITL].p95, 28.75, "P95 ITL: 0.75 of the way from 10 to 35");
    near(s[KT_LOAD_ITL].max, 35, "largest ITL");
    near(s[KT_LOAD_E2EL].median, 241, "E2EL");
    for (int i = 0; i < 2; i++) kt_load_answer_deinit(&answers[i]);
}

Test(load, limits_are_read_or_refused_by_name) {
    static const char *const bad[] = {"ttft",    "ttft:",   "ttft:-1", "ttft:x",
                                      "speed:3", "ttft:1x", "ttft:inf"};
    kt_load_slo slo;
    kt_err err;

    cr_assert_eq(kt_load_slo_parse("ttft:500 itl:20.5,e2el:1e4", &slo, &err), KT_OK);
    cr_assert(slo.limit[KT_LOAD_TTFT] == 500 && slo.limit[KT_LOAD_ITL] == 20.5 &&
              slo.limit[KT_LOAD_E2EL] == 10000 && slo.limit[KT_LOAD_TPOT] == 0);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cr_assert_eq(kt_load_slo_parse(bad[i], &slo, &err), KT_E_INVALID, "%s", bad[i]);
        cr_assert(strstr(err.message, "goodput"), "%s", err.message);
    }
}

/* Rounds of which each quantity of B is A's times a factor, give or take noise. */
static kt_load_decision compare(double speed, double first, double tail, double noise,
                                size_t failed_b, kt_load_change *changes) {
    enum { ROUNDS = 6 };
    kt_load_report a[ROUNDS], b[ROUNDS];

    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (int i = 0; i < ROUNDS; i++) {
        double wave = 1 + 0.2 * sin(i), shake = 1 + noise * (i % 2 ? 1 : -1);
        a[i] = (kt_load_report){.completed = 8, .duration_s = wave, .output_tokens = 800};
        b[i] = a[i];
        b[i].duration_s = wave / speed * shake;
        for (int m = 0; m < KT_LOAD_METRICS; m++) {
            a[i].spread[m].median = 10 * wave;
            a[i].spread[m].p99 = 30 * wave;
            b[i].spread[m].median = 10 * wave / speed * shake * (m == KT_LOAD_TTFT ? first : 1);
            b[i].spread[m].p99 = 30 * wave * tail * shake;
        }
    }
    b[0].failed = failed_b;
    return kt_load_compare(a, b, ROUNDS, 0.03, changes);
}

Test(load, decisions_follow_the_intervals) {
    kt_load_change c[KT_LOAD_CHANGES];

    cr_assert_eq(compare(1.3, 1, 1, 0.01, 0, c), KT_LOAD_PROMOTE);
    cr_assert_str_eq(c[0].name, "output_throughput");
    cr_assert(c[0].n == 6 && c[0].low < 1.3 && c[0].high > 1.3 && c[0].low > 1.25, "%g %g",
              c[0].low, c[0].high);
    cr_assert(c[0].verdict == KT_LOAD_BETTER && c[4].verdict == KT_LOAD_SAME);
    cr_assert_eq(compare(1.3, 2, 1, 0.01, 0, c), KT_LOAD_TRADE_OFF);
    cr_assert_eq(c[1].verdict, KT_LOAD_WORSE);
    cr_assert_eq(compare(1.3, 1, 2, 0.01, 0, c), KT_LOAD_TRADE_OFF);
    cr_assert_eq(compare(1.0, 1, 1, 0.01, 0, c), KT_LOAD_RETAIN); /* nothing better */
    cr_assert_eq(compare(0.7, 1, 1, 0.01, 0, c), KT_LOAD_RETAIN);
    cr_assert_eq(compare(1.02, 1, 1, 0.001, 0, c), KT_LOAD_RETAIN); /* within the margin */
    cr_assert_eq(compare(1.3, 1.3, 1, 0.2, 0, c), KT_LOAD_RETAIN);  /* TTFT is not clear */
    cr_assert_eq(c[1].verdict, KT_LOAD_UNCLEAR);
    cr_assert_eq(compare(1.3, 1, 1, 0.01, 1, c), KT_LOAD_RETAIN); /* B fails one */
}

/* ---- prompts ---- */

Test(load, made_up_prompts_have_their_lengths) {
    kt_load_data a, b;

    cr_assert_eq(kt_load_data_synthetic(50, 100, 20, 0.5, 3, &a, NULL), KT_OK);
    cr_assert_eq(kt_load_data_synthetic(50, 100, 20, 0.5, 3, &b, NULL), KT_OK);
    for (size_t i = 0; i < 50; i++) {
        int spaces = 0;
        for (const char *p = a.prompts[i].text; *p; p++) spaces += *p == ' ';
        cr_assert(spaces >= 49 && spaces <= 149, "%d spaces", spaces);
        cr_assert(a.prompts[i].max_tokens >= 10 && a.prompts[i].max_tokens <= 30);
        cr_assert_str_eq(a.prompts[i].text, b.prompts[i].text);
        cr_assert_eq(strlen(a.prompts[i].text), a.prompts[i].size);
    }
    cr_assert_str_neq(a.prompts[0].text, a.prompts[1].text);
    kt_load_data_deinit(&a);
    kt_load_data_deinit(&b);
}

Test(load, prompts_come_from_files) {
    static const char lines[] =
        "{\"prompt\":\"a\",\"max_tokens\":5}\n\n{\"prompt\":\"b\"}\n"
        "{\"conversations\":[{\"from\":\"system\",\"value\":\"s\"},{\"from\":"
        "\"human\",\"value\":\"q\"},{\"from\":\"gpt\",\"value\":\"12345678\"}]}";
    static const char array[] = "[{\"prompt\":\"x\\n\"}]",
                      bad[] = "{\"prompt\":\"a\"}\n{\"prompt\":7}\n";
    char folder[256], path[300];
    kt_load_data d;
    kt_err err;

    kt_temp_make(folder, sizeof folder);
    kt_temp_write(folder, "lines", lines, sizeof lines - 1);
    kt_temp_write(folder, "array", array, sizeof array - 1);
    kt_temp_write(folder, "bad", bad, sizeof bad - 1);
    kt_temp_write(folder, "empty", "\n", 1);
    snprintf(path, sizeof path, "%s/lines", folder);
    cr_assert_eq(kt_load_data_file(path, 4, 0, &d, &err), KT_OK, "%s", err.message);
    cr_assert_str_eq(d.prompts[0].text, "a");
    cr_assert(d.prompts[0].max_tokens == 5 && d.prompts[1].max_tokens == 128);
    cr_assert(strcmp(d.prompts[2].text, "q") == 0 && d.prompts[2].max_tokens == 2);
    cr_assert_str_eq(d.prompts[3].text, "a");
    kt_load_data_deinit(&d);
    snprintf(path, sizeof path, "%s/array", folder);
    cr_assert_eq(kt_load_data_file(path, 2, 9, &d, &err), KT_OK, "%s", err.message);
    cr_assert(strcmp(d.prompts[1].text, "x\n") == 0 && d.prompts[1].max_tokens == 9);
    kt_load_data_deinit(&d);
    snprintf(path, sizeof path, "%s/bad", folder);
    cr_assert_eq(kt_load_data_file(path, 2, 0, &d, &err), KT_E_FORMAT);
    cr_assert(strstr(err.message, "row 2") && strstr(err.message, "'prompt'"), "%s", err.message);
    snprintf(path, sizeof path, "%s/empty", folder);
    cr_assert_eq(kt_load_data_file(path, 2, 0, &d, &err), KT_E_FORMAT);
    cr_assert_null(d.prompts);
    kt_temp_remove(folder);
}

/* ---- targets ---- */

Test(load, urls_are_read_or_refused) {
    static const char *const bad[] = {"https://127.0.0.1",        "http://:80",
                                      "http://127.0.0.1:x",       "127.0.0.1:",
                                      "http://127.0.0.1:1234567", ""};
    kt_target t;
    kt_err err;

    cr_assert_eq(kt_target_parse("http://127.0.0.1:8000/v1/", &t, &err), KT_OK, "%s", err.message);
    cr_assert_str_eq(t.name, "127.0.0.1:8000");
    cr_assert_str_eq(t.base, "");
    cr_assert_eq(kt_target_parse("127.0.0.1:81/api/v1", &t, &err), KT_OK, "%s", err.message);
    cr_assert_str_eq(t.base, "/api");
    cr_assert_eq(kt_target_parse("HTTP://[::1]:81", &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(t.address[0].ss_family, AF_INET6);
    cr_assert_str_eq(t.name, "[::1]:81");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        cr_assert_eq(kt_target_parse(bad[i], &t, &err), KT_E_INVALID, "%s: %s", bad[i],
                     err.message);
}

/* ---- runs ---- */

static kt_load_result load(scripted_server *s, kt_load_options o, size_t n) {
    char url[64];
    kt_load_data d;
    kt_target t;
    kt_load_result r;
    kt_err err = {0};

    scripted_start(s);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", s->port);
    if (o.timeout_s == 0) o.timeout_s = 20;
    cr_assert_eq(kt_target_parse(url, &t, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_load_data_synthetic(n, 8, 5, 0, 1, &d, &err), KT_OK);
    cr_assert_eq(kt_load_run(&t, &o, &d, 0, n, &r, &err), KT_OK, "%s", err.message);
    cr_assert_eq(r.n, n);
    kt_load_data_deinit(&d);
    scripted_stop(s);
    return r;
}

Test(load, answers_are_timed_in_every_framing, .timeout = 60) {
    static const scripted_kind kinds[] = {SCRIPTED_CHUNKED, SCRIPTED_CLOSED, SCRIPTED_LENGTH};

    for (size_t k = 0; k < 3; k++)
        for (int chat = 0; chat < 2; chat++) {
            scripted_server s = {
                .kind = kinds[k], .chat = chat, .head_ms = 30, .gap_ms = 10, .n_pieces = 5};
            kt_load_result r = load(&s, (kt_load_options){.chat = chat, .concurrency = 2}, 4);
            for (size_t i = 0; i < 4; i++) {
                const kt_load_answer *a = &r.answers[i];
                cr_assert_str_eq(a->error, "", "kind %zu: %s", k, a->error);
                cr_assert(a->status == 200 && a->n_pieces == 5 && a->output_tokens == 5);
                cr_assert(a->prompt_tokens == 7 && a->cached_tokens == 3);
                cr_assert_geq(a->first_ns - a->start_ns, 29 * 1000000);
                cr_assert_geq(a->last_ns - a->first_ns, 30 * 1000000);
                cr_assert(a->end_ns >= a->last_ns);
            }
            cr_assert(r.duration_s >= 0.13, "%g s", r.duration_s); /* two after two */
            cr_assert_not_null(
                strstr(s.last, chat ? "POST /v1/chat/completions " : "POST /v1/completions "));
            cr_assert(strstr(s.last, "\"ignore_eos\":true") && strstr(s.last, "\"max_tokens\":5"),
                      "%s", s.last);
            kt_load_result_deinit(&r);
        }
}

Test(load, a_closed_loop_keeps_its_concurrency, .timeout = 60) {
    scripted_server s = {.kind = SCRIPTED_CLOSED, .head_ms = 5, .gap_ms = 1, .n_pieces = 3};
    kt_load_options o = {
        .concurrency = 4, .model = "m", .api_key = "k", .temperature = "0.5", .stop_early = true};
    kt_load_result r = load(&s, o, 40);

    cr_assert_eq(atomic_load(&s.n_requests), 40);
    cr_assert_leq(atomic_load(&s.most_active), 5); /* one may still be closing */
    cr_assert_geq(atomic_load(&s.most_active), 3);
    cr_assert(strstr(s.last, "\"model\":\"m\"") && strstr(s.last, "Authorization: Bearer k\r\n") &&
                  strstr(s.last, "\"temperature\":0.5") && !strstr(s.last, "ignore_eos"),
              "%s", s.last);
    kt_load_result_deinit(&r);
}

Test(load, an_open_loop_does_not_wait_for_answers, .timeout = 60) {
    scripted_server s = {.kind = SCRIPTED_CLOSED, .head_ms = 300, .n_pieces = 1};
    kt_load_result r = load(&s, (kt_load_options){.rate = 100, .seed = 5}, 20);

    cr_assert_gt(atomic_load(&s.most_active), 8); /* 100 a second of 300 ms each */
    for (size_t i = 0; i < r.n; i++) cr_assert_str_eq(r.answers[i].error, "");
    kt_load_result_deinit(&r);
}

Test(load, what_fails_says_why, .timeout = 60) {
    static const struct {
        scripted_kind kind;
        const char *says;
    } kinds[] = {{SCRIPTED_ERROR, "no such model"},     {SCRIPTED_CUT, "broke off"},
                 {SCRIPTED_EVENT_ERROR, "out of luck"}, {SCRIPTED_GARBAGE, "not the HTTP"},
                 {SCRIPTED_SILENT, "time limit"},       {SCRIPTED_LENGTH, "no text"}};

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        scripted_server s = {.kind = kinds[k].kind, .n_pieces = 0};
        kt_load_result r = load(&s, (kt_load_options){.concurrency = 2, .timeout_s = 0.3}, 3);
        for (size_t i = 0; i < 3; i++)
            cr_assert_not_null(strstr(r.answers[i].error, kinds[k].says), "%zu: '%s'", k,
                               r.answers[i].error);
        kt_load_result_deinit(&r);
    }
}

Test(load, nobody_there_is_an_answer_too) {
    kt_load_data d;
    kt_target t;
    kt_load_result r;

    cr_assert_eq(kt_target_parse("127.0.0.1:1", &t, NULL), KT_OK);
    cr_assert_eq(kt_load_data_synthetic(2, 8, 5, 0, 1, &d, NULL), KT_OK);
    cr_assert_eq(kt_load_run(&t, &(kt_load_options){.concurrency = 1}, &d, 0, 2, &r, NULL), KT_OK);
    cr_assert_not_null(strstr(r.answers[1].error, "refused"), "%s", r.answers[1].error);
    kt_load_result_deinit(&r);
    kt_load_data_deinit(&d);
}

/* ---- commands ---- */

static int run_kt(const char *arguments, char *out, size_t bytes) {
    char line[1024];
    size_t n;
    FILE *p;

    snprintf(line, sizeof line, "KT_LOG=off " KT "%s 2>&1", arguments);
    p = popen(line, "r");
    cr_assert_not_null(p);
    n = fread(out, 1, bytes - 1, p);
    out[n] = 0;
    return WEXITSTATUS(pclose(p));
}

Test(load_command, serve_prints_the_common_names, .timeout = 60) {
    static const char *const names[] = {"Successful requests:", "Output token throughput (tok/s):",
                                        "Mean TTFT (ms):",      "P99 TPOT (ms):",
                                        "Median ITL (ms):",     "Request goodput (req/s):"};
    scripted_server s = {.kind = SCRIPTED_CHUNKED, .head_ms = 2, .gap_ms = 1, .n_pieces = 4};
    char line[256], out[16384];
    kt_json_doc *doc;
    const kt_json *root;

    scripted_start(&s);
    snprintf(line, sizeof line, "bench serve http://127.0.0.1:%d -n 6 -c 2 --goodput ttft:60000",
             s.port);
    cr_assert_eq(run_kt(line, out, sizeof out), 0, "%s", out);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_not_null(strstr(out, names[i]), "lacks '%s':\n%s", names[i], out);
    cr_assert_eq(atomic_load(&s.n_requests), 7); /* with the warm-up */
    snprintf(line, sizeof line, "bench serve 127.0.0.1:%d -n 6 --json", s.port);
    cr_assert_eq(run_kt(line, out, sizeof out), 0, "%s", out);
    cr_assert_eq(kt_json_parse(out, strlen(out), NULL, &doc, NULL), KT_OK, "%s", out);
    root = kt_json_root(doc);
    cr_assert_eq(kt_json_int(kt_json_get(root, "completed"), 0), 6);
    cr_assert_eq(kt_json_int(kt_json_get(root, "total_output_tokens"), 0), 24);
    cr_assert(kt_json_double(kt_json_get(root, "median_ttft_ms"), 0) >= 2);
    cr_assert(kt_json_get(root, "p99_itl_ms") && kt_json_get(root, "request_throughput"));
    kt_json_destroy(doc);
    scripted_stop(&s);
}

Test(load_command, compare_decides, .timeout = 120) {
    scripted_server slow = {.kind = SCRIPTED_CLOSED, .head_ms = 60, .gap_ms = 12, .n_pieces = 6};
    scripted_server fast = {.kind = SCRIPTED_CLOSED, .head_ms = 15, .gap_ms = 3, .n_pieces = 6};
    char line[256], out[16384];

    scripted_start(&slow);
    scripted_start(&fast);
    snprintf(line, sizeof line, "bench compare 127.0.0.1:%d 127.0.0.1:%d -n 4 --rounds 4",
             slow.port, fast.port);
    cr_assert_eq(run_kt(line, out, sizeof out), 0, "%s", out);
    cr_assert_not_null(strstr(out, "decision: promote\n"), "%s", out);
    snprintf(line, sizeof line, "bench compare 127.0.0.1:%d 127.0.0.1:%d -n 4 --rounds 4 --json",
             fast.port, slow.port);
    cr_assert_eq(run_kt(line, out, sizeof out), 0, "%s", out);
    cr_assert_not_null(strstr(out, "\"decision\":\"retain\""), "%s", out);
    cr_assert_eq(atomic_load(&fast.n_requests), 2 * 17);
    scripted_stop(&slow);
    scripted_stop(&fast);
}

Test(load_command, mistakes_are_named) {
    static const struct {
        const char *line, *says;
        int code;
    } mistakes[] = {{"bench serve", "no URL given", 2},
                    {"bench compare 127.0.0.1:1", "expected two URLs", 2},
                    {"bench serve https://x", "https is not spoken here", 2},
                    {"bench serve 127.0.0.1:1 --goodput fast", "expected ttft:MS", 2},
                    {"bench serve 127.0.0.1:1 --temperature hot", "'hot' is no number", 2},
                    {"bench serve 127.0.0.1:1", "refused", 1},
                    {"bench serve 127.0.0.1:1 --dataset /no/such", "/no/such", 1}};
    char out[8192];

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        int code = run_kt(mistakes[i].line, out, sizeof out);
        cr_expect_eq(code, mistakes[i].code, "%s: exit code %d: %s", mistakes[i].line, code, out);
        cr_expect_not_null(strstr(out, mistakes[i].says), "%s: %s", mistakes[i].line, out);
    }
}
