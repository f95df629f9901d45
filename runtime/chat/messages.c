/* From a request's messages to a template's variables. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/chat/messages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/chat/chat_format.h"

typedef struct context {
    const kt_chat_format *f;
    const kt_chat_request *request;
    kt_json_writer w;
    kt_err *err;
    bool one_call; /* of a message's calls only number `call` is written */
    size_t call;
} context;

static bool is_key(const char *key, size_t n, const char *name) {
    return strlen(name) == n && memcmp(key, name, n) == 0;
}

static kt_status refuse(const context *c, const char *where, const char *what) {
    return kt_fail(c->err, KT_E_INVALID, "%.200s: %s", where, what);
}

/* ---- content ---- */

/* The text of part i, or an error that names its type. */
static kt_status part_text(const context *c, const kt_json *parts, size_t i, const char *where,
                           const char **text, size_t *size) {
    const kt_json *part = kt_json_at(parts, i);
    const char *type = kt_json_text(part, "type");

    *text = kt_json_string(kt_json_get(part, "text"), size);
    if (*text && (strcmp(type, "text") == 0 || !*type)) return KT_OK;
    return kt_fail(c->err, KT_E_INVALID,
                   "%.200s[%zu]: a part of type '%.60s', expected one of type 'text' with a string "
                   "'text': this model reads text only",
                   where, i, type);
}

/* Parts as one string with a line's end between, as other servers do. */
static kt_status put_joined(context *c, const kt_json *parts, const char *where) {
    char *all = NULL;
    size_t size = 0, n;
    FILE *to = open_memstream(&all, &size);
    const char *text;
    kt_status st = KT_OK;

    if (!to) return kt_fail(c->err, KT_E_NOMEM, "%.200s: no memory for the text", where);
    for (size_t i = 0; st == KT_OK && i < kt_json_length(parts); i++) {
        st = part_text(c, parts, i, where, &text, &n);
        if (st == KT_OK && i) fputc('\n', to);
        if (st == KT_OK) fwrite(text, 1, n, to);
    }
    if (fclose(to) != 0 && st == KT_OK)
        st = kt_fail(c->err, KT_E_NOMEM, "%.200s: no memory for the text", where);
    if (st == KT_OK) kt_json_put_string_n(&c->w, all, size);
    free(all);
    return st;
}

static kt_status put_content(context *c, const kt_json *content, bool has_calls,
                             const char *where) {
    const char *text;
    size_t size;

    switch (kt_json_type_of(content)) {
    case KT_JSON_STRING: kt_json_put_value(&c->w, content); return KT_OK;
    case KT_JSON_NULL:
        if (has_calls && c->f->null_content)
            kt_json_put_null(&c->w);
        else
            kt_json_put_string(&c->w, "");
        return KT_OK;
    case KT_JSON_ARRAY: break;
    default:
        return kt_fail(c->err, KT_E_INVALID, "%.200s: a %s, expected a string or a list of parts",
                       where, kt_json_type_name(kt_json_type_of(content)));
    }
    if (!c->f->part_list) return put_joined(c, content, where);
    for (size_t i = 0; i < kt_json_length(content); i++)
        KT_TRY(part_text(c, content, i, where, &text, &size));
    kt_json_put_value(&c->w, content);
    return KT_OK;
}

/* ---- tool calls ---- */

/* Arguments as the template wants them: an object, or its text. */
static kt_status put_arguments(context *c, const kt_json *arguments, const char *where) {
    size_t size;
    const char *text = kt_json_string(arguments, &size);
    kt_json_writer inner = {0};
    kt_json_doc *doc;
    kt_err why = {KT_OK, ""};

    if (text && c->f->object_arguments) {
        if (strspn(text, " \t\r\n") == size) text = "{}", size = 2;
        if (kt_json_parse(text, size, NULL, &doc, &why) != KT_OK)
            return kt_fail(c->err, KT_E_INVALID, "%.200s: not JSON: %s", where, why.message);
        if (kt_json_type_of(kt_json_root(doc)) != KT_JSON_OBJECT) {
            kt_json_destroy(doc);
            return refuse(c, where, "expected the text of a JSON object");
        }
        kt_json_put_value(&c->w, kt_json_root(doc));
        kt_json_destroy(doc);
        return KT_OK;
    }
    if (text || c->f->object_arguments || kt_json_type_of(arguments) != KT_JSON_OBJECT) {
        kt_json_put_value(&c->w, arguments);
        return KT_OK;
    }
    kt_json_put_value(&inner, arguments);
    text = kt_json_writer_text(&inner, &size);
    if (text) kt_json_put_string_n(&c->w, text, size);
    kt_json_writer_deinit(&inner);
    return text ? KT_OK : kt_fail(c->err, KT_E_NOMEM, "%.200s: no memory for the text", where);
}

