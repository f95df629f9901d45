/* Requests without a scheduler: from logits to events. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/serve/answer.h"
#include "runtime/token/utf8_scan.h"

#define TEXT "To be, or \xf0\x9f\xa6\x99 \xe6\x88\x91\xc3\xa9 and abcab abcabd done"

enum { VOCAB = 4096, END = 4095 };

static const int64_t eos[] = {END};
static kt_request_model model = {.vocab = VOCAB, .max_context = 512, .eos = eos, .n_eos = 1};
static kt_tokenizer *tokenizer;
static int32_t *script;
static size_t n_script;

static struct {
    kt_text text, reasoning;
    int n_events, n_logprobs, n_finish;
    kt_event_finish finish;
    char matched[32];
} seen;

static void take(void *arg, const kt_event *e) {
    (void)arg;
    seen.n_events++;
    if (e->kind == KT_EVENT_TEXT) {
        cr_assert(e->size > 0 && e->text[e->size] == '\0');
        cr_assert_eq(kt_utf8_valid_prefix(e->text, e->size), e->size, "half a character");
        cr_assert_eq(kt_text_append(&seen.text, e->text, e->size, NULL), KT_OK);
    }
    if (e->kind == KT_EVENT_REASONING)
        cr_assert_eq(kt_text_append(&seen.reasoning, e->text, e->size, NULL), KT_OK);
    seen.n_logprobs += e->kind == KT_EVENT_LOGPROB;
    if (e->kind != KT_EVENT_FINISH) return;
    seen.n_finish++;
    seen.finish = e->as.finish;
    snprintf(seen.matched, sizeof seen.matched, "%s",
             seen.finish.matched ? seen.finish.matched : "");
}

static void setup(void) {
    kt_err err = {0};

    cr_assert_eq(kt_tokenizer_load(KT_SOURCE_DIR "/datasets/models/tiny-moe/tokenizer.json",
                                   &tokenizer, &err),
                 KT_OK, "%s", err.message);
    cr_assert_eq(kt_tokenizer_encode(tokenizer, TEXT, strlen(TEXT), true, &script, &n_script, &err),
                 KT_OK);
    model.tokenizer = tokenizer;
}

static void teardown(void) {
    kt_tokenizer_destroy(tokenizer);
    free(script);
    free(seen.text.data);
    free(seen.reasoning.data);
}
TestSuite(request, .init = setup, .fini = teardown);

/* One prompt of three tokens. */
static void begin(kt_request *r) {
    kt_request_init(r);
    r->prompts = calloc(1, sizeof *r->prompts);
    r->n_prompts = 1;
    r->prompts[0].ids = calloc(3, sizeof(int32_t));
    r->prompts[0].n_ids = 3;
    r->max_tokens = 400;
    r->client = (kt_request_client){.event = take};
    seen.text.size = seen.reasoning.size = 0;
    seen.n_events = seen.n_logprobs = seen.n_finish = 0;
}

static void add_stop(kt_request *r, const char *text) {
    r->stops.text[r->stops.n] = strdup(text);
    r->stops.size[r->stops.n++] = strlen(text);
}

/* Let the model say the script, then end tokens; the token after `also` is the second best. */
static void speak(kt_request *r) {
    static float logits[VOCAB];
    kt_sampler_scratch w = {0};
    kt_err err = {0};
    bool is_over = false;
    size_t n;

    cr_assert_eq(kt_request_open(r, &model, &err), KT_OK, "%s", err.message);
    while (!is_over) {
        kt_request_tokens(r, 0, &n);
        memset(logits, 0, sizeof logits);
        logits[n < n_script ? script[n] : END] = 50;
        logits[1000] = 20;
        kt_request_pick(r, 0, logits, &w);
        cr_assert_eq(kt_request_accept(r, 0, &is_over, &err), KT_OK, "%s", err.message);
        cr_assert_lt(n, 600);
    }
    cr_assert_eq(seen.n_finish, 1);
    kt_sampler_scratch_deinit(&w);
}

static void expect_text(const char *want, kt_finish finish) {
    cr_expect(seen.text.size == strlen(want) && memcmp(seen.text.data, want, seen.text.size) == 0,
              "'%.*s', expected '%s'", (int)seen.text.size, seen.text.data, want);
    cr_expect_eq(seen.finish.reason, finish);
}

