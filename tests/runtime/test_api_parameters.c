/* Parameters of the three routes that answer: each that clients are known to send is read, refused
 * by name, or a hint without effect; answers are held to forms. SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/runtime/fake_chat.h"

/* What a route does with a parameter. */
typedef enum fate {
    READ,    /* the good value is taken, a bad one refused by name: it is not passed over */
    REFUSED, /* the good value is refused by name */
    HINT,    /* taken without effect */
    NOT_SENT /* no client of this route sends it */
} fate;

#define TOOL "{\"type\":\"function\",\"function\":{\"name\":\"f\"}}"
#define ALL_READ \
    { READ, READ, READ }
#define NO_ROUTE \
    { REFUSED, REFUSED, REFUSED }
#define HINTS \
    { HINT, HINT, HINT }
#define ONLY_CHAT \
    { READ, REFUSED, REFUSED }
#define ONLY_TEXT \
    { REFUSED, READ, REFUSED }
#define ONLY_MESSAGES \
    { NOT_SENT, NOT_SENT, READ }
#define OF_OPENAI \
    { READ, READ, REFUSED }

/* Routes in this order: chat, text, messages. */
static const struct route {
    const char *path, *base;
} routes[] = {{"/v1/chat/completions", "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"},
              {"/v1/completions", "\"prompt\":\"a\""},
              {"/v1/messages", "\"messages\":[{\"role\":\"user\",\"content\":\"Hi\"}]"}};

