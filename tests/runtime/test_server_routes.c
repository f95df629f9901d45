/* The small routes: tokenize, detokenize, metrics, props, slots, version, embeddings.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "runtime/sched/sched_impl.h"
#include "runtime/token/tokenizer_impl.h"
#include "tests/runtime/fake_server.h"

/* The body of a POST that succeeds, or of a GET when json is NULL; the caller frees it. */
static char *ask(const char *path, const char *json) {
    kt_reply r = kt_send_request(fake.port, json ? "POST" : "GET", path, "", json);
    char *body;

    cr_assert_eq(r.status, 200, "%s: %d %s", path, r.status, r.body);
    body = strdup(r.body);
    kt_reply_free(&r);
    return body;
}

static void expect_body(const char *path, const char *json, const char *wanted) {
    char *body = ask(path, json);

    cr_expect_str_eq(body, wanted, "%s %s: %s", path, json, body);
    free(body);
}

Test(routes, text_to_tokens_and_back) {
    char *tokens, json[600];
    const char *names[] = {"content", "prompt"};

    fake_start(NULL, 0);
    for (int i = 0; i < 4; i++) { /* both names, with and without /v1 */
        snprintf(json, sizeof json, "{\"%s\":\"Hello there \xc3\xa9\"}", names[i % 2]);
        tokens = ask(i < 2 ? "/tokenize" : "/v1/tokenize", json);
        cr_expect_not_null(strstr(tokens, "],\"count\":"), "%s", tokens);
        cr_expect_not_null(strstr(tokens, ",\"max_model_len\":2048}"), "%s", tokens);
        strchr(tokens, ']')[1] = '\0';
        snprintf(json, sizeof json, "%s}", tokens);
        expect_body(i < 2 ? "/detokenize" : "/v1/detokenize", json,
                    "{\"content\":\"Hello there \xc3\xa9\",\"prompt\":\"Hello there \xc3\xa9\"}");
        free(tokens);
    }
    expect_body("/tokenize", "{\"content\":\"\"}",
                "{\"tokens\":[],\"count\":0,\"max_model_len\":2048}");
    expect_body("/detokenize", "{\"tokens\":[]}", "{\"content\":\"\",\"prompt\":\"\"}");
    fake_stop();
}

/* Pieces of a character are numbers, whole ones text; together they are the text. */
Test(routes, pieces_are_text_or_bytes) {
    kt_json_doc *doc;
    const kt_json *tokens;
    char text[64] = "", *body;
    size_t n = 0, n_arrays = 0;

    fake_start(NULL, 0);
    body = ask("/tokenize", "{\"content\":\"a \xf0\x9f\xa6\x99 b\",\"with_pieces\":true}");
    cr_assert_eq(kt_json_parse(body, strlen(body), NULL, &doc, NULL), KT_OK);
    tokens = kt_json_get(kt_json_root(doc), "tokens");
    for (size_t i = 0; i < kt_json_length(tokens); i++) {
        const kt_json *piece = kt_json_get(kt_json_at(tokens, i), "piece");
        size_t size = 0;
        const char *s = kt_json_string(piece, &size);
        cr_assert(kt_json_is_integer(kt_json_get(kt_json_at(tokens, i), "id")));
        if (s) memcpy(text + n, s, size);
        n += size;
        n_arrays += !s;
        for (size_t k = 0; !s && k < kt_json_length(piece); k++)
            text[n++] = (char)kt_json_int(kt_json_at(piece, k), 0);
    }
    cr_expect_str_eq(text, "a \xf0\x9f\xa6\x99 b");
    cr_expect_gt(n_arrays, 0);
    kt_json_destroy(doc);
    free(body);
    fake_stop();
}

/* User text never has to become a special token. */
Test(routes, special_tokens_are_recognised_when_wanted) {
    char *with, *without;

    fake_start(NULL, 0);
    with = ask("/tokenize", "{\"content\":\"<|im_end|>\"}");
    without = ask("/tokenize", "{\"content\":\"<|im_end|>\",\"parse_special\":false}");
    if (kt_tokenizer_find(fake.engine.tokenizer, "<|im_end|>") >= 0)
        cr_expect_str_neq(with, without);
    free(with);
    free(without);
    fake_stop();
}

