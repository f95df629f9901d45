/* Body of POST /v1/completions. Every refusal names the parameter, what it is and what it should
 * be. Null means absent. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/http/completion.h"

static bool refuse(kt_api_error *e, int status, const char *param, const char *code,
                   const char *format, ...) __attribute__((format(printf, 5, 6)));

static bool refuse(kt_api_error *e, int status, const char *param, const char *code,
                   const char *format, ...) {
    va_list args;

    e->status = status;
    e->type = status >= 500 ? "server_error" : "invalid_request_error";
    e->code = code;
    snprintf(e->param, sizeof e->param, "%s", param ? param : "");
    va_start(args, format);
    vsnprintf(e->message, sizeof e->message, format, args);
    va_end(args);
    return false;
}

static bool wrong_type(kt_api_error *e, const char *param, const kt_json *v, const char *expected) {
    static const char *const found[] = {"null",     "a boolean", "a number",
                                        "a string", "an array",  "an object"};
    return refuse(e, 400, param, "invalid_type", "'%s' is %s, expected %s", param,
                  v ? found[kt_json_type_of(v)] : "missing", expected);
}

static bool no_memory(kt_api_error *e) {
    return refuse(e, 503, NULL, "out_of_memory", "no memory for the request");
}

/* The parameter, or NULL when it is absent or null. */
static const kt_json *get(const kt_json *body, const char *param) {
    const kt_json *v = kt_json_get(body, param);
    return kt_json_type_of(v) == KT_JSON_NULL ? NULL : v;
}

static bool get_number(const kt_json *body, const char *param, double min, double max, float *out,
                       kt_api_error *e) {
    const kt_json *v = get(body, param);
    char expected[80];
    double d;

    if (!v) return true;
    snprintf(expected, sizeof expected, "a number from %g to %g", min, max);
    if (kt_json_type_of(v) != KT_JSON_NUMBER) return wrong_type(e, param, v, expected);
    d = kt_json_double(v, NAN);
    if (!(d >= min && d <= max)) {
        return refuse(e, 400, param, "invalid_value", "'%s' is %.40s, expected %s", param,
                      kt_json_lexeme(v), expected);
    }
    *out = (float)d;
    return true;
}

static bool get_integer(const kt_json *body, const char *param, int64_t min, int64_t max,
                        int64_t *out, kt_api_error *e) {
    const kt_json *v = get(body, param);
    char expected[80];
    int64_t i;

    if (!v) return true;
    snprintf(expected, sizeof expected, "an integer from %lld to %lld", (long long)min,
             (long long)max);
    if (kt_json_type_of(v) != KT_JSON_NUMBER) return wrong_type(e, param, v, expected);
    i = kt_json_int(v, 0);
    if (!kt_json_is_integer(v) || i < min || i > max) {
        return refuse(e, 400, param, "invalid_value", "'%s' is %.40s, expected %s", param,
                      kt_json_lexeme(v), expected);
    }
    *out = i;
    return true;
}

static bool get_bool(const kt_json *body, const char *param, bool *out, kt_api_error *e) {
    const kt_json *v = get(body, param);

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_BOOL) return wrong_type(e, param, v, "a boolean");
    *out = kt_json_bool(v, false);
    return true;
}

/* ---- sampling ---- */

static bool parse_sampling(kt_completion *c, const kt_json *body, kt_api_error *e) {
    kt_sampling *s = &c->request.sampling;
    int64_t top_k = s->top_k, seed = 0;

    if (!get_number(body, "temperature", 0, 2, &s->temperature, e) ||
        !get_number(body, "top_p", 0, 1, &s->top_p, e) ||
        !get_number(body, "min_p", 0, 1, &s->min_p, e) ||
        !get_number(body, "repetition_penalty", 0.01, 100, &s->repetition_penalty, e) ||
        !get_number(body, "presence_penalty", -2, 2, &s->presence_penalty, e) ||
        !get_number(body, "frequency_penalty", -2, 2, &s->frequency_penalty, e) ||
        !get_integer(body, "top_k", -1, INT32_MAX, &top_k, e) ||
        !get_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, e)) {
        return false;
    }
    s->top_k = top_k > 0 ? (int32_t)top_k : 0;
    if (get(body, "seed")) {
        s->seed = (uint64_t)seed;
    } else {
        const char *id = kt_http_request_id(c->x); /* random already */
        s->seed = strtoull(id + 8, NULL, 16);
    }
    return true;
}