Test(request, says_whole_characters_until_the_end_token) {
    kt_request r;

    begin(&r);
    r.logprobs = 2;
    speak(&r);
    expect_text(TEXT, KT_FINISH_STOP);
    cr_expect_eq(seen.finish.stop_token, END);
    cr_expect_eq(seen.n_logprobs, (int)n_script, "none for the end token");
    cr_expect_eq(seen.finish.completion_tokens, (int64_t)n_script + 1);
    cr_expect_eq(r.completion_tokens, (int64_t)n_script + 1);
    kt_request_deinit(&r);
}

/* At every length: whole characters, and at the end U+FFFD for what is half. */
Test(request, ends_at_its_length_wherever_that_is) {
    for (size_t n = 1; n <= n_script; n++) {
        char *want;
        size_t size;
        kt_request r;
        begin(&r);
        r.max_tokens = (int64_t)n;
        speak(&r);
        cr_assert_eq(kt_tokenizer_decode(tokenizer, script, n, true, &want, &size, NULL), KT_OK);
        expect_text(want, KT_FINISH_LENGTH);
        free(want);
        kt_request_deinit(&r);
    }
}

Test(request, stop_strings_end_it_and_are_told) {
    static const struct {
        const char *stop, *text;
    } cases[] = {{"abcabd", "To be, or \xf0\x9f\xa6\x99 \xe6\x88\x91\xc3\xa9 and abcab "},
                 {"To", ""},
                 {"\xf0\x9f\xa6\x99", "To be, or "},
                 {"b", "To "}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        kt_request r;
        begin(&r);
        add_stop(&r, "never said");
        add_stop(&r, cases[i].stop);
        speak(&r);
        expect_text(cases[i].text, KT_FINISH_STOP);
        cr_expect_str_eq(seen.matched, cases[i].stop);
        kt_request_deinit(&r);
    }
}

Test(request, stop_ids_and_end_tokens) {
    kt_request r;

    begin(&r);
    r.stop_ids = malloc(sizeof *r.stop_ids);
    r.stop_ids[0] = script[2];
    r.n_stop_ids = 1;
    r.ignore_eos = true;
    speak(&r);
    cr_expect_eq(seen.finish.stop_token, script[2]);
    cr_expect_eq(r.completion_tokens, 3);
    kt_request_deinit(&r);
    begin(&r); /* end tokens are tokens like others then */
    r.ignore_eos = true;
    r.max_tokens = (int64_t)n_script + 5;
    speak(&r);
    cr_expect_eq(seen.finish.reason, KT_FINISH_LENGTH);
    cr_expect_eq(r.completion_tokens, (int64_t)n_script + 5);
    kt_request_deinit(&r);
}

Test(request, a_least_length_keeps_it_going) {
    kt_request r;
    const int32_t *ids;
    size_t n;

    begin(&r);
    r.min_tokens = (int64_t)n_script + 3;
    speak(&r);
    ids = kt_request_tokens(&r, 0, &n);
    cr_expect_eq(n, n_script + 4);
    cr_expect(ids[n_script] == 1000 && ids[n_script + 2] == 1000 && ids[n_script + 3] == END,
              "the next best instead of the end");
    kt_request_deinit(&r);
}

Test(request, biases_are_added) {
    kt_request r;
    const int32_t *ids;
    size_t n;

    begin(&r);
    r.bias = malloc(sizeof *r.bias);
    r.bias[0] = (kt_token_bias){script[0], -100};
    r.n_bias = 1;
    r.max_tokens = 1;
    speak(&r);
    ids = kt_request_tokens(&r, 0, &n);
    cr_expect_eq(ids[0], 1000);
    kt_request_deinit(&r);
}

/* The context cuts what is asked for. */
Test(request, ends_where_the_context_does) {
    kt_request r;

    begin(&r);
    r.ignore_eos = true;
    r.max_tokens = 100000;
    cr_assert_lt(n_script, 500);
    speak(&r);
    cr_expect_eq(r.completion_tokens, 509);
    kt_request_deinit(&r);
}

/* ---- hooks ---- */

/* Only even tokens, and an end after four. */
static kt_status open_even(void *arg, void **state, kt_err *err) {
    (void)err;
    *state = arg;
    return KT_OK;
}
static void close_even(void *state) {
    (void)state;
}
static kt_status mask_even(void *state, uint64_t *bits, kt_err *err) {
    (void)err;
    memset(bits, 0, VOCAB / 8);
    for (int i = 0; i < VOCAB; i += 2) bits[i / 64] |= UINT64_C(1) << (i % 64);
    if (*(int *)state < 4) return KT_OK;
    memset(bits, 0, VOCAB / 8);
    bits[END / 64] = UINT64_C(1) << (END % 64);
    return KT_OK;
}
static kt_status accept_even(void *state, int32_t id, kt_err *err) {
    (void)err;
    cr_assert_eq(id % 2, 0);
    ++*(int *)state;
    return KT_OK;
}

