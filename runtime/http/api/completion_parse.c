/* Body of POST /v1/completions. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>

#include "runtime/http/api/answer_bound.h"
#include "runtime/http/api/completion.h"
#include "runtime/http/api/refused.h"

/* What is read here and in call_fields.c and call_form.c. A name that nobody knows is refused, as
 * OpenAI's own service does: it may be a typing error. */
static const char *const taken[] = {"add_special_tokens",
                                    "best_of",
                                    "echo",
                                    "frequency_penalty",
                                    "grammar",
                                    "ignore_eos",
                                    "json_schema",
                                    "logit_bias",
                                    "logprobs",
                                    "max_completion_tokens",
                                    "max_tokens",
                                    "min_p",
                                    "min_tokens",
                                    "model",
                                    "n",
                                    "presence_penalty",
                                    "priority",
                                    "prompt",
                                    "repetition_penalty",
                                    "response_format",
                                    "seed",
                                    "skip_special_tokens",
                                    "stop",
                                    "stop_token_ids",
                                    "stream",
                                    "stream_options",
                                    "temperature",
                                    "timings_per_token",
                                    "top_k",
                                    "top_p"};

/* ---- what is asked for ---- */

/* How many tokens; max_completion_tokens is the newer name. */
static bool parse_lengths(kt_request *r, const kt_json *body, kt_api_error *e) {
    int64_t newer;

    if (!kt_field_integer(body, "max_tokens", 0, INT32_MAX, &r->max_tokens, e)) return false;
    newer = r->max_tokens;
    if (!kt_field_integer(body, "max_completion_tokens", 0, INT32_MAX, &newer, e)) return false;
    if (kt_field(body, "max_tokens") && newer != r->max_tokens)
        return kt_api_refuse(e, 400, "max_completion_tokens", "invalid_value",
                             "'max_completion_tokens' is %lld and 'max_tokens' %lld, expected one "
                             "of them",
                             (long long)newer, (long long)r->max_tokens);
    r->max_tokens = newer;
    return true;
}

static bool parse_shape(kt_completion *c, const kt_json *body, kt_api_error *e) {
    kt_request *r = &c->call.run;
    int64_t logprobs = -1;
    bool skip_special = true;

    c->begins = true;
    if (!parse_lengths(r, body, e) ||
        !kt_field_integer(body, "logprobs", 0, KT_MAX_TOP_LOGPROBS, &logprobs, e) ||
        !kt_field_bool(body, "echo", &c->echo, e) ||
        !kt_field_bool(body, "add_special_tokens", &c->begins, e) ||
        !kt_field_bool(body, "skip_special_tokens", &skip_special, e) ||
        !kt_api_parse_run(&c->call, body, "stop", e))
        return false;
    r->logprobs = (int)logprobs;
    r->show_special = !skip_special;
    r->prompt_logprobs = c->echo && logprobs >= 0;
    return true;
}

/* ---- prompts ---- */

static bool encode_prompt(kt_completion *c, const kt_json *v, const char *param, kt_prompt *p,
                          kt_text *echoed, kt_api_error *e) {
    size_t size;
    const char *text = kt_json_string(v, &size);
    kt_err err = {0};
    kt_status st = kt_tokenizer_encode(c->call.app->backend->tokenizer, text, size, true, &p->ids,
                                       &p->n_ids, &err);

    if (st == KT_OK && c->begins)
        st = kt_tokenizer_begin(c->call.app->backend->tokenizer, &p->ids, &p->n_ids, &err);
    if (st == KT_E_NOMEM) return kt_api_no_memory(e);
    if (st != KT_OK)
        return kt_api_refuse(e, 400, param, "invalid_value", "'%s': %s", param, err.message);
    if (!kt_api_check_ids(&c->call, p->ids, p->n_ids, param, e)) return false;
    if (c->echo && kt_text_append(echoed, text, size, NULL) != KT_OK) return kt_api_no_memory(e);
    return true;
}

