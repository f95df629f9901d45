/* Several choices of one request, their seeds, offsets and log probabilities, over the wire.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/fake_server.h"

/* An engine that holds every token for equally likely. */
static void flat(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    (void)f, (void)tokens, (void)n;
    for (int i = 0; i < 4096; i++) logits[i] = i == 4095 ? -100.0f : 0;
}

/* An engine that is half sure of one token, which is as likely as all 4,095 others. */
static void half_sure(fake_engine *f, const int32_t *tokens, int64_t n, float *logits) {
    (void)tokens;
    for (int i = 0; i < 4096; i++) logits[i] = 0;
    logits[f->script[(size_t)n % 8]] = logf(4095);
}

/* The texts of all choices, each followed by a bar; owned. */
static char *texts(const char *body) {
    kt_reply r = kt_complete(fake.port, body);
    kt_json_doc *doc;
    const kt_json *choices;
    char *all = strdup("");

    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    choices = kt_json_get(fake_parse(&r, &doc), "choices");
    for (size_t i = 0; i < kt_json_length(choices); i++) {
        char *longer;
        cr_assert_geq(asprintf(&longer, "%s%s|", all, fake_text_at(kt_json_at(choices, i), "text")),
                      0);
        free(all);
        all = longer;
    }
    kt_json_destroy(doc);
    kt_reply_free(&r);
    return all;
}

#define DRAWN "\"prompt\":\"a\",\"max_tokens\":12,\"temperature\":1,\"seed\":7"

Test(choices, of_one_request_differ_and_can_be_repeated) {
    char *two, *again, *one, *bar;

    fake_start(NULL, 0);
    fake.engine.logits = flat;
    two = texts("{" DRAWN ",\"n\":2}");
    again = texts("{" DRAWN ",\"n\":2}");
    one = texts("{" DRAWN ",\"n\":1}");
    cr_expect_str_eq(two, again, "the same seed gives another text");
    cr_expect_eq(strncmp(two, one, strlen(one)), 0, "'%s' does not begin with '%s'", two, one);
    bar = two + strlen(one);
    cr_expect_str_neq(bar, one, "both choices are '%s'", one);
    free(two), free(again), free(one);
    two = texts("{\"prompt\":\"a\",\"max_tokens\":12,\"temperature\":1}");
    again = texts("{\"prompt\":\"a\",\"max_tokens\":12,\"temperature\":1}");
    cr_expect_str_neq(two, again, "without a seed two requests are the same: '%s'", two);
    free(two), free(again);
    fake_stop();
}

/* Each choice begins anew: sequence, logits, sampler, half characters and held back text. */
Test(choices, begin_where_the_prompt_ends) {
    char *all;

    fake_start(NULL, 0);
    all = texts("{\"prompt\":[\"a b\",\"c\"],\"n\":2,\"max_tokens\":200,\"stop\":\"done. no\"}");
    cr_expect_str_eq(all, FAKE_TEXT "|" FAKE_TEXT "|" FAKE_TEXT "|" FAKE_TEXT "|");
    free(all);
    /* No token twice: with what the first choice has said counted against it, another text would
     * come. */
    all = texts("{\"prompt\":\"a\",\"n\":3,\"max_tokens\":4,\"presence_penalty\":2}");
    cr_expect_eq(strncmp(all, FAKE_TEXT, 2), 0, "'%s'", all);
    cr_expect_eq(strncmp(strchr(all, '|') + 1, FAKE_TEXT, 2), 0, "'%s'", all);
    free(all);
    all = texts("{\"prompt\":\"a\",\"n\":2,\"max_tokens\":200,\"stop\":\" that\"}");
    cr_expect_str_eq(all, "To be, or not to be:|To be, or not to be:|");
    free(all);
    fake_stop();
}

Test(choices, end_at_the_first_of_several_stop_strings) {
    static const char text[] = "one two three";
    char *const words[] = {"three", "two", "e t"}; /* listed otherwise than they come */
    const kt_stops stops = {{words[0], words[1], words[2]}, {5, 3, 3}, 3};
    kt_text held = {0}, out = {0};
    bool stopped = false;

    cr_assert_eq(kt_stops_push(&stops, &held, text, strlen(text), &out, &stopped, NULL), KT_OK);
    cr_expect(stopped && out.size == 2 && memcmp(out.data, "on", 2) == 0, "'%.*s'", (int)out.size,
              out.data);
    free(held.data);
    free(out.data);
}