static kt_status put_function(context *c, const kt_json *function, const char *where) {
    char inside[160];

    if (kt_json_type_of(function) != KT_JSON_OBJECT || !*kt_json_text(function, "name"))
        return refuse(c, where, "expected an object with a name");
    kt_json_begin_object(&c->w);
    for (size_t i = 0; i < kt_json_length(function); i++) {
        const char *key;
        size_t n;
        const kt_json *member = kt_json_member(function, i, &key, &n);
        kt_json_key_n(&c->w, key, n);
        snprintf(inside, sizeof inside, "%s.arguments", where);
        if (is_key(key, n, "arguments"))
            KT_TRY(put_arguments(c, member, inside));
        else
            kt_json_put_value(&c->w, member);
    }
    if (!kt_json_get(function, "arguments")) {
        kt_json_key(&c->w, "arguments");
        if (c->f->object_arguments) {
            kt_json_begin_object(&c->w);
            kt_json_end_object(&c->w);
        } else {
            kt_json_put_string(&c->w, "{}");
        }
    }
    kt_json_end_object(&c->w);
    return KT_OK;
}

static kt_status put_calls(context *c, const kt_json *calls, const char *where) {
    char inside[128];

    if (kt_json_type_of(calls) != KT_JSON_ARRAY) return refuse(c, where, "expected an array");
    kt_json_begin_array(&c->w);
    for (size_t i = 0; i < kt_json_length(calls); i++) {
        const kt_json *call = kt_json_at(calls, i);
        if (c->one_call && i != c->call) continue;
        snprintf(inside, sizeof inside, "%s[%zu].function", where, i);
        if (kt_json_type_of(kt_json_get(call, "function")) != KT_JSON_OBJECT)
            return refuse(c, inside, "is missing, expected an object with name and arguments");
        kt_json_begin_object(&c->w);
        for (size_t k = 0; k < kt_json_length(call); k++) {
            const char *key;
            size_t n;
            const kt_json *member = kt_json_member(call, k, &key, &n);
            kt_json_key_n(&c->w, key, n);
            if (is_key(key, n, "function"))
                KT_TRY(put_function(c, member, inside));
            else
                kt_json_put_value(&c->w, member);
        }
        kt_json_end_object(&c->w);
    }
    kt_json_end_array(&c->w);
    return KT_OK;
}

/* ---- messages ---- */

static const kt_json *reasoning_of(const context *c, const kt_json *message) {
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};

    for (int i = 0; i < (c->f->has_channels ? 3 : 2); i++) {
        const kt_json *one = kt_json_get(message, names[i]);
        if (kt_json_type_of(one) == KT_JSON_STRING) return one;
    }
    return NULL;
}

static kt_status put_members(context *c, const kt_json *message, const char *where) {
    bool has_calls = kt_json_length(kt_json_get(message, "tool_calls")) > 0;
    bool has_thinking = c->f->has_channels && reasoning_of(c, message);
    char inside[96];

    for (size_t i = 0; i < kt_json_length(message); i++) {
        const char *key;
        size_t n;
        const kt_json *member = kt_json_member(message, i, &key, &n);
        if (is_key(key, n, "role") || is_key(key, n, "content") || is_key(key, n, "reasoning") ||
            is_key(key, n, "reasoning_content") || (has_thinking && is_key(key, n, "thinking")))
            continue;
        if (is_key(key, n, "tool_calls") && !has_calls) continue; /* null or empty: none */
        kt_json_key_n(&c->w, key, n);
        snprintf(inside, sizeof inside, "%s.tool_calls", where);
        if (is_key(key, n, "tool_calls"))
            KT_TRY(put_calls(c, member, inside));
        else
            kt_json_put_value(&c->w, member);
    }
    return KT_OK;
}

/* The role as the template has it: what it would refuse, or leave out, the user says. */
static const char *known_role(const kt_chat_format *f, const char *role, size_t i) {
    const bool is_developer = strcmp(role, "developer") == 0;

    if (!is_developer && strcmp(role, "system") != 0) return role;
    if (i > 0 && !f->late_system) return "user";
    return is_developer && f->knows_developer ? role : "system";
}