static bool read_ids(kt_completion *c, const kt_json *v, const char *param, kt_prompt *p,
                     kt_text *echoed, kt_api_error *e) {
    size_t n = kt_json_length(v);
    int64_t vocab = c->call.app->backend->vocab;
    char *text;
    size_t size;

    p->ids = malloc((n + 1) * sizeof *p->ids);
    if (!p->ids) return kt_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const kt_json *id = kt_json_at(v, i);
        int64_t value = kt_json_int(id, -1);
        if (kt_json_type_of(id) != KT_JSON_NUMBER) {
            char name[80];
            snprintf(name, sizeof name, "%s[%zu]", param, i);
            return kt_api_wrong_type(e, name, id, "a token id");
        }
        if (!kt_json_is_integer(id) || value < 0 || value >= vocab) {
            return kt_api_refuse(e, 400, param, "invalid_value",
                                 "'%s[%zu]' is %.40s, expected a token id from 0 to %lld", param, i,
                                 kt_json_lexeme(id), (long long)vocab - 1);
        }
        p->ids[p->n_ids++] = (int32_t)value;
    }
    if (!c->echo) return true;
    if (kt_tokenizer_decode(c->call.app->backend->tokenizer, p->ids, n, true, &text, &size, NULL) !=
        KT_OK) {
        return kt_api_no_memory(e);
    }
    echoed->data = text;
    echoed->size = echoed->capacity = size;
    return true;
}

static bool read_prompt(kt_completion *c, const kt_json *v, const char *param, kt_api_error *e) {
    static const char expected[] = "a string, an array of token ids, or an array of these";
    int64_t limit = c->call.app->backend->max_context;
    kt_text *echoed = &c->echoed[c->call.run.n_prompts];
    kt_prompt *p = &c->call.run.prompts[c->call.run.n_prompts++];
    bool ok;

    if (kt_json_type_of(v) == KT_JSON_STRING)
        ok = encode_prompt(c, v, param, p, echoed, e);
    else if (kt_json_type_of(v) == KT_JSON_ARRAY)
        ok = read_ids(c, v, param, p, echoed, e);
    else
        ok = kt_api_wrong_type(e, param, v, expected);
    if (!ok) return false;
    if (p->n_ids == 0) {
        return kt_api_refuse(e, 400, param, "invalid_value",
                             "'%s' is empty, expected at least one token", param);
    }
    if ((int64_t)p->n_ids >= limit) {
        return kt_api_refuse(
            e, 400, param, "context_length_exceeded",
            "this model's context is %lld tokens, but '%s' has %zu tokens and at least one "
            "more is needed for the answer",
            (long long)limit, param, p->n_ids);
    }
    return true;
}

static bool parse_prompts(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "prompt");
    kt_json_type first = kt_json_type_of(kt_json_at(v, 0));
    bool several = first == KT_JSON_STRING || first == KT_JSON_ARRAY;
    size_t n = several ? kt_json_length(v) : 1;
    char param[32];

    if (n > (size_t)(KT_MAX_CHOICES / c->call.run.n)) {
        return kt_api_refuse(e, 400, "prompt", "invalid_value",
                             "%zu prompts with n=%d are too many, at most %d choices are made", n,
                             c->call.run.n, KT_MAX_CHOICES);
    }
    c->call.run.prompts = calloc(n, sizeof *c->call.run.prompts);
    c->echoed = calloc(n, sizeof *c->echoed);
    c->choices = calloc(n * (size_t)c->call.run.n, sizeof *c->choices);
    c->n_prompts = c->echoed ? n : 0;
    c->n_choices = c->choices ? n * (size_t)c->call.run.n : 0;
    if (!c->call.run.prompts || !c->echoed || !c->choices) return kt_api_no_memory(e);
    if (!several) return read_prompt(c, v, "prompt", e);
    for (size_t i = 0; i < n; i++) {
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (!read_prompt(c, kt_json_at(v, i), param, e)) return false;
    }
    return true;
}

/* A whole answer has at most the tokens asked for, and with echo the prompts. */
static bool check_answer(const kt_completion *c, kt_api_error *e) {
    const kt_request *r = &c->call.run;
    const int64_t context = c->call.app->backend->max_context;
    int64_t tokens = r->max_tokens, longest = 0;

    if (c->call.stream) return true;
    for (size_t i = 0; i < r->n_prompts; i++)
        if ((int64_t)r->prompts[i].n_ids > longest) longest = (int64_t)r->prompts[i].n_ids;
    if (c->echo) tokens += longest;
    return kt_answer_check((int64_t)kt_request_choices(r), tokens < context ? tokens : context,
                           r->logprobs, e);
}

bool kt_completion_prepare(kt_api_call *call, const kt_json *body, kt_api_error *e) {
    kt_completion *c = (kt_completion *)(void *)call;

    if (!kt_api_check_known(body, KT_ON_TEXT, taken, sizeof taken / sizeof *taken, e) ||
        !kt_api_check_refused(body, KT_ON_TEXT, e) || !kt_api_parse_model(call->app, body, e) ||
        !parse_shape(c, body, e) || !kt_api_parse_form(call, body, e) ||
        !parse_prompts(c, body, e) || !check_answer(c, e) || !kt_api_make_grammar(call, e))
        return false;
    kt_api_hold(call);
    return true;
}