/* Half a character at the end becomes U+FFFD, and that may be, or end, a stop string. */
Test(choices, a_stop_string_may_come_with_the_very_end) {
    int n_cut = 0;

    fake_start(NULL, 0);
    for (int n = 1; n < (int)fake.engine.n_script; n++) {
        char body[128];
        char *all;
        kt_reply r;
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":%d}", n);
        all = texts(body);
        if (!strstr(all, "\xef\xbf\xbd|")) { /* whole characters */
            free(all);
            continue;
        }
        free(all);
        n_cut++;
        snprintf(body, sizeof body,
                 "{\"prompt\":\"a\",\"max_tokens\":%d,\"stop\":\"\xef\xbf\xbd\"}", n);
        all = texts(body);
        cr_expect_null(strstr(all, "\xef\xbf\xbd"), "%d tokens: '%s'", n, all);
        free(all);
        r = kt_complete(fake.port, body);
        cr_expect_not_null(strstr(r.body, "\"finish_reason\":\"stop\""), "%d tokens: %s", n,
                           r.body);
        kt_reply_free(&r);
    }
    cr_expect_gt(n_cut, 0, "no token of the text ends within a character");
    fake_stop();
}

static int64_t chars_in(const char *text) {
    int64_t chars = 0;
    for (; *text; text++) chars += ((unsigned char)*text & 0xc0) != 0x80;
    return chars;
}

/* Characters that begin in a token, which is written "bytes:\xe6\x88" where it holds parts of
 * characters. */
static int64_t chars_of(const char *token) {
    int64_t chars = 0;

    if (strncmp(token, "bytes:", 6) != 0) return chars_in(token);
    for (const char *p = token + 6; *p; p += 4) {
        char digits[3] = {p[2], p[3], '\0'};
        chars += (strtoul(digits, NULL, 16) & 0xc0) != 0x80;
    }
    return chars;
}

/* Check the offsets of one answer's tokens, which begin at *at, and move it on. */
static void check_offsets(const kt_json *logprobs, int64_t *at) {
    const kt_json *tokens = kt_json_get(logprobs, "tokens");
    const kt_json *offsets = kt_json_get(logprobs, "text_offset");

    cr_assert_eq(kt_json_length(tokens), kt_json_length(offsets));
    for (size_t i = 0; i < kt_json_length(tokens); i++) {
        int64_t offset = kt_json_int(kt_json_at(offsets, i), -1);
        const char *token = kt_json_string(kt_json_at(tokens, i), NULL);
        cr_assert_eq(offset, *at, "token %zu '%s' at %d, expected %d", i, token, (int)offset,
                     (int)*at);
        *at += chars_of(token);
    }
}

Test(choices, offsets_count_characters_of_each_choice) {
    int64_t at;
    kt_json_doc *doc;
    const kt_json *choices;
    kt_reply r;

    fake_start(NULL, 0);
    r = kt_complete(fake.port, "{\"prompt\":\"a\",\"n\":2,\"max_tokens\":200,\"logprobs\":0}");
    choices = kt_json_get(fake_parse(&r, &doc), "choices");
    for (size_t i = 0; i < 2; i++) {
        const kt_json *logprobs = kt_json_get(kt_json_at(choices, i), "logprobs");
        size_t n = kt_json_length(kt_json_get(logprobs, "tokens"));
        at = 0;
        cr_assert_eq(n, fake.engine.n_script - 1, "%zu tokens", n);
        check_offsets(logprobs, &at);
        cr_assert_eq(at, chars_in(FAKE_TEXT), "%d characters", (int)at);
    }
    kt_json_destroy(doc);
    kt_reply_free(&r);
    at = 0; /* in a stream they go on from chunk to chunk */
    r = kt_complete(fake.port,
                    "{\"prompt\":\"a\",\"max_tokens\":200,\"logprobs\":0,\"stream\":true}");
    for (const char *p = r.body; (p = strstr(p, "data: {")); p++) {
        const char *end = strstr(p, "\n\n");
        cr_assert_eq(kt_json_parse(p + 6, (size_t)(end - p) - 6, NULL, &doc, NULL), KT_OK);
        choices = kt_json_get(kt_json_root(doc), "choices");
        check_offsets(kt_json_get(kt_json_at(choices, 0), "logprobs"), &at);
        kt_json_destroy(doc);
    }
    cr_assert_eq(at, chars_in(FAKE_TEXT), "%d characters streamed", (int)at);
    kt_reply_free(&r);
    fake_stop();
}