static kt_status put_message(context *c, const kt_json *message, size_t i) {
    const kt_json *calls = kt_json_get(message, "tool_calls");
    const bool is_first = !c->one_call || c->call == 0 || kt_json_length(calls) == 0;
    const kt_json *reasoning = is_first ? reasoning_of(c, message) : NULL;
    const char *role = kt_json_text(message, "role");
    char where[48], inside[64];

    snprintf(where, sizeof where, "messages[%zu]", i);
    if (kt_json_type_of(message) != KT_JSON_OBJECT) return refuse(c, where, "expected an object");
    if (!*role) return refuse(c, where, "'role' is missing, expected a string");
    role = known_role(c->f, role, i);
    kt_json_begin_object(&c->w);
    kt_json_add_string(&c->w, "role", role);
    kt_json_key(&c->w, "content");
    snprintf(inside, sizeof inside, "%s.content", where);
    /* a template with channels writes one of both before a call */
    if (!is_first || (c->f->has_channels && reasoning && kt_json_length(calls) > 0))
        kt_json_put_string(&c->w, "");
    else
        KT_TRY(put_content(c, kt_json_get(message, "content"), kt_json_length(calls) > 0, inside));
    if (reasoning && c->f->has_channels) {
        kt_json_key(&c->w, "thinking");
        kt_json_put_value(&c->w, reasoning);
    }
    if (reasoning) {
        kt_json_key(&c->w, "reasoning_content");
        kt_json_put_value(&c->w, reasoning);
        kt_json_key(&c->w, "reasoning");
        kt_json_put_value(&c->w, reasoning);
    }
    KT_TRY(put_members(c, message, where));
    kt_json_end_object(&c->w);
    return KT_OK;
}

static const char *role_at(const kt_json *messages, size_t i) {
    return kt_json_text(kt_json_at(messages, i), "role");
}

/* Which call a result is of: its id's, or without ids the one in its place. n when there is none. */
static size_t call_of(const kt_json *calls, const kt_json *result, size_t place) {
    const char *of = kt_json_text(result, "tool_call_id");
    const size_t n = kt_json_length(calls);

    if (!*of) return place < n ? place : n;
    for (size_t k = 0; k < n; k++)
        if (strcmp(kt_json_text(kt_json_at(calls, k), "id"), of) == 0) return k;
    return n;
}

/* A template with channels knows one call a message: several become messages of their own, each
 * with its results behind it; results of no call come last. *i moves to the last result. */
static kt_status put_in_turn(context *c, const kt_json *messages, size_t *i) {
    const kt_json *message = kt_json_at(messages, *i), *calls = kt_json_get(message, "tool_calls");
    const size_t n = kt_json_length(calls), first = *i + 1;
    size_t end = first;
    kt_status st = KT_OK;

    while (end < kt_json_length(messages) && strcmp(role_at(messages, end), "tool") == 0) end++;
    c->one_call = true;
    for (size_t k = 0; st == KT_OK && k <= n; k++) {
        c->call = k;
        if (k < n) st = put_message(c, message, *i);
        for (size_t r = first; st == KT_OK && r < end; r++)
            if (call_of(calls, kt_json_at(messages, r), r - first) == k)
                st = put_message(c, kt_json_at(messages, r), r);
    }
    c->one_call = false;
    *i = end - 1;
    return st;
}

static kt_status put_messages(context *c) {
    const kt_json *messages = c->request->messages;

    if (kt_json_type_of(messages) != KT_JSON_ARRAY || kt_json_length(messages) == 0)
        return refuse(c, "messages", "expected an array of at least one message");
    kt_json_key(&c->w, "messages");
    kt_json_begin_array(&c->w);
    for (size_t i = 0; i < kt_json_length(messages); i++) {
        const kt_json *calls = kt_json_get(kt_json_at(messages, i), "tool_calls");
        if (c->f->has_channels && kt_json_length(calls) > 1)
            KT_TRY(put_in_turn(c, messages, &i));
        else
            KT_TRY(put_message(c, kt_json_at(messages, i), i));
    }
    kt_json_end_array(&c->w);
    return KT_OK;
}

/* ---- the other variables ---- */

static void put_member(context *c, const char *key, const kt_json *value) {
    if (!value || kt_json_type_of(value) == KT_JSON_NULL) return;
    kt_json_key(&c->w, key);
    kt_json_put_value(&c->w, value);
}