Test(routes, wrong_bodies_are_refused_by_name) {
    static const struct {
        const char *path, *body, *code, *param, *says;
    } cases[] = {
        {"/tokenize", "{}", "invalid_type", "content", "missing"},
        {"/tokenize", "{\"content\":[1]}", "invalid_type", "content", "an array"},
        {"/tokenize", "{\"content\":\"a\",\"with_pieces\":1}", "invalid_type", "with_pieces",
         "a boolean"},
        {"/tokenize", "[]", "invalid_type", "", "object"},
        {"/tokenize", "{", "invalid_json", "", "1:2"},
        {"/detokenize", "{}", "invalid_type", "tokens", "missing"},
        {"/detokenize", "{\"tokens\":\"a\"}", "invalid_type", "tokens", "a string"},
        {"/detokenize", "{\"tokens\":[1,\"a\"]}", "invalid_type", "tokens[1]", "a string"},
        {"/detokenize", "{\"tokens\":[4096]}", "invalid_value", "tokens[0]", "4095"},
        {"/detokenize", "{\"tokens\":[-1]}", "invalid_value", "tokens[0]", "-1"},
    };
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        fake_check_error(kt_send_request(fake.port, "POST", cases[i].path, "", cases[i].body), 400,
                         cases[i].code, cases[i].param, cases[i].says);
    fake_check_error(kt_send_request(fake.port, "POST", "/v1/embeddings", "", "{\"input\":\"a\"}"),
                     501, "not_supported", "", "embeddings");
    fake_stop();
}

/* Millions of values in a body are refused before they become gigabytes. */
Test(routes, a_body_of_too_many_values_is_refused) {
    const size_t n = (size_t)5 << 20;
    char *body = malloc(2 * n + 32), *at = body + sprintf(body, "{\"tokens\":[0");

    for (size_t i = 0; i < n; i++) {
        *at++ = ',';
        *at++ = '0';
    }
    strcpy(at, "]}");
    fake_start(NULL, 0);
    fake_check_error(kt_send_request(fake.port, "POST", "/detokenize", "", body), 400,
                     "invalid_json", "", "more than 2097152 values");
    fake_check_error(kt_complete(fake.port, body), 400, "invalid_json", "", "more than");
    free(body);
    fake_stop();
}

/* The value of a series, its labels included. */
static double series(const char *page, const char *name) {
    size_t n = strlen(name);

    for (const char *line = page; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, name, n) == 0 && line[n] == ' ') return atof(line + n + 1);
    }
    cr_assert_fail("no series %s in:\n%s", name, page);
    return 0;
}

Test(routes, metrics_count_what_was_done) {
    static const char *const totals[] = {"kt_prompt_tokens_total{model_name=\"fake\"}",
                                         "vllm:prompt_tokens_total{model_name=\"fake\"}",
                                         "llamacpp:prompt_tokens_total"};
    kt_reply r;
    char *page;

    fake_start(NULL, 0);
    for (int i = 0; i < 3; i++) {
        r = kt_complete(fake.port, "{\"prompt\":\"In that day shall\",\"max_tokens\":5}");
        kt_reply_free(&r);
    }
    r = kt_complete(fake.port, "{\"prompt\":[1],\"max_tokens\":1000}"); /* ends by itself */
    kt_reply_free(&r);
    r = kt_complete(fake.port, "{\"prompt\":1}");
    kt_reply_free(&r);
    fake_sleep(100 * 1000);
    r = kt_send_request(fake.port, "GET", "/metrics", "", NULL);
    cr_expect_not_null(strstr(r.headers, "Content-Type: text/plain; version=0.0.4"));
    cr_expect_not_null(strstr(r.headers, "Process-Start-Time-Unix: "));
    page = r.body;
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++)
        cr_expect_eq(series(page, totals[i]), 13, "%s", totals[i]);
    cr_expect_eq(series(page, "vllm:generation_tokens_total{model_name=\"fake\"}"),
                 15 + (double)fake.engine.n_script);
    cr_expect_eq(series(page, "kt_requests_total{model_name=\"fake\",outcome=\"length\"}"), 3);
    cr_expect_eq(series(page, "kt_requests_total{model_name=\"fake\",outcome=\"stop\"}"), 1);
    cr_expect_eq(series(page, "kt_requests_total{model_name=\"fake\",outcome=\"error\"}"), 1);
    cr_expect_gt(series(page, "kt_step_seconds_total{model_name=\"fake\"}"), 0);
    cr_expect_eq(series(page, "vllm:time_to_first_token_seconds_count{model_name=\"fake\"}"), 4);
    cr_expect_eq(series(page, "vllm:time_to_first_token_seconds_bucket{model_name=\"fake\",le="
                              "\"+Inf\"}"),
                 4);
    cr_expect_eq(series(page, "vllm:inter_token_latency_seconds_count{model_name=\"fake\"}"),
                 12 + (double)fake.engine.n_script - 1);
    cr_expect_eq(series(page, "vllm:request_prompt_tokens_bucket{model_name=\"fake\",le=\"2\"}"),
                 1);
    cr_expect_eq(series(page, "vllm:request_prompt_tokens_bucket{model_name=\"fake\",le=\"5\"}"),
                 4);
    cr_expect_eq(series(page, "vllm:request_inference_time_seconds_count{model_name=\"fake\"}"), 4);
    cr_expect_eq(series(page, "vllm:request_max_num_generation_tokens_sum{model_name=\"fake\"}"),
                 1015, "three of 5 and one of 1000");
    cr_expect_eq(series(page, "llamacpp:n_tokens_max"), 1 + (double)fake.engine.n_script);
    cr_expect_eq(series(page, "llamacpp:requests_processing"), 0);
    cr_expect_null(strstr(page, "nan"));
    cr_expect_null(strstr(page, "inf "));
    kt_reply_free(&r);
    fake_stop();
}