static const struct parameter {
    const char *name, *good, *bad;
    fate fate[3];
    const char *beside; /* further members, or NULL */
} parameters[] = {
    /* OpenAI's */
    {"model", "\"fake\"", "7", ALL_READ, NULL},
    {"max_tokens", "3", "\"x\"", ALL_READ, NULL},
    {"max_completion_tokens", "3", "\"x\"", OF_OPENAI, NULL},
    {"temperature", "0.5", "\"x\"", ALL_READ, NULL},
    {"top_p", "0.5", "\"x\"", ALL_READ, NULL},
    {"n", "2", "\"x\"", OF_OPENAI, NULL},
    {"stop", "[\"zz\"]", "7", OF_OPENAI, NULL},
    {"stream", "true", "7", ALL_READ, NULL},
    {"stream_options", "{\"include_usage\":true}", "7", OF_OPENAI, NULL},
    {"seed", "3", "\"x\"", ALL_READ, NULL},
    {"logprobs", "true", "7", {READ, NOT_SENT, REFUSED}, NULL},
    {"logprobs", "2", "true", {NOT_SENT, READ, REFUSED}, NULL},
    {"top_logprobs", "2", "\"x\"", ONLY_CHAT, "\"logprobs\":true"},
    {"logit_bias", "{\"5\":1}", "7", ALL_READ, NULL},
    {"frequency_penalty", "0.1", "\"x\"", ALL_READ, NULL},
    {"presence_penalty", "0.1", "\"x\"", ALL_READ, NULL},
    {"response_format", "{\"type\":\"json_object\"}", "7", OF_OPENAI, NULL},
    {"tools", "[" TOOL "]", "7", {READ, REFUSED, NOT_SENT}, NULL},
    {"tool_choice", "\"auto\"", "7", {READ, REFUSED, NOT_SENT}, NULL},
    {"parallel_tool_calls", "true", "7", ONLY_CHAT, NULL},
    {"reasoning_effort", "\"high\"", "7", ONLY_CHAT, NULL},
    {"user", "\"u\"", "7", HINTS, NULL},
    {"metadata", "{\"user_id\":\"u\"}", "7", HINTS, NULL},
    {"store", "true", "7", HINTS, NULL},
    {"service_tier", "\"auto\"", "7", HINTS, NULL},
    {"echo", "true", "7", ONLY_TEXT, NULL},
    {"suffix", "\"x\"", "7", NO_ROUTE, NULL},
    {"best_of", "2", "\"x\"", NO_ROUTE, NULL},
    {"functions", "[{}]", "7", NO_ROUTE, NULL},
    {"function_call", "\"auto\"", "7", NO_ROUTE, NULL},
    {"audio", "{}", "7", NO_ROUTE, NULL},
    {"modalities", "[\"audio\"]", "7", NO_ROUTE, NULL},
    {"prediction", "{}", "7", NO_ROUTE, NULL},
    {"verbosity", "\"low\"", "7", NO_ROUTE, NULL},
    {"web_search_options", "{}", "7", NO_ROUTE, NULL},
    {"prompt", "\"a\"", "{}", ONLY_TEXT, NULL},
    {"messages", "[{\"role\":\"user\",\"content\":\"Hi\"}]", "7", {READ, REFUSED, READ}, NULL},
    /* common to SGLang and vLLM */
    {"top_k", "4", "\"x\"", ALL_READ, NULL},
    {"min_p", "0.1", "\"x\"", ALL_READ, NULL},
    {"repetition_penalty", "1.1", "\"x\"", ALL_READ, NULL},
    {"min_tokens", "1", "\"x\"", ALL_READ, NULL},
    {"stop_token_ids", "[5]", "7", ALL_READ, NULL},
    {"ignore_eos", "true", "7", ALL_READ, NULL},
    {"skip_special_tokens", "false", "7", ONLY_TEXT, NULL},
    {"chat_template_kwargs", "{\"a\":1}", "7", {READ, REFUSED, READ}, NULL},
    {"continue_final_message", "true", "7", {READ, NOT_SENT, REFUSED}, NULL},
    {"add_generation_prompt", "false", "7", {READ, NOT_SENT, REFUSED}, NULL},
    {"include_reasoning", "false", "7", {READ, NOT_SENT, READ}, NULL},
    {"enable_thinking", "true", "7", {READ, NOT_SENT, REFUSED}, NULL},
    {"cache_salt", "\"a\"", "7", NO_ROUTE, NULL},
    {"priority", "3", "\"x\"", ALL_READ, NULL},
    {"thinking_token_budget", "5", "7", NO_ROUTE, NULL},
    {"truncate_prompt_tokens", "5", "7", NO_ROUTE, NULL},
    {"allowed_token_ids", "[5]", "7", NO_ROUTE, NULL},
    {"bad_words", "[\"x\"]", "7", NO_ROUTE, NULL},
    {"return_token_ids", "true", "7", NO_ROUTE, NULL},
    {"include_stop_str_in_output", "true", "7", NO_ROUTE, NULL},
    {"structured_outputs", "{\"json\":{}}", "7", NO_ROUTE, NULL},
    {"guided_json", "{\"a\":1}", "7", NO_ROUTE, NULL},
    {"prompt_logprobs", "1", "7", NO_ROUTE, NULL},
    {"use_beam_search", "true", "7", NO_ROUTE, NULL},
    {"length_penalty", "0.5", "7", NO_ROUTE, NULL},
    /* llama-server's */
    {"n_predict", "3", "\"x\"", ONLY_CHAT, NULL},
    {"n_keep", "5", "7", NO_ROUTE, NULL},
    {"n_probs", "5", "7", NO_ROUTE, NULL},
    {"cache_prompt", "true", "7", HINTS, NULL},
    {"id_slot", "1", "7", HINTS, NULL},
    {"grammar", "\"root ::= \\\"a\\\"\"", "7", ALL_READ, NULL},
    {"json_schema", "{\"const\":1}", "7", ALL_READ, NULL},
    {"typical_p", "0.5", "7", NO_ROUTE, NULL},
    {"top_n_sigma", "1", "7", NO_ROUTE, NULL},
    {"xtc_probability", "0.1", "7", NO_ROUTE, NULL},
    {"dry_multiplier", "0.8", "7", NO_ROUTE, NULL},
    {"dynatemp_range", "0.5", "7", NO_ROUTE, NULL},
    {"mirostat", "2", "7", NO_ROUTE, NULL},
    {"samplers", "[\"top_k\"]", "7", NO_ROUTE, NULL},
    {"repeat_penalty", "1.1", "\"x\"", {READ, REFUSED, READ}, NULL},
    {"timings_per_token", "true", "7", OF_OPENAI, NULL},
    {"return_tokens", "true", "7", NO_ROUTE, NULL},
    {"return_progress", "true", "7", ONLY_CHAT, NULL},
    {"response_fields", "[\"a\"]", "7", NO_ROUTE, NULL},
    {"reasoning_format", "\"none\"", "7", NO_ROUTE, NULL},
    {"t_max_predict_ms", "5", "7", NO_ROUTE, NULL},
    /* Anthropic's */
    {"system", "\"Be brief.\"", "7", ONLY_MESSAGES, NULL},
    {"stop_sequences", "[\"zz\"]", "7", ONLY_MESSAGES, NULL},
    {"tools", "[{\"name\":\"f\",\"input_schema\":{}}]", "7", ONLY_MESSAGES, NULL},
    {"tool_choice", "{\"type\":\"auto\"}", "7", ONLY_MESSAGES, NULL},
    {"thinking", "{\"type\":\"disabled\"}", "7", ONLY_MESSAGES, NULL},
    {"output_config", "{\"effort\":\"low\"}", "7", ONLY_MESSAGES, NULL},
    {"container", "\"c\"", "7", {NOT_SENT, NOT_SENT, REFUSED}, NULL},
    {"context_management", "{\"edits\":[{}]}", "7", {NOT_SENT, NOT_SENT, REFUSED}, NULL},
    {"mcp_servers", "[{}]", "7", {NOT_SENT, NOT_SENT, REFUSED}, NULL},
};