/* What the request itself sets; special tokens are only the program's. */
static bool is_reserved(const char *key, size_t n) {
    static const char *const names[] = {"messages", "tools", "documents", "response_format",
                                        "add_generation_prompt"};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_key(key, n, names[i])) return true;
    return n >= 6 && memcmp(key + n - 6, "_token", 6) == 0;
}

static kt_status put_kwargs(context *c) {
    const kt_json *kwargs = c->request->kwargs;

    if (!kwargs || kt_json_type_of(kwargs) == KT_JSON_NULL) return KT_OK;
    if (kt_json_type_of(kwargs) != KT_JSON_OBJECT)
        return refuse(c, "chat_template_kwargs", "expected an object");
    for (size_t i = 0; i < kt_json_length(kwargs); i++) {
        const char *key;
        size_t n;
        const kt_json *member = kt_json_member(kwargs, i, &key, &n);
        if (is_reserved(key, n))
            return kt_fail(c->err, KT_E_INVALID,
                           "chat_template_kwargs: '%.60s' is set by the request itself", key);
        kt_json_key_n(&c->w, key, n);
        kt_json_put_value(&c->w, member);
    }
    return KT_OK;
}

static void put_flag(context *c, const char *key, bool value) {
    if (!kt_json_get(c->request->kwargs, key)) kt_json_add_bool(&c->w, key, value);
}

/* gpt-oss knows three efforts, and none of them is off. */
static const char *channel_effort(const char *effort) {
    static const char *const names[][2] = {
        {"none", "low"}, {"minimal", "low"}, {"xhigh", "high"}, {"max", "high"}};

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(effort, names[i][0]) == 0) return names[i][1];
    return effort;
}

static void put_thinking(context *c) {
    const char *effort = c->request->reasoning_effort;
    int thinking = c->request->enable_thinking;
    const kt_json *given = kt_json_get(c->request->kwargs, "enable_thinking");

    if (thinking == 0 && effort && strcmp(effort, "none") == 0) thinking = -1;
    if (kt_json_type_of(given) == KT_JSON_BOOL) thinking = kt_json_bool(given, false) ? 1 : -1;
    if (thinking) put_flag(c, "enable_thinking", thinking > 0);
    if (thinking) put_flag(c, "thinking", thinking > 0);
    if (effort && c->f->has_channels) effort = channel_effort(effort);
    if (!effort && c->f->has_channels && thinking < 0) effort = "low";
    if (effort && !kt_json_get(c->request->kwargs, "reasoning_effort"))
        kt_json_add_string(&c->w, "reasoning_effort", effort);
}

static kt_status put_all(context *c) {
    const kt_chat_request *r = c->request;
    const kt_json *tokens = kt_json_root(c->f->tokens);

    if (r->tools && kt_json_type_of(r->tools) != KT_JSON_ARRAY &&
        kt_json_type_of(r->tools) != KT_JSON_NULL)
        return refuse(c, "tools", "expected an array");
    kt_json_begin_object(&c->w);
    KT_TRY(put_messages(c));
    if (kt_json_length(r->tools)) put_member(c, "tools", r->tools);
    put_member(c, "documents", r->documents);
    put_member(c, "response_format", r->response_format);
    kt_json_add_bool(&c->w, "add_generation_prompt",
                     !r->no_generation_prompt && !r->continue_final_message);
    for (size_t i = 0; i < kt_json_length(tokens); i++) {
        const char *key;
        size_t n;
        const kt_json *value = kt_json_member(tokens, i, &key, &n);
        kt_json_key_n(&c->w, key, n);
        kt_json_put_value(&c->w, value);
    }
    KT_TRY(put_kwargs(c));
    put_thinking(c);
    kt_json_end_object(&c->w);
    return KT_OK;
}

kt_status kt_chat_context(const kt_chat_format *f, const kt_chat_request *request,
                          kt_json_doc **out, kt_err *err) {
    context c = {.f = f, .request = request, .err = err};
    const char *text;
    size_t size;
    kt_status st = put_all(&c);

    *out = NULL;
    text = kt_json_writer_text(&c.w, &size);
    if (st == KT_OK)
        st = text ? kt_json_parse(text, size, NULL, out, err)
                  : kt_fail(err, KT_E_NOMEM, "messages: no memory for the template's variables");
    kt_json_writer_deinit(&c.w);
    return st;
}