static bool add_stop(kt_completion *c, const kt_json *v, const char *param, kt_api_error *e) {
    kt_stops *s = &c->request.stops;
    size_t size = 0;
    const char *text = kt_json_string(v, &size);

    if (!text) return wrong_type(e, param, v, "a string");
    if (size == 0 || size > KT_MAX_STOP_BYTES) {
        return refuse(e, 400, param, "invalid_value", "'%s' has %zu bytes, expected 1 to %d", param,
                      size, KT_MAX_STOP_BYTES);
    }
    s->text[s->n] = malloc(size + 1);
    if (!s->text[s->n]) return no_memory(e);
    memcpy(s->text[s->n], text, size);
    s->text[s->n][size] = '\0';
    s->size[s->n++] = size;
    return true;
}

static bool parse_stop(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = get(body, "stop");
    char param[32];

    if (!v) return true;
    if (kt_json_type_of(v) == KT_JSON_STRING) return add_stop(c, v, "stop", e);
    if (kt_json_type_of(v) != KT_JSON_ARRAY) {
        return wrong_type(e, "stop", v, "a string or an array of strings");
    }
    if (kt_json_length(v) > KT_MAX_STOPS) {
        return refuse(e, 400, "stop", "invalid_value",
                      "'stop' has %zu strings, at most %d are accepted", kt_json_length(v),
                      KT_MAX_STOPS);
    }
    for (size_t i = 0; i < kt_json_length(v); i++) {
        snprintf(param, sizeof param, "stop[%zu]", i);
        if (!add_stop(c, kt_json_at(v, i), param, e)) return false;
    }
    return true;
}

/* ---- tokens by id ---- */

/* {"15043": -100}: a number for each token id. */
static bool parse_bias(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = get(body, "logit_bias");
    kt_request *r = &c->request;
    const size_t n = kt_json_length(v);
    char param[64];

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_OBJECT)
        return wrong_type(e, "logit_bias", v, "an object of token ids");
    r->bias = malloc((n + 1) * sizeof *r->bias);
    if (!r->bias) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const char *key;
        size_t size;
        const kt_json *value = kt_json_member(v, i, &key, &size);
        const double bias = kt_json_double(value, NAN);
        char *end;
        const long long id = strtoll(key, &end, 10);
        snprintf(param, sizeof param, "logit_bias[%.40s]", key);
        if (size == 0 || end != key + size || id < 0 || id >= c->app->backend->vocab)
            return refuse(e, 400, "logit_bias", "invalid_value",
                          "'%s': expected a token id from 0 to %lld", param,
                          (long long)c->app->backend->vocab - 1);
        if (kt_json_type_of(value) != KT_JSON_NUMBER)
            return wrong_type(e, param, value, "a number from -100 to 100");
        if (!(bias >= -100 && bias <= 100))
            return refuse(e, 400, "logit_bias", "invalid_value",
                          "'%s' is %.40s, expected a number from -100 to 100", param,
                          kt_json_lexeme(value));
        r->bias[r->n_bias++] = (kt_token_bias){(int32_t)id, (float)bias};
    }
    return true;
}

static bool parse_stop_ids(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = get(body, "stop_token_ids");
    kt_request *r = &c->request;
    const size_t n = kt_json_length(v);
    char param[64];

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_ARRAY)
        return wrong_type(e, "stop_token_ids", v, "an array of token ids");
    r->stop_ids = malloc((n + 1) * sizeof *r->stop_ids);
    if (!r->stop_ids) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const kt_json *id = kt_json_at(v, i);
        const int64_t value = kt_json_int(id, -1);
        snprintf(param, sizeof param, "stop_token_ids[%zu]", i);
        if (kt_json_type_of(id) != KT_JSON_NUMBER) return wrong_type(e, param, id, "a token id");
        if (!kt_json_is_integer(id) || value < 0 || value >= c->app->backend->vocab)
            return refuse(e, 400, "stop_token_ids", "invalid_value",
                          "'%s' is %.40s, expected a token id from 0 to %lld", param,
                          kt_json_lexeme(id), (long long)c->app->backend->vocab - 1);
        r->stop_ids[r->n_stop_ids++] = (int32_t)value;
    }
    return true;
}

/* ---- what is asked for ---- */

static bool parse_refused(const kt_json *body, int64_t n, kt_api_error *e) {
    const kt_json *suffix = get(body, "suffix");
    int64_t best_of = n;
    size_t size = 0;

    kt_json_string(suffix, &size);
    if (suffix && (kt_json_type_of(suffix) != KT_JSON_STRING || size > 0)) {
        return refuse(e, 400, "suffix", "unsupported_parameter", "'suffix' is not supported");
    }
    if (!get_integer(body, "best_of", 1, KT_MAX_CHOICES, &best_of, e)) return false;
    if (best_of == n) return true;
    return refuse(e, 400, "best_of", "unsupported_parameter",
                  "'best_of' is not supported other than equal to 'n'");
}