/* A connection on which an answer of 1000 tokens is asked for. */
static int begin_long_answer(void) {
    static const char json[] =
        "{\"prompt\":\"In that day shall\",\"max_tokens\":1000,\"ignore_eos\":true}";
    char head[200];
    int fd = kt_dial(fake.port);

    sprintf(head, "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %zu\r\n\r\n",
            sizeof json - 1);
    cr_assert(kt_send_all(fd, head, strlen(head)) && kt_send_all(fd, json, sizeof json - 1));
    return fd;
}

static double own_series(const char *page, const char *name) {
    char full[100];

    snprintf(full, sizeof full, "%s{model_name=\"fake\"}", name);
    return series(page, full);
}

/* What the scheduler and the pools say, idle and while two answers are computed. */
Test(routes, metrics_tell_of_pages_and_the_batch, .timeout = 60) {
    static const struct {
        const char *name;
        double idle, busy;
    } cases[] = {{"kt_kv_pages_used", 0, 10},
                 {"kt_kv_pages_cached", 0, 0},
                 {"kt_state_slots", 0, 0},
                 {"kt_batch_choices", 0, 2},
                 {"kt_batch_rows", 0, 2},
                 {"kt_batch_resting", 0, 0},
                 {"kt_requests_running", 0, 2},
                 {"kt_requests_waiting", 0, 0},
                 {"kt_preemptions_total", 0, 0},
                 {"kt_prefix_hit_tokens_total", 0, 0},
                 {"kt_prompt_rows_total", 0, 8},
                 {"vllm:num_preemptions_total", 0, 0},
                 {"vllm:kv_cache_usage_perc", 0, 0.25}};
    const size_t n = sizeof cases / sizeof *cases;
    int fd[2];
    char *page;

    fake_start(NULL, 0);
    atomic_store(&fake.engine.n_pages, 40);
    atomic_store(&fake.engine.decode_us, 20 * 1000);
    page = ask("/metrics", NULL);
    for (size_t i = 0; i < n; i++)
        cr_expect_eq(own_series(page, cases[i].name), cases[i].idle, "%s", cases[i].name);
    for (int i = 0; i < 2; i++) fd[i] = begin_long_answer();
    for (int i = 0; i < 1000 && own_series(page, "kt_batch_rows") != 2; i++) {
        free(page);
        fake_sleep(2000);
        page = ask("/metrics", NULL);
    }
    for (size_t i = 0; i < n; i++)
        cr_expect_float_eq(own_series(page, cases[i].name), cases[i].busy, 1e-6, "%s is %g",
                           cases[i].name, own_series(page, cases[i].name));
    cr_expect_eq(own_series(page, "kt_kv_pages"), 40);
    cr_expect_gt(own_series(page, "kt_decode_rows_total"), 0);
    cr_expect_gt(own_series(page, "kt_step_seconds"), 0.019);
    cr_expect_gt(series(page, "llamacpp:n_decode_total"), 1);
    cr_expect_gt(series(page, "llamacpp:n_busy_slots_per_decode"), 1);
    free(page);
    for (int i = 0; i < 2; i++) close(fd[i]);
    fake_stop();
}

