/* Parameters that routes share. Every refusal names the parameter, what it is and what it should
 * be. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/http/api/call.h"

enum { MAX_STOP_IDS = 1024 };

bool kt_api_parse_model(const kt_app *app, const kt_json *body, kt_api_error *e) {
    const char *name = NULL;
    size_t size = 0;

    if (!kt_field_string(body, "model", &name, &size, e)) return false;
    if (!name || (strlen(app->model_name) == size && memcmp(name, app->model_name, size) == 0))
        return true;
    return kt_api_refuse(e, 404, "model", "model_not_found",
                         "the model '%.100s' does not exist; this server has '%.100s'", name,
                         app->model_name);
}

bool kt_api_check_ids(const kt_api_call *c, const int32_t *ids, size_t n, const char *param,
                      kt_api_error *e) {
    const int64_t vocab = c->app->backend->vocab;

    for (size_t i = 0; i < n; i++)
        if (ids[i] >= vocab)
            return kt_api_refuse(e, 500, param, NULL,
                                 "the tokenizer made token %d, the model has %lld", ids[i],
                                 (long long)vocab);
    return true;
}

/* ---- how the answer comes ---- */

static bool parse_stream(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *options = kt_field(body, "stream_options");

    if (options && kt_json_type_of(options) != KT_JSON_OBJECT)
        return kt_api_wrong_type(e, "stream_options", options, "an object");
    return kt_field_bool(body, "stream", &c->stream, e) &&
           kt_field_bool(options, "include_usage", &c->include_usage, e) &&
           kt_field_bool(options, "continuous_usage_stats", &c->continuous_usage, e) &&
           kt_field_bool(body, "timings_per_token", &c->timings_per_token, e);
}

static bool parse_counts(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    int64_t n = 1, best_of, priority = 0;
    kt_request *r = &c->run;

    if (!kt_field_integer(body, "n", 1, KT_MAX_CHOICES, &n, e) ||
        !kt_field_integer(body, "min_tokens", 0, INT32_MAX, &r->min_tokens, e) ||
        !kt_field_integer(body, "priority", INT32_MIN, INT32_MAX, &priority, e) ||
        !kt_field_bool(body, "ignore_eos", &r->ignore_eos, e))
        return false;
    best_of = n;
    if (!kt_field_integer(body, "best_of", 1, KT_MAX_CHOICES, &best_of, e)) return false;
    r->n = (int)n;
    r->priority = (int)priority;
    if (best_of != n)
        return kt_api_refuse(e, 400, "best_of", "unsupported_parameter",
                             "'best_of' is not supported other than equal to 'n'");
    if (r->max_tokens < 0 || r->min_tokens <= r->max_tokens) return true;
    return kt_api_refuse(e, 400, "min_tokens", "invalid_value",
                         "'min_tokens' is %lld, expected at most the %lld of 'max_tokens'",
                         (long long)r->min_tokens, (long long)r->max_tokens);
}

/* ---- sampling ---- */

static bool parse_sampling(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    kt_sampling *s = &c->run.sampling;
    int64_t top_k, seed;

    *s = c->app->backend->defaults;
    top_k = s->top_k;
    seed = (int64_t)strtoull(kt_http_request_id(c->x) + 8, NULL, 16); /* random already */
    if (!kt_field_number(body, "temperature", 0, 2, &s->temperature, e) ||
        !kt_field_number(body, "top_p", 0, 1, &s->top_p, e) ||
        !kt_field_number(body, "min_p", 0, 1, &s->min_p, e) ||
        !kt_field_number(body, "repeat_penalty", 0.01, 100, &s->repetition_penalty, e) ||
        !kt_field_number(body, "repetition_penalty", 0.01, 100, &s->repetition_penalty, e) ||
        !kt_field_number(body, "presence_penalty", -2, 2, &s->presence_penalty, e) ||
        !kt_field_number(body, "frequency_penalty", -2, 2, &s->frequency_penalty, e) ||
        !kt_field_integer(body, "top_k", -1, INT32_MAX, &top_k, e) ||
        !kt_field_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, e))
        return false;
    s->top_k = top_k > 0 ? (int32_t)top_k : 0;
    s->seed = (uint64_t)seed;
    return true;
}