/* How many tokens; max_completion_tokens is the newer name. */
static bool parse_lengths(kt_completion *c, const kt_json *body, kt_api_error *e) {
    kt_request *r = &c->request;
    int64_t newer;

    if (!get_integer(body, "max_tokens", 0, INT32_MAX, &r->max_tokens, e)) return false;
    newer = r->max_tokens;
    if (!get_integer(body, "max_completion_tokens", 0, INT32_MAX, &newer, e) ||
        !get_integer(body, "min_tokens", 0, INT32_MAX, &r->min_tokens, e))
        return false;
    if (get(body, "max_tokens") && newer != r->max_tokens)
        return refuse(e, 400, "max_completion_tokens", "invalid_value",
                      "'max_completion_tokens' is %lld and 'max_tokens' %lld, expected one of them",
                      (long long)newer, (long long)r->max_tokens);
    r->max_tokens = newer;
    if (r->min_tokens <= r->max_tokens) return true;
    return refuse(e, 400, "min_tokens", "invalid_value",
                  "'min_tokens' is %lld, expected at most the %lld of 'max_tokens'",
                  (long long)r->min_tokens, (long long)r->max_tokens);
}

static bool parse_shape(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *options = get(body, "stream_options");
    int64_t n = 1, logprobs = -1, priority = 0;
    kt_request *r = &c->request;
    bool skip_special = true;

    if (!parse_lengths(c, body, e) || !get_integer(body, "n", 1, KT_MAX_CHOICES, &n, e) ||
        !get_integer(body, "logprobs", 0, KT_MAX_TOP_LOGPROBS, &logprobs, e) ||
        !get_integer(body, "priority", -1000000, 1000000, &priority, e) ||
        !get_bool(body, "stream", &c->stream, e) || !get_bool(body, "echo", &c->echo, e) ||
        !get_bool(body, "skip_special_tokens", &skip_special, e) ||
        !get_bool(body, "ignore_eos", &r->ignore_eos, e) || !parse_refused(body, n, e)) {
        return false;
    }
    r->n = (int)n;
    r->logprobs = (int)logprobs;
    r->priority = (int)priority;
    r->show_special = !skip_special;
    r->prompt_logprobs = c->echo && logprobs >= 0;
    if (options && kt_json_type_of(options) != KT_JSON_OBJECT) {
        return wrong_type(e, "stream_options", options, "an object");
    }
    return get_bool(options, "include_usage", &c->include_usage, e);
}

static bool parse_model(const kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = get(body, "model");
    size_t size;
    const char *name = kt_json_string(v, &size);

    if (!v) return true; /* there is only one */
    if (!name) return wrong_type(e, "model", v, "a string");
    if (strlen(c->app->model_name) == size && memcmp(name, c->app->model_name, size) == 0) {
        return true;
    }
    return refuse(e, 404, "model", "model_not_found",
                  "the model '%.100s' does not exist; this server has '%.100s'", name,
                  c->app->model_name);
}

/* ---- prompts ---- */

static bool encode_prompt(kt_completion *c, const kt_json *v, const char *param, kt_prompt *p,
                          kt_text *echoed, kt_api_error *e) {
    size_t size;
    const char *text = kt_json_string(v, &size);
    kt_err err = {0};
    kt_status st =
        kt_tokenizer_encode(c->app->backend->tokenizer, text, size, true, &p->ids, &p->n_ids, &err);

    if (st == KT_E_NOMEM) return no_memory(e);
    if (st != KT_OK) return refuse(e, 400, param, "invalid_value", "'%s': %s", param, err.message);
    for (size_t i = 0; i < p->n_ids; i++) {
        if (p->ids[i] < c->app->backend->vocab) continue;
        return refuse(e, 500, param, NULL, "the tokenizer made token %d, the model has %lld",
                      p->ids[i], (long long)c->app->backend->vocab);
    }
    if (c->echo && kt_text_append(echoed, text, size, NULL) != KT_OK) return no_memory(e);
    return true;
}