/* A vocabulary of 64 tokens: one word of a mask. */
static kt_status mask_small(void *state, uint64_t *bits, kt_err *err) {
    (void)state, (void)err;
    bits[0] = UINT64_C(1) << 7;
    return KT_OK;
}

/* Leave memory of this size that is all ones, for whoever takes it next. */
static void dirty(size_t size) {
    char *blocks[16];

    for (int i = 0; i < 16; i++) {
        blocks[i] = malloc(size);
        cr_assert_not_null(blocks[i]);
        memset(blocks[i], 0xff, size);
    }
    for (int i = 0; i < 16; i++) free(blocks[i]);
}

/* Logits beyond the tokenizer's tokens are padding, whatever memory held before. */
Test(request, tokens_that_a_constraint_does_not_know_never_come) {
    static float logits[VOCAB];
    int state = 0;
    const kt_constraint small = {&state, open_even, close_even, mask_small, accept_even};
    kt_sampler_scratch w = {0};
    size_t n;
    kt_request r;

    for (int i = 64; i < VOCAB; i++) logits[i] = 50;
    begin(&r);
    r.constraint = &small;
    dirty(VOCAB / 8);
    cr_assert_eq(kt_request_open(&r, &model, NULL), KT_OK);
    kt_request_pick(&r, 0, logits, &w);
    cr_expect_eq(r.choices[0].pick.status, KT_OK);
    cr_expect_eq(r.choices[0].pick.id, 7, "token %d", r.choices[0].pick.id);
    n = r.choices[0].tokens.size;
    cr_expect_eq(n, 0);
    kt_sampler_scratch_deinit(&w);
    kt_request_deinit(&r);
}

Test(request, a_constraint_decides_what_comes) {
    int state = 0;
    const kt_constraint even = {&state, open_even, close_even, mask_even, accept_even};
    kt_request r;

    begin(&r);
    r.constraint = &even;
    r.min_tokens = 10; /* contradicts the constraint, which wins */
    speak(&r);
    cr_expect_eq(state, 4);
    cr_expect_eq(r.completion_tokens, 5);
    cr_expect_eq(seen.finish.stop_token, END);
    kt_request_deinit(&r);
}

/* A parser that takes the first three tokens for reasoning. */
static kt_status open_thought(void *arg, int choice, void **state, kt_err *err) {
    (void)choice, (void)err;
    *state = arg;
    return KT_OK;
}
static bool wants_none(void *state, int32_t id) {
    (void)state, (void)id;
    return false;
}
static kt_status push_thought(void *state, int32_t id, const char *bytes, size_t size,
                              kt_event_sink *sink, void *arg, kt_err *err) {
    char text[64];
    const kt_event e = {.kind = ++*(int *)state <= 3 ? KT_EVENT_REASONING : KT_EVENT_TEXT,
                        .tool = -1,
                        .text = text,
                        .size = 1};
    (void)id, (void)bytes, (void)size, (void)err;
    strcpy(text, "x");
    sink(arg, &e);
    return KT_OK;
}
static kt_status finish_thought(void *state, kt_event_sink *sink, void *arg, kt_err *err) {
    const kt_event e = {.kind = KT_EVENT_TEXT, .tool = -1, .text = "end", .size = 3};
    (void)state, (void)err;
    sink(arg, &e);
    return KT_OK;
}
static bool is_thinking(void *state) {
    return *(int *)state < 3;
}
static int one_call(void *state) {
    (void)state;
    return 1;
}

Test(request, an_output_parser_gets_every_token) {
    int state = 0;
    const kt_output output = {&state,         open_thought, close_even, wants_none, push_thought,
                              finish_thought, is_thinking,  one_call,   NULL};
    kt_request r;

    begin(&r);
    r.output = &output;
    add_stop(&r, "nd");
    speak(&r);
    cr_expect_eq(state, (int)n_script);
    cr_expect_eq(seen.reasoning.size, 3);
    cr_expect_eq(seen.text.size, n_script - 3 + 1, "x for each token, and e");
    cr_expect_eq(seen.finish.reasoning_tokens, 3);
    cr_expect_eq(seen.finish.reason, KT_FINISH_TOOL_CALLS);
    cr_expect_str_eq(seen.matched, "nd");
    kt_request_deinit(&r);
}