static bool add_stop(kt_stops *s, const kt_json *v, const char *param, kt_api_error *e) {
    size_t size = 0;
    const char *text = kt_json_string(v, &size);

    if (!text) return kt_api_wrong_type(e, param, v, "a string");
    if (size == 0 || size > KT_MAX_STOP_BYTES)
        return kt_api_refuse(e, 400, param, "invalid_value", "'%s' has %zu bytes, expected 1 to %d",
                             param, size, KT_MAX_STOP_BYTES);
    s->text[s->n] = malloc(size + 1);
    if (!s->text[s->n]) return kt_api_no_memory(e);
    memcpy(s->text[s->n], text, size + 1); /* its NUL too */
    s->size[s->n++] = size;
    return true;
}

static bool parse_stop(kt_api_call *c, const kt_json *body, const char *name, kt_api_error *e) {
    const kt_json *v = kt_field(body, name);
    char param[40];

    if (!v) return true;
    if (kt_json_type_of(v) == KT_JSON_STRING) return add_stop(&c->run.stops, v, name, e);
    if (kt_json_type_of(v) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, name, v, "a string or an array of strings");
    if (kt_json_length(v) > KT_MAX_STOPS)
        return kt_api_refuse(e, 400, name, "invalid_value",
                             "'%s' has %zu strings, at most %d are accepted", name,
                             kt_json_length(v), KT_MAX_STOPS);
    for (size_t i = 0; i < kt_json_length(v); i++) {
        snprintf(param, sizeof param, "%s[%zu]", name, i);
        if (!add_stop(&c->run.stops, kt_json_at(v, i), param, e)) return false;
    }
    return true;
}

/* ---- tokens by id ---- */

static bool parse_stop_ids(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "stop_token_ids");
    const int64_t vocab = c->app->backend->vocab;
    const size_t n = kt_json_length(v);
    kt_request *r = &c->run;
    char param[64];

    if (!v) return true;
    if (kt_json_type_of(v) != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "stop_token_ids", v, "an array of token ids");
    if (n > MAX_STOP_IDS)
        return kt_api_refuse(e, 400, "stop_token_ids", "invalid_value",
                             "'stop_token_ids' has %zu ids, at most %d are accepted", n,
                             MAX_STOP_IDS);
    r->stop_ids = malloc((n + 1) * sizeof *r->stop_ids);
    if (!r->stop_ids) return kt_api_no_memory(e);
    for (size_t i = 0; i < n; i++) {
        const kt_json *id = kt_json_at(v, i);
        const int64_t value = kt_json_int(id, -1);
        snprintf(param, sizeof param, "stop_token_ids[%zu]", i);
        if (kt_json_type_of(id) != KT_JSON_NUMBER)
            return kt_api_wrong_type(e, param, id, "a token id");
        if (!kt_json_is_integer(id) || value < 0 || value >= vocab)
            return kt_api_refuse(e, 400, "stop_token_ids", "invalid_value",
                                 "'%s' is %.40s, expected a token id from 0 to %lld", param,
                                 kt_json_lexeme(id), (long long)vocab - 1);
        r->stop_ids[r->n_stop_ids++] = (int32_t)value;
    }
    return true;
}

static bool append_bias(kt_api_call *c, int64_t id, float value, kt_api_error *e) {
    void *data = c->run.bias;
    kt_status st = kt_grow(&data, c->run.n_bias, &c->bias_capacity, 1, sizeof *c->run.bias, NULL);

    c->run.bias = data;
    if (st != KT_OK) return kt_api_no_memory(e);
    c->run.bias[c->run.n_bias++] = (kt_token_bias){(int32_t)id, value};
    return true;
}

