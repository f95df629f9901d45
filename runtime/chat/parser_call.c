/* One call: its name, its id, and arguments that are one JSON object.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"
#include "runtime/chat/parser_impl.h"

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* After call_begin, which is held. */
void kt_parser_start_call(kt_parser *p) {
    p->n_name = 0;
    p->value.size = 0;
    p->has_arguments = false;
    memset(&p->json, 0, sizeof p->json);
    p->place = KT_OBJECT_OPEN;
    p->n_keys = 0;
    p->state = KT_AT_NAME;
    if (p->calls->body == KT_CALL_OBJECT) p->state = KT_AT_OBJECT;
    if (p->mark[KT_MARK_PREFIX_END].size) p->state = KT_AT_PREFIX;
}

/* Names are letters, digits and the signs that tools are named with; anything else is prose that
 * only mentions a mark. */
static bool name_byte_ok(const kt_parser *p, unsigned char c) {
    if (c >= 0x80 || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z')) return true;
    if (c && strchr("_-.:/$@", c)) return true;
    return p->calls->quoted && (c == '"' || c == '\'');
}

bool kt_parser_name_ok(const char *name, size_t n) {
    return n > 0 && n <= KT_CALL_NAME_BYTES && !memchr(name, 0, n);
}

size_t kt_parser_run_name(kt_parser *p, const char *bytes, size_t n) {
    const char c = *bytes;

    (void)n;
    if (!is_space(c)) {
        bool after_space = p->n_name && is_space(p->name[p->n_name - 1]);
        if (after_space || p->n_name == KT_CALL_NAME_BYTES || !name_byte_ok(p, (unsigned char)c)) {
            kt_parser_spoil(p);
            return 0;
        }
    }
    if (!kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD)) {
        kt_parser_spoil(p);
        return 0;
    }
    if (is_space(c) && p->n_name == 0) return 1;
    if (c == '\n' && !p->mark[KT_MARK_NAME_END].size && p->state == KT_AT_NAME) {
        kt_parser_name_done(p);
        return 1;
    }
    if (!is_space(c))
        p->name[p->n_name++] = c;
    else if (p->n_name < KT_CALL_NAME_BYTES && !is_space(p->name[p->n_name - 1]))
        p->name[p->n_name++] = ' ';
    return 1;
}

/* functions.NAME:N is the id; the name is what stands in the middle. */
static void split_kimi(kt_parser *p) {
    static const char prefix[] = "functions.";
    size_t from = 0, to = p->n_name, digits = p->n_name;

    while (digits && p->name[digits - 1] >= '0' && p->name[digits - 1] <= '9') digits--;
    if (digits > 0 && digits < p->n_name && p->name[digits - 1] == ':') to = digits - 1;
    if (to > sizeof prefix - 1 && memcmp(p->name, prefix, sizeof prefix - 1) == 0)
        from = sizeof prefix - 1;
    p->id[0] = 0;
    if (from && to < p->n_name) {
        memcpy(p->id, p->name, p->n_name);
        p->id[p->n_name] = 0;
    }
    p->n_name = to - from;
    memmove(p->name, p->name + from, p->n_name);
    p->name[p->n_name] = 0;
    if (!p->id[0])
        snprintf(p->id, sizeof p->id, "functions.%s:%d", p->name, p->first_call + p->n_calls);
}

void kt_parser_name_done(kt_parser *p) {
    while (p->n_name && is_space(p->name[p->n_name - 1])) p->n_name--;
    if (p->calls->quoted && p->n_name >= 2 && (p->name[0] == '"' || p->name[0] == '\'') &&
        p->name[p->n_name - 1] == p->name[0]) {
        p->n_name -= 2;
        memmove(p->name, p->name + 1, p->n_name);
    }
    p->name[p->n_name] = 0;
    if (p->n_name && p->calls->ids == KT_CALL_ID_KIMI) split_kimi(p);
    if (!kt_parser_name_ok(p->name, p->n_name)) {
        kt_parser_spoil(p);
        return;
    }
    p->state = p->calls->body != KT_CALL_PARAMETERS ? KT_AT_BODY
               : p->calls->tree                     ? KT_AT_TREE
                                                    : KT_AT_PARAMS;
}

