/* Which grammars a model's output is read with. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE /* memmem */
#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "runtime/chat/calls.h"
#include "runtime/chat/parser.h"
#include "runtime/chat/reasoning.h"

/* Names are compared without case, "-" equals "_". */
static bool same_name(const char *a, const char *b) {
    for (;; a++, b++) {
        char x = *a >= 'A' && *a <= 'Z' ? (char)(*a | 32) : *a == '-' ? '_' : *a;
        char y = *b >= 'A' && *b <= 'Z' ? (char)(*b | 32) : *b == '-' ? '_' : *b;
        if (x != y) return false;
        if (!x) return true;
    }
}

static bool is_among(const char *name, const char *const *list) {
    for (; name && list && *list; list++)
        if (same_name(name, *list)) return true;
    return false;
}

static bool contains(const char *text, size_t n, const char *word) {
    return text && memmem(text, n, word, strlen(word)) != NULL;
}

/* How many pieces of evidence the template holds; 0 when one is missing or one speaks against it.
 * */
static int weigh(const kt_calls *c, const char *text, size_t n) {
    int found = 0;

    for (const char *const *w = c->evidence; w && *w; w++, found++)
        if (!contains(text, n, *w)) return 0;
    for (const char *const *w = c->counter; w && *w; w++)
        if (contains(text, n, *w)) return 0;
    return found;
}

static const kt_calls *calls_by_evidence(const kt_parser_evidence *e) {
    const kt_calls *best = NULL;
    int most = 0;

    for (size_t i = 0; i < kt_builtin_calls_count; i++) {
        const kt_calls *c = kt_builtin_calls[i];
        int found = weigh(c, e->template_text, e->template_size);
        if (found > most) best = c, most = found;
        if (!e->template_text && is_among(e->family, c->families)) return c;
    }
    return best;
}

static const kt_reasoning *reasoning_by_evidence(const kt_parser_evidence *e) {
    for (size_t i = 0; i < kt_reasoning_count; i++) {
        const kt_reasoning *r = &kt_reasonings[i];
        if (r->evidence && contains(e->template_text, e->template_size, r->evidence)) return r;
        if (!e->template_text && is_among(e->family, r->families)) return r;
    }
    return NULL;
}

static bool is_chosen(const char *name) {
    return name && !same_name(name, "auto");
}

static kt_status calls_by_name(const char *name, const kt_calls **out, kt_err *err) {
    char names[512] = "";
    size_t n = 0;

    *out = NULL;
    if (same_name(name, "none")) return KT_OK;
    for (size_t i = 0; i < kt_builtin_calls_count; i++) {
        const kt_calls *c = kt_builtin_calls[i];
        if (same_name(name, c->name) || is_among(name, c->aliases)) {
            *out = c;
            return KT_OK;
        }
        if (n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", c->name);
    }
    return kt_fail(err, KT_E_INVALID,
                   "tool parser '%s' is unknown, expected auto, none or one of %s", name, names);
}

static kt_status reasoning_by_name(const char *name, const kt_reasoning **out, kt_err *err) {
    char names[256] = "";
    size_t n = 0;

    *out = NULL;
    if (same_name(name, "none")) return KT_OK;
    for (size_t i = 0; i < kt_reasoning_count; i++) {
        const kt_reasoning *r = &kt_reasonings[i];
        if (same_name(name, r->name) || is_among(name, r->aliases)) {
            *out = r;
            return KT_OK;
        }
        if (n < sizeof names)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", r->name);
    }
    return kt_fail(err, KT_E_INVALID,
                   "reasoning parser '%s' is unknown, expected auto, none or one of %s", name,
                   names);
}

kt_status kt_parser_choose(const kt_parser_evidence *e, kt_parser_choice *out, kt_err *err) {
    kt_parser_choice c = {NULL, NULL};

    *out = c;
    if (is_chosen(e->tool_parser))
        KT_TRY(calls_by_name(e->tool_parser, &c.calls, err));
    else
        c.calls = calls_by_evidence(e);
    if (is_chosen(e->reasoning_parser))
        KT_TRY(reasoning_by_name(e->reasoning_parser, &c.reasoning, err));
    else
        c.reasoning = reasoning_by_evidence(e);
    *out = c;
    return KT_OK;
}

const char *kt_parser_calls_name(const kt_parser_choice *choice) {
    return choice->calls ? choice->calls->name : "none";
}

const char *kt_parser_reasoning_name(const kt_parser_choice *choice) {
    return choice->reasoning ? choice->reasoning->name : "none";
}

bool kt_parser_starts_inside(const kt_parser_choice *choice, const char *prompt, size_t size) {
    const char *begin = choice->reasoning ? choice->reasoning->begin : NULL;
    size_t n = begin ? strlen(begin) : 0;

    while (size && strchr(" \n\t\r", prompt[size - 1]) && prompt[size - 1]) size--;
    return n && size >= n && memcmp(prompt + size - n, begin, n) == 0;
}