/* A number from -100 to 100, or false, which forbids the token. */
static bool read_bias(const kt_json *v, const char *param, float *out, kt_api_error *e) {
    const bool is_never = kt_json_type_of(v) == KT_JSON_BOOL && !kt_json_bool(v, true);
    const double value = is_never ? -100 : kt_json_double(v, NAN);

    if (!is_never && kt_json_type_of(v) != KT_JSON_NUMBER)
        return kt_api_wrong_type(e, param, v, "a number from -100 to 100");
    if (!(value >= -100 && value <= 100))
        return kt_api_refuse(e, 400, "logit_bias", "invalid_value",
                             "'%s' is %.40s, expected a number from -100 to 100", param,
                             kt_json_lexeme(v));
    *out = (float)value;
    return true;
}

/* A token by its id in text form. */
static bool add_bias(kt_api_call *c, const char *id_text, const kt_json *bias, kt_api_error *e) {
    const int64_t vocab = c->app->backend->vocab;
    char param[64], *end;
    const long long id = strtoll(id_text, &end, 10);
    float value;

    snprintf(param, sizeof param, "logit_bias[%.40s]", id_text);
    if (*id_text < '0' || *id_text > '9' || *end || id >= vocab)
        return kt_api_refuse(e, 400, "logit_bias", "invalid_value",
                             "'%s' has no key that is known: expected a token id from 0 to %lld",
                             param, (long long)vocab - 1);
    return read_bias(bias, param, &value, e) && append_bias(c, id, value, e);
}

/* All tokens of a text. */
static bool add_text_bias(kt_api_call *c, const kt_json *text, const kt_json *bias,
                          kt_api_error *e) {
    size_t size = 0, n = 0;
    const char *bytes = kt_json_string(text, &size);
    char param[64];
    int32_t *ids = NULL;
    float value;
    bool ok = true;

    snprintf(param, sizeof param, "logit_bias[%.40s]", bytes);
    if (!read_bias(bias, param, &value, e)) return false;
    if (kt_tokenizer_encode(c->app->backend->tokenizer, bytes, size, false, &ids, &n, NULL) !=
        KT_OK)
        return kt_api_no_memory(e);
    for (size_t i = 0; ok && i < n; i++) ok = append_bias(c, ids[i], value, e);
    free(ids);
    return ok;
}

/* {"15043": -100}, or llama-server's [[15043, -100], [" text", false]]. */
static bool parse_bias(kt_api_call *c, const kt_json *body, kt_api_error *e) {
    const kt_json *v = kt_field(body, "logit_bias");
    const kt_json_type type = kt_json_type_of(v);

    if (!v) return true;
    if (type != KT_JSON_OBJECT && type != KT_JSON_ARRAY)
        return kt_api_wrong_type(e, "logit_bias", v, "an object of biases by token id");
    for (size_t i = 0; i < kt_json_length(v); i++) {
        const kt_json *pair = kt_json_at(v, i), *first = kt_json_at(pair, 0);
        const kt_json *bias = kt_json_at(pair, 1);
        const char *id = kt_json_lexeme(first);
        const bool is_text = kt_json_type_of(first) == KT_JSON_STRING;
        size_t size;
        if (type == KT_JSON_OBJECT)
            bias = kt_json_member(v, i, &id, &size);
        else if ((!id && !is_text) || kt_json_length(pair) != 2)
            return kt_api_wrong_type(e, "logit_bias", v,
                                     "an object of biases by token id, or an array of pairs");
        if (!(id ? add_bias(c, id, bias, e) : add_text_bias(c, first, bias, e))) return false;
    }
    return true;
}

bool kt_api_parse_run(kt_api_call *c, const kt_json *body, const char *stop, kt_api_error *e) {
    return parse_stream(c, body, e) && parse_counts(c, body, e) && parse_sampling(c, body, e) &&
           parse_stop(c, body, stop, e) && parse_stop_ids(c, body, e) && parse_bias(c, body, e);
}