static void make_id(kt_parser *p) {
    static const char letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    char *to = p->id + 5;

    if (p->calls->ids == KT_CALL_ID_KIMI) return;
    memcpy(p->id, "call_", 5);
    for (int i = 0; i < 24; i++) *to++ = letters[kt_rng_below(&p->rng, sizeof letters - 1)];
    *to = 0;
}

/* Whole characters only: a name may come from bytes that are none. */
static void clean_name(kt_parser *p) {
    for (size_t i = 0; i < p->n_name; i++) {
        const unsigned char *at = (const unsigned char *)p->name + i;
        int length = kt_utf8_length(at, (const unsigned char *)p->name + p->n_name);
        if (length)
            i += (size_t)length - 1;
        else
            p->name[i] = '?';
    }
}

/* From here on it is a call, whatever comes. */
void kt_parser_begin_call(kt_parser *p) {
    kt_parser_flush(p, true);
    p->name[p->n_name] = 0;
    clean_name(p);
    make_id(p);
    p->properties = kt_tool_properties(kt_tool_find(p->tools, p->name, p->n_name));
    p->n_calls++;
    p->begun = true;
    p->held.size = 0;
    p->aside.size = 0;
    p->n_keys = 0;
    p->n_space = 0;
    kt_parser_call_event(p, KT_EVENT_TOOL_BEGIN, false);
}

void kt_parser_end_call(kt_parser *p, bool is_cut) {
    char tail[KT_JSON_STREAM_TAIL];

    if (p->calls->tree) {
        kt_parser_tree_end(p);
    } else if (p->calls->body == KT_CALL_PARAMETERS) {
        kt_parser_params_end(p);
    } else if (!p->has_arguments) {
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, "{}", 2);
    } else {
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, tail, kt_json_stream_complete(&p->json, tail));
    }
    kt_parser_call_event(p, KT_EVENT_TOOL_END, is_cut);
    p->begun = false;
    p->n_whole += !is_cut;
    p->state = KT_AT_SECTION;
    p->n_space = 0;
    p->skip_newlines = false;
    if (p->aside.size) kt_parser_prose(p, p->aside.at, p->aside.size);
    p->aside.size = 0;
}

size_t kt_parser_run_body(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (is_space(*bytes) && kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD)) return 1;
    if (*bytes == '"') {
        memset(&p->other, 0, sizeof p->other);
        p->value.size = 0;
        p->place = KT_OBJECT_STRING;
        p->state = KT_AT_OBJECT;
        return 0;
    }
    if (*bytes != '{') {
        kt_parser_spoil(p);
        return 0;
    }
    kt_parser_begin_call(p);
    p->has_arguments = true;
    p->state = KT_AT_ARGUMENTS;
    return 0;
}

size_t kt_parser_run_arguments(kt_parser *p, const char *bytes, size_t n) {
    char out[KT_JSON_STREAM_OUT];

    for (size_t i = 0; i < n;) {
        size_t plain = kt_json_stream_plain(&p->json, bytes + i, n - i), size;
        kt_json_step step;
        if (plain) {
            kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, bytes + i, plain);
            i += plain;
            continue;
        }
        step = kt_json_stream_push(&p->json, (unsigned char)bytes[i], out, &size);
        if (step == KT_JSON_BAD || step == KT_JSON_PAST) {
            kt_parser_spoil(p);
            return i;
        }
        kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, out, size);
        i++;
        if (step == KT_JSON_WHOLE) {
            kt_parser_end_call(p, false);
            p->state = KT_AT_END;
            return i;
        }
    }
    return n;
}