static bool begins(const char *text, const char *with) {
    return strncmp(text, with, strlen(with)) == 0;
}

static kt_reply ask(int route, const struct parameter *p, const char *value) {
    const bool is_length = strstr(p->name, "max_") == p->name || strcmp(p->name, "n_predict") == 0;
    const char *base = routes[route].base;
    char body[400], own[40];

    snprintf(own, sizeof own, "\"%s\":", p->name);
    if (begins(base, own)) base = "\"user\":\"u\"";
    snprintf(body, sizeof body, "{%s%s%s%s,\"%s\":%s}", base, is_length ? "" : ",\"max_tokens\":3",
             p->beside && route == 0 ? "," : "", p->beside && route == 0 ? p->beside : "", p->name,
             value);
    return kt_send_request(fake.port, "POST", routes[route].path, "", body);
}

static void check_refusal(kt_reply r, int route, const struct parameter *p, const char *value,
                          const char *says) {
    kt_json_doc *doc;
    const char *message = fake_text_at(kt_json_get(fake_parse(&r, &doc), "error"), "message");

    cr_expect(r.status == 400 || r.status == 404, "%s %s=%s: status %d: %s", routes[route].path,
              p->name, value, r.status, r.body);
    cr_expect(begins(message, says), "%s %s=%s: '%s' does not begin with '%s'", routes[route].path,
              p->name, value, message, says);
    kt_json_destroy(doc);
    kt_reply_free(&r);
}

static void check_taken(kt_reply r, int route, const struct parameter *p, const char *value) {
    cr_expect_eq(r.status, 200, "%s %s=%s: status %d: %s", routes[route].path, p->name, value,
                 r.status, r.body);
    kt_reply_free(&r);
}

static void check_parameter(int route, const struct parameter *p) {
    char says[80];

    switch (p->fate[route]) {
    case READ:
        check_taken(ask(route, p, p->good), route, p, p->good);
        snprintf(says, sizeof says, "'%s", p->name);
        check_refusal(ask(route, p, p->bad), route, p, p->bad, says);
        break;
    case REFUSED:
        snprintf(says, sizeof says, "'%s' %s", p->name,
                 strcmp(p->name, "modalities") == 0 ? "other than" : "is not supported");
        check_refusal(ask(route, p, p->good), route, p, p->good, says);
        break;
    case HINT:
        check_taken(ask(route, p, p->good), route, p, p->good);
        check_taken(ask(route, p, p->bad), route, p, p->bad);
        break;
    case NOT_SENT: break;
    }
}

Test(api_parameters, are_read_or_refused_by_name_on_every_route) {
    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++)
        for (int route = 0; route < 3; route++) check_parameter(route, &parameters[i]);
    fake_chat_stop();
}

/* null is absent, whatever the name. */
Test(api_parameters, that_are_null_are_absent) {
    fake_chat_init("To be", "hermes", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof parameters / sizeof *parameters; i++) {
        const struct parameter *p = &parameters[i];
        if (begins(p->name, "max_") || begins(p->name, "messages") || begins(p->name, "prompt") ||
            begins(p->name, "n_predict"))
            continue; /* needed, or another name of what is needed */
        for (int route = 0; route < 3; route++)
            if (p->fate[route] != NOT_SENT) check_taken(ask(route, p, "null"), route, p, "null");
    }
    fake_chat_stop();
}

/* ---- forms of a plain completion ---- */

/* The text of the first choice; "" when there is none. Owned. */
static char *complete(const char *members, int status) {
    char body[600], *text;
    kt_json_doc *doc;
    kt_reply r;

    snprintf(body, sizeof body, "{\"prompt\":\"a\",\"temperature\":0,\"max_tokens\":200,%s}",
             members);
    r = kt_complete(fake.port, body);
    cr_expect_eq(r.status, status, "%s: %d %s", body, r.status, r.body);
    text =
        strdup(fake_text_at(kt_json_at(kt_json_get(fake_parse(&r, &doc), "choices"), 0), "text"));
    kt_json_destroy(doc);
    kt_reply_free(&r);
    return text;
}