/* Every sample belongs to a family that was announced, and no line has another form. */
Test(routes, metrics_have_the_form_of_prometheus) {
    char *page, *save, family[100] = "";

    fake_start(NULL, 0);
    page = ask("/metrics", NULL);
    for (char *line = strtok_r(page, "\n", &save); line; line = strtok_r(NULL, "\n", &save)) {
        char name[100], kind[20];
        if (sscanf(line, "# TYPE %99s %19s", name, kind) == 2) {
            snprintf(family, sizeof family, "%s", name);
            cr_expect(!strcmp(kind, "counter") || !strcmp(kind, "gauge") ||
                      !strcmp(kind, "histogram"));
            continue;
        }
        if (strncmp(line, "# HELP ", 7) == 0) continue;
        cr_expect_eq(strncmp(line, family, strlen(family)), 0, "%s after %s", line, family);
        cr_expect_not_null(strrchr(line, ' '));
        cr_expect_eq(strspn(strrchr(line, ' ') + 1, "0123456789."), strlen(strrchr(line, ' ') + 1),
                     "%s", line);
    }
    free(page);
    fake_stop();
}

Test(routes, props_and_version_tell_what_runs) {
    char *body;
    const kt_chat_model chat = {.template_text = "{{ messages }}"};

    fake.max_running = 4;
    fake.chat = &chat;
    fake_start(NULL, 3);
    body = ask("/props", NULL);
    cr_expect_not_null(strstr(body, "\"chat_template\":\"{{ messages }}\""), "%s", body);
    cr_expect_not_null(strstr(body, "\"model_alias\":\"fake\""), "%s", body);
    cr_expect_not_null(strstr(body, "\"total_slots\":4"), "%s", body);
    cr_expect_not_null(strstr(body, "\"default_generation_settings\":{\"n_ctx\":2048,"), "%s",
                       body);
    free(body);
    body = ask("/version", NULL);
    cr_expect_eq(strncmp(body, "{\"version\":\"", 12), 0, "%s", body);
    free(body);
    fake_stop();
}

/* A model whose tokenizer puts a BOS in front: texts get it, ids and what asks for none do not. */
Test(routes, texts_begin_as_the_tokenizer_says, .timeout = 60) {
    static const struct {
        const char *path, *body, *says;
    } cases[] = {
        {"/v1/completions", "{\"prompt\":\"In that day shall\",\"max_tokens\":1}",
         "\"prompt_tokens\":5,"},
        {"/v1/completions", "{\"prompt\":\"<|endoftext|>In that day shall\",\"max_tokens\":1}",
         "\"prompt_tokens\":5,"},
        {"/v1/completions",
         "{\"prompt\":\"In that day shall\",\"max_tokens\":1,\"add_special_tokens\":false}",
         "\"prompt_tokens\":4,"},
        {"/v1/completions", "{\"prompt\":[1,2],\"max_tokens\":1}", "\"prompt_tokens\":2,"},
        {"/v1/completions", "{\"prompt\":\"\",\"max_tokens\":1}", "\"prompt_tokens\":1,"},
        {"/v1/completions", "{\"prompt\":\"In\",\"max_tokens\":0,\"echo\":true,\"logprobs\":0}",
         "\"text\":\"In\",\"logprobs\":{\"tokens\":[\"<|endoftext|>\",\"In\"],"},
        {"/tokenize", "{\"content\":\"h\"}", "\"tokens\":[71],"},
        {"/tokenize", "{\"content\":\"h\",\"add_special\":true}", "\"tokens\":[4093,71],"}};

    fake_start(NULL, 0);
    kt_tokenizer_add_first(fake.engine.tokenizer, 4093);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *body = ask(cases[i].path, cases[i].body);
        cr_expect_not_null(strstr(body, cases[i].says), "%s: %s", cases[i].body, body);
        free(body);
    }
    fake_stop();
}

Test(routes, slots_show_who_is_served) {
    char *body = NULL;
    int fd[2];

    fake.max_running = 1;
    fake_start(NULL, 0);
    expect_body("/slots", NULL, "[]");
    atomic_store(&fake.engine.decode_us, 10 * 1000);
    for (int i = 0; i < 2; i++) fd[i] = begin_long_answer();
    for (int i = 0; i < 1000; i++) {
        free(body);
        body = ask("/slots", NULL);
        if (strstr(body, "\"state\":\"generating\"") && strstr(body, "\"state\":\"waiting\""))
            break;
        fake_sleep(1000);
    }
    cr_expect_not_null(strstr(body, "\"state\":\"generating\""), "%s", body);
    cr_expect_not_null(strstr(body, "\"state\":\"waiting\""), "%s", body);
    cr_expect_not_null(strstr(body, "\"prompt_tokens\":4"), "%s", body);
    cr_expect_not_null(strstr(body, "\"speculative\":false,\"draft_n\":0"), "%s", body);
    cr_expect_null(strstr(body, "In that day"), "%s", body);
    free(body);
    close(fd[0]);
    close(fd[1]);
    fake_stop();
}