Test(choices, log_probabilities_are_those_of_the_softmax) {
    const double half = log(0.5), other = log(0.5 / 4095);
    kt_json_doc *doc;
    const kt_json *logprobs, *top;
    kt_reply r;

    fake_start(NULL, 0);
    fake.engine.logits = half_sure;
    r = kt_complete(fake.port, "{\"prompt\":\"a\",\"max_tokens\":3,\"logprobs\":3}");
    logprobs = kt_json_get(kt_json_at(kt_json_get(fake_parse(&r, &doc), "choices"), 0), "logprobs");
    for (size_t i = 0; i < 3; i++) {
        double p = kt_json_double(kt_json_at(kt_json_get(logprobs, "token_logprobs"), i), 1);
        cr_assert_float_eq(p, half, 1e-5, "token %zu: %g, expected %g", i, p, half);
        top = kt_json_at(kt_json_get(logprobs, "top_logprobs"), i);
        cr_assert_eq(kt_json_length(top), 3, "%s", r.body);
        for (size_t k = 0; k < 3; k++) {
            const char *token;
            p = kt_json_double(kt_json_member(top, k, &token, NULL), 1);
            cr_assert_float_eq(p, k ? other : half, 1e-4, "place %zu: %g", k, p);
            cr_assert(
                k || strcmp(token, kt_json_string(kt_json_at(kt_json_get(logprobs, "tokens"), i),
                                                  NULL)) == 0,
                "the likeliest is '%s'", token);
        }
    }
    kt_json_destroy(doc);
    kt_reply_free(&r);
    fake_stop();
}

/* The same request is answered with one length; with two it could be read as two different ones by
 * a proxy in front, so it is refused although its body is right either way. */
Test(choices, requests_with_two_lengths_are_refused) {
    static const char head[] = "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n%s"
                               "Transfer-Encoding: chunked\r\n\r\n"
                               "1e\r\n{\"prompt\":\"a\",\"max_tokens\": 1}\r\n0\r\n\r\n";
    char request[256];
    kt_reply r;

    fake_start(NULL, 0);
    snprintf(request, sizeof request, head, "");
    r = kt_raw(fake.port, request, strlen(request), false);
    cr_assert_eq(r.status, 200, "%d: %s", r.status, r.body);
    kt_reply_free(&r);
    snprintf(request, sizeof request, head, "Content-Length: 41\r\n");
    r = kt_raw(fake.port, request, strlen(request), false);
    cr_assert_eq(r.status, 400, "%d: %s", r.status, r.body);
    cr_assert_not_null(strstr(r.body, "Content-Length beside Transfer-Encoding"), "%s", r.body);
    kt_reply_free(&r);
    fake_stop();
}

/* What lm-evaluation-harness asks for: the prompt's own log probabilities, and none generated. */
Test(choices, echo_reports_the_prompt) {
    static const char *const lengths[] = {"0", "1"};

    fake_start(NULL, 0);
    fake.engine.logits = half_sure;
    for (int i = 0; i < 2; i++) {
        char body[200];
        kt_json_doc *doc;
        const kt_json *choice, *logprobs, *top;
        int64_t at = 0;
        size_t n;
        kt_reply r;
        snprintf(body, sizeof body,
                 "{\"prompt\":\"In that day shall\",\"max_tokens\":%s,\"echo\":true,"
                 "\"logprobs\":2}",
                 lengths[i]);
        r = kt_complete(fake.port, body);
        cr_assert_eq(r.status, 200, "%s", r.body);
        choice = kt_json_at(kt_json_get(fake_parse(&r, &doc), "choices"), 0);
        logprobs = kt_json_get(choice, "logprobs");
        n = kt_json_length(kt_json_get(logprobs, "tokens"));
        cr_assert_eq(n, 4 + (size_t)i, "%s", r.body);
        cr_expect_eq(strncmp(fake_text_at(choice, "text"), "In that day shall", 17), 0);
        top = kt_json_at(kt_json_get(logprobs, "token_logprobs"), 0);
        cr_expect_eq(kt_json_type_of(top), KT_JSON_NULL, "nothing comes before the first token");
        for (size_t k = 1; k < n; k++) {
            const double p =
                kt_json_double(kt_json_at(kt_json_get(logprobs, "token_logprobs"), k), 1);
            cr_expect(p < 0 && p > -10, "token %zu: %g", k, p);
            top = kt_json_at(kt_json_get(logprobs, "top_logprobs"), k);
            cr_expect_eq(kt_json_length(top), 2);
        }
        check_offsets(logprobs, &at);
        kt_json_destroy(doc);
        kt_reply_free(&r);
    }
    fake_stop();
}

Test(choices, tokens_by_id_are_obeyed) {
    char body[200], *all;

    fake_start(NULL, 0);
    snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":50,\"stop_token_ids\":[%d]}",
             fake.engine.script[2]);
    all = texts(body);
    cr_expect(strlen(all) < 12 && strncmp(all, "To", 2) == 0, "'%s'", all);
    free(all);
    snprintf(body, sizeof body,
             "{\"prompt\":\"a\",\"max_completion_tokens\":1,\"logit_bias\":{\"%d\":-100}}",
             fake.engine.script[0]);
    all = texts(body);
    cr_expect_neq(strncmp(all, "To", 2), 0, "'%s'", all);
    free(all);
    snprintf(body, sizeof body, "{\"prompt\":\"a\",\"max_tokens\":90,\"min_tokens\":80}");
    all = texts(body);
    cr_expect_gt(strlen(all), strlen(FAKE_TEXT) + 5, "'%s'", all);
    free(all);
    fake_stop();
}