static const struct form {
    const char *members, *text;
} forms[] = {
    {"\"grammar\":\"root ::= \\\"a\\\"{5,5}\"", "aaaaa"},
    {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"const\":\"42\"}}", "\"42\""},
    {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"const\":"
     "\"foooooo\"}}}",
     "\"foooooo\""},
    {"\"json_schema\":{\"const\":\"42\"}", "\"42\""},
    {"\"response_format\":{\"type\":\"text\"}", "To be"},
    {"\"grammar\":\"\"", "To be"}};

/* The model would say "To be". */
Test(api_parameters, completions_are_held_to_the_form_asked_for) {
    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        char *text = complete(forms[i].members, 200);
        cr_expect_str_eq(text, forms[i].text, "%s: '%s'", forms[i].members, text);
        free(text);
    }
    fake_chat_stop();
}

/* Choices are held one by one: each has a state of its own. */
Test(api_parameters, every_choice_is_held_to_it) {
    kt_reply r;
    int n = 0;

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    r = kt_complete(fake.port, "{\"prompt\":[\"a\",\"b\"],\"n\":2,\"max_tokens\":50,"
                               "\"grammar\":\"root ::= \\\"seventeen\\\"\"}");
    for (const char *at = r.body; (at = strstr(at, "\"text\":\"seventeen\"")); at++) n++;
    cr_expect_eq(n, 4, "%s", r.body);
    kt_reply_free(&r);
    fake_chat_stop();
}

Test(api_parameters, wrong_forms_are_refused_on_both_routes) {
    static const struct {
        const char *members, *code, *param, *says;
    } cases[] = {
        {"\"response_format\":{\"type\":\"sound\"}", "invalid_value", "response_format", "sound"},
        {"\"response_format\":{}", "invalid_type", "response_format.type", "missing"},
        {"\"response_format\":\"json\"", "invalid_type", "response_format", "a string"},
        {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}", "invalid_type",
         "response_format.json_schema.schema", "missing"},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":123}", "invalid_value",
         "response_format", "response_format"},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":123}}",
         "invalid_value", "response_format", "type"},
        {"\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"hiccup\"}}",
         "invalid_value", "response_format", "no type of JSON"},
        {"\"grammar\":\"root ::= (\"", "invalid_value", "grammar", "1:"},
        {"\"grammar\":\"root ::= [0-9]+\",\"json_schema\":{}", "invalid_value", "response_format",
         "only one"},
    };
    char body[300];

    fake_chat_init("To be", "none", "none");
    fake_start(NULL, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int route = 0; route < 2; route++) {
            snprintf(body, sizeof body, "{%s,%s}", routes[route].base, cases[i].members);
            fake_check_error(kt_send_request(fake.port, "POST", routes[route].path, "", body), 400,
                             cases[i].code, cases[i].param, cases[i].says);
        }
    fake_chat_stop();
}

/* Grammars need the vocabulary, not the template. */
Test(api_parameters, a_model_without_a_template_is_held_to_forms_all_the_same) {
    char *text;

    fake_chat_init("To be", "none", "none");
    fake_chat.model.make_prompt = NULL;
    fake_start(NULL, 0);
    text = complete(forms[0].members, 200);
    cr_expect_str_eq(text, forms[0].text);
    free(text);
    fake_check_error(kt_send_request(fake.port, "POST", routes[0].path, "",
                                     "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}"),
                     400, "no_chat_template", "", "--chat-template");
    fake_chat_stop();
}

Test(api_parameters, without_a_vocabulary_there_are_no_forms) {
    fake_start(NULL, 0);
    fake_check_error(
        kt_complete(fake.port, "{\"prompt\":\"a\",\"grammar\":\"root ::= \\\"a\\\"\"}"), 400,
        "unsupported_value", "grammar", "vocabulary");
    fake_stop();
}

/* ---- bounds of an answer ---- */

Test(api_parameters, a_completion_that_could_be_too_large_is_refused) {
    static const char many[] = "{\"prompt\":\"a\",\"n\":128,\"max_tokens\":1000,\"logprobs\":20}";
    static const char echoed[] = "{\"prompt\":[\"a b c d e f\",\"a\"],\"n\":64,\"max_tokens\":0,"
                                 "\"logprobs\":20,\"echo\":true}";
    kt_reply r;

    fake_start(NULL, 0);
    fake_check_error(kt_complete(fake.port, many), 400, "answer_too_large", "n",
                     "use 'stream', or less of 'n', 'max_tokens' and 'logprobs'");
    r = kt_complete(fake.port, echoed); /* what is asked for counts, not what the context holds */
    cr_expect_eq(r.status, 200, "%s", r.body);
    kt_reply_free(&r);
    fake_stop();
}