/* The text repeats itself: drafts come true, and every page says so. */
Test(routes, drafts_are_told_of) {
    char *page, name[120];
    double sum = 0, before = 0;
    kt_reply r;

    fake.speculate = KT_SPECULATE_NGRAM;
    fake_start(NULL, 0);
    fake.app->scheduler->options.always_drafts = true;
    r = kt_complete(fake.port, "{\"prompt\":\"a prompt\",\"max_tokens\":90,\"ignore_eos\":true}");
    cr_assert_eq(r.status, 200, "%s", r.body);
    cr_expect_not_null(strstr(r.body, "\"draft_n\":"), "%s", r.body);
    cr_expect_not_null(strstr(r.body, "\"draft_n_accepted\":"), "%s", r.body);
    kt_reply_free(&r);
    page = ask("/metrics", NULL);
    cr_expect_gt(own_series(page, "kt_draft_tokens_total"), 20);
    cr_expect_gt(own_series(page, "kt_draft_accepted_tokens_total"), 20);
    cr_expect_gt(own_series(page, "kt_draft_steps_total"), 2);
    cr_expect_gt(own_series(page, "kt_draft_gain"), 0);
    cr_expect_gt(own_series(page, "vllm:spec_decode_num_drafts_total"), 2);
    cr_expect_gt(series(page, "llamacpp:spec_decode_num_drafts_total"), 2);
    cr_expect_gt(series(page, "llamacpp:spec_decode_num_draft_tokens_total"), 20);
    for (int i = 0; i < fake.app->scheduler->options.draft;
         i++) { /* a later one needs those before */
        const char *form =
            "llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position=\"%d\"}";
        double hits;
        if (i == 0) before = series(page, "llamacpp:spec_decode_num_drafts_total");
        snprintf(name, sizeof name, form, i);
        hits = series(page, name);
        cr_expect(hits >= 0 && hits <= before, "place %d: %g after %g", i, hits, before);
        snprintf(name, sizeof name,
                 "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"fake\","
                 "position=\"%d\"}",
                 i);
        cr_expect_eq(series(page, name), hits);
        sum += before = hits;
    }
    cr_expect_eq(sum, series(page, "llamacpp:spec_decode_num_accepted_tokens_total"));
    cr_expect_eq(sum, own_series(page, "kt_draft_accepted_tokens_total"));
    cr_expect_eq(series(page, "llamacpp:n_busy_slots_per_decode"), 1); /* not its rows */
    free(page);
    fake_stop();
}

/* One page, nothing foreign in it, and only its own script runs. */
Test(routes, the_page_is_built_in) {
    const kt_http_options options = {.api_key = "secret"};
    char nonce[64] = "", marked[100];
    const char *at;
    kt_reply r;

    fake_start(&options, 0);
    r = kt_send_request(fake.port, "GET", "/", "", NULL); /* itself without a key */
    cr_assert_eq(r.status, 200);
    cr_expect_not_null(strstr(r.headers, "Content-Type: text/html; charset=utf-8"));
    at = strstr(r.headers, "Content-Security-Policy: default-src 'none'; ");
    cr_assert_not_null(at, "%s", r.headers);
    cr_assert_eq(sscanf(strstr(at, "script-src"), "script-src 'nonce-%24[0-9a-f]'", nonce), 1);
    snprintf(marked, sizeof marked, "<script nonce=\"%s\">", nonce);
    cr_expect_not_null(strstr(r.body, marked));
    cr_expect_null(strstr(r.body, "@NONCE@"));
    cr_expect_null(strstr(r.body, "//")); /* no address of another host, no comment of that kind */
    cr_expect_null(strstr(r.body, "innerHTML"));
    cr_expect_lt(r.body_size, 40 * 1024);
    cr_expect_eq(strcmp(r.body + r.body_size - 8, "</html>\n"), 0);
    kt_reply_free(&r);
    fake_stop();
}