static bool read_ids(kt_completion *c, const kt_json *v, const char *param, kt_prompt *p,
                     kt_text *echoed, kt_api_error *e) {
    size_t n = kt_json_length(v);
    int64_t vocab = c->app->backend->vocab;
    char *text;
    size_t size;

    p->ids = malloc((n + 1) * sizeof *p->ids);
    if (!p->ids) return no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const kt_json *id = kt_json_at(v, i);
        int64_t value = kt_json_int(id, -1);
        if (kt_json_type_of(id) != KT_JSON_NUMBER) {
            char name[80];
            snprintf(name, sizeof name, "%s[%zu]", param, i);
            return wrong_type(e, name, id, "a token id");
        }
        if (!kt_json_is_integer(id) || value < 0 || value >= vocab) {
            return refuse(e, 400, param, "invalid_value",
                          "'%s[%zu]' is %.40s, expected a token id from 0 to %lld", param, i,
                          kt_json_lexeme(id), (long long)vocab - 1);
        }
        p->ids[p->n_ids++] = (int32_t)value;
    }
    if (!c->echo) return true;
    if (kt_tokenizer_decode(c->app->backend->tokenizer, p->ids, n, true, &text, &size, NULL) !=
        KT_OK) {
        return no_memory(e);
    }
    echoed->data = text;
    echoed->size = echoed->capacity = size;
    return true;
}

static bool read_prompt(kt_completion *c, const kt_json *v, const char *param, kt_api_error *e) {
    static const char expected[] = "a string, an array of token ids, or an array of these";
    int64_t limit = c->app->backend->max_context;
    kt_text *echoed = &c->echoed[c->request.n_prompts];
    kt_prompt *p = &c->request.prompts[c->request.n_prompts++];
    bool ok;

    if (kt_json_type_of(v) == KT_JSON_STRING)
        ok = encode_prompt(c, v, param, p, echoed, e);
    else if (kt_json_type_of(v) == KT_JSON_ARRAY)
        ok = read_ids(c, v, param, p, echoed, e);
    else
        ok = wrong_type(e, param, v, expected);
    if (!ok) return false;
    if (p->n_ids == 0) {
        return refuse(e, 400, param, "invalid_value", "'%s' is empty, expected at least one token",
                      param);
    }
    if ((int64_t)p->n_ids >= limit) {
        return refuse(
            e, 400, param, "context_length_exceeded",
            "this model's context is %lld tokens, but '%s' has %zu tokens and at least one "
            "more is needed for the answer",
            (long long)limit, param, p->n_ids);
    }
    return true;
}

static bool parse_prompts(kt_completion *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = get(body, "prompt");
    kt_json_type first = kt_json_type_of(kt_json_at(v, 0));
    bool several = first == KT_JSON_STRING || first == KT_JSON_ARRAY;
    size_t n = several ? kt_json_length(v) : 1;
    char param[32];

    if (n > (size_t)(KT_MAX_CHOICES / c->request.n)) {
        return refuse(e, 400, "prompt", "invalid_value",
                      "%zu prompts with n=%d are too many, at most %d choices are made", n,
                      c->request.n, KT_MAX_CHOICES);
    }
    c->request.prompts = calloc(n, sizeof *c->request.prompts);
    c->echoed = calloc(n, sizeof *c->echoed);
    c->choices = calloc(n * (size_t)c->request.n, sizeof *c->choices);
    if (!c->request.prompts || !c->echoed || !c->choices) return no_memory(e);
    if (!several) return read_prompt(c, v, "prompt", e);
    for (size_t i = 0; i < n; i++) {
        snprintf(param, sizeof param, "prompt[%zu]", i);
        if (!read_prompt(c, kt_json_at(v, i), param, e)) return false;
    }
    return true;
}

bool kt_completion_parse(kt_completion *c, const char *body, size_t size, kt_api_error *error) {
    const kt_json_limits limits = {.max_depth = 64, .max_values = KT_MAX_BODY_VALUES};
    const kt_json *root;
    kt_json_doc *doc;
    kt_err err = {0};
    bool ok;
    kt_status st = kt_json_parse(body, size, &limits, &doc, &err);

    if (st == KT_E_NOMEM) return no_memory(error);
    if (st != KT_OK) {
        return refuse(error, 400, NULL, "invalid_json", "the body is not valid JSON: %s",
                      err.message);
    }
    root = kt_json_root(doc);
    c->request.sampling = c->app->backend->defaults;
    if (kt_json_type_of(root) != KT_JSON_OBJECT)
        ok = refuse(error, 400, NULL, "invalid_type", "the body is of type %s, expected an object",
                    kt_json_type_name(kt_json_type_of(root)));
    else
        ok = kt_completion_check_fields(root, error) && parse_model(c, root, error) &&
             parse_shape(c, root, error) && parse_sampling(c, root, error) &&
             parse_stop(c, root, error) && parse_bias(c, root, error) &&
             parse_stop_ids(c, root, error) && parse_prompts(c, root, error);
    kt_json_destroy(doc);
    return ok;
}
