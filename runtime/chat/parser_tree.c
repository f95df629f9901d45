/* Arguments written as elements inside of elements (MiniMax-M3): each tag stands behind a mark, so
 * that values may hold any text. Strings are streamed, other leaves collected and written as what
 * their schema says; an element with elements is an object, or an array of those called "item".
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "runtime/chat/parser_impl.h"

static bool is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static void say(kt_parser *p, const char *text) {
    kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, text, strlen(text));
}

static kt_parser_element *top(kt_parser *p) {
    return p->depth ? &p->tree[p->depth - 1] : NULL;
}

static bool is_blank(const kt_parser *p) {
    for (size_t i = 0; i < p->value.size; i++)
        if (!is_space(p->value.at[i])) return false;
    return true;
}

/* ---- what is in an element ---- */

static void take_text(kt_parser *p, const char *bytes, size_t n) {
    kt_parser_element *e = top(p);

    switch (e ? e->kind : KT_ELEMENT_OBJECT) {
    case KT_ELEMENT_STRING: kt_parser_put_escaped(p, bytes, n); return;
    case KT_ELEMENT_LEAF:
        if (kt_parser_keep(p, &p->value, bytes, n, KT_PARSER_HELD) || p->no_memory) return;
        say(p, "\""); /* too long for anything but a string */
        e->kind = KT_ELEMENT_STRING;
        kt_parser_put_escaped(p, p->value.at, p->value.size);
        kt_parser_put_escaped(p, bytes, n);
        p->value.size = 0;
        return;
    case KT_ELEMENT_ASIDE: kt_parser_put_aside(p, bytes, n); return;
    case KT_ELEMENT_OBJECT:
    case KT_ELEMENT_ARRAY:
        for (size_t i = 0; i < n && p->begun; i++)
            if (p->aside.size || !is_space(bytes[i])) kt_parser_put_aside(p, bytes + i, 1);
    }
}

size_t kt_parser_run_tree(kt_parser *p, const char *bytes, size_t n) {
    if (!p->begun) {
        if (is_space(*bytes) && kt_parser_keep(p, &p->held, bytes, 1, KT_PARSER_HELD)) return 1;
        kt_parser_spoil(p);
        return 0;
    }
    if (!top(p) || top(p)->kind != KT_ELEMENT_STRING) n = 1; /* the state may change */
    take_text(p, bytes, n);
    return n;
}

/* ---- tags ---- */

void kt_parser_tag_begin(kt_parser *p) {
    if (!p->begun) {
        kt_parser_begin_call(p);
        p->depth = 0;
        p->n_root = 0;
    }
    p->n_key = 0;
    p->state = KT_AT_TAG;
}

/* Text of the element, or behind a call that too much text has ended. */
static void put_rest(kt_parser *p, const char *bytes, size_t n) {
    if (p->begun)
        take_text(p, bytes, n);
    else
        kt_parser_prose(p, bytes, n);
}

/* What looked like a tag is text of the element. */
static void tag_is_text(kt_parser *p, bool whole) {
    p->state = KT_AT_TREE;
    take_text(p, p->mark[KT_MARK_PARAM_BEGIN].text, p->mark[KT_MARK_PARAM_BEGIN].size);
    put_rest(p, p->key, p->n_key);
    if (whole) put_rest(p, ">", 1);
}

static const kt_json *child_schema(const kt_parser *p, const kt_parser_element *e) {
    const kt_json *found;

    if (!e) return kt_json_get_n(p->properties, p->key, p->n_key);
    if (e->kind == KT_ELEMENT_ARRAY) return kt_json_get(e->schema, "items");
    found = kt_json_get_n(kt_json_get(e->schema, "properties"), p->key, p->n_key);
    return found ? found : kt_json_get(e->schema, "additionalProperties");
}

/* An element whose first child comes is a container. */
static void become_container(kt_parser *p, kt_parser_element *e) {
    const kt_value_types types = kt_schema_types(e->schema);
    const bool is_item = p->n_key == 4 && memcmp(p->key, "item", 4) == 0;
    const bool is_array =
        types == 1u << KT_JSON_ARRAY || (is_item && !(types & 1u << KT_JSON_OBJECT));

    e->kind = is_array ? KT_ELEMENT_ARRAY : KT_ELEMENT_OBJECT;
    e->first_key = p->n_keys;
    p->value.size = 0;
    say(p, is_array ? "[" : "{");
}

/* FNV-1a, as for parameters: an object has each key once. */
static bool is_new_key(kt_parser *p, int first) {
    uint64_t h = 0xcbf29ce484222325u;

    for (size_t i = 0; i < p->n_key; i++) h = (h ^ (unsigned char)p->key[i]) * 0x100000001b3u;
    for (int i = first; i < p->n_keys; i++)
        if (p->keys[i] == h) return false;
    if (p->n_keys == KT_CALL_PARAMS) return false;
    p->keys[p->n_keys++] = h;
    return true;
}

static void open_element(kt_parser *p) {
    kt_parser_element *parent = top(p), *e = &p->tree[p->depth];
    const bool in_array = parent && parent->kind == KT_ELEMENT_ARRAY;
    int *n_children = parent ? &parent->n_children : &p->n_root;

    e->schema = child_schema(p, parent);
    e->n_children = 0;
    e->n_name = p->n_key;
    memcpy(e->name, p->key, p->n_key);
    p->depth++;
    p->value.size = 0;
    if (!in_array && !is_new_key(p, parent ? parent->first_key : 0)) {
        p->depth--;
        tag_is_text(p, true);
        e->kind = KT_ELEMENT_ASIDE;
        p->depth += p->begun;
        return;
    }
    if (!parent && !*n_children) say(p, "{");
    if ((*n_children)++) say(p, ", ");
    if (!in_array) {
        say(p, "\"");
        kt_parser_put_escaped(p, p->key, p->n_key);
        say(p, "\": ");
    }
    e->kind = KT_ELEMENT_LEAF;
    if (kt_schema_types(e->schema) != 1u << KT_JSON_STRING) return;
    e->kind = KT_ELEMENT_STRING;
    say(p, "\"");
}

static void close_leaf(kt_parser *p, const kt_parser_element *e) {
    const kt_value_types types = kt_schema_types(e->schema);
    size_t size;
    char *text;

    if (is_blank(p) && types == 1u << KT_JSON_OBJECT) {
        say(p, "{}");
    } else if (is_blank(p) && types == 1u << KT_JSON_ARRAY) {
        say(p, "[]");
    } else {
        text =
            kt_value_to_json(p->value.size ? p->value.at : "", p->value.size, types, false, &size);
        if (text)
            kt_parser_text(p, KT_EVENT_TOOL_ARGUMENTS, text, size);
        else
            p->no_memory = true;
        free(text);
    }
    p->value.size = 0;
}

static void close_element(kt_parser *p) {
    const kt_parser_element *e = top(p);

    switch (e->kind) {
    case KT_ELEMENT_STRING: say(p, "\""); break;
    case KT_ELEMENT_LEAF: close_leaf(p, e); break;
    case KT_ELEMENT_OBJECT: say(p, "}"); break;
    case KT_ELEMENT_ARRAY: say(p, "]"); break;
    case KT_ELEMENT_ASIDE: break;
    }
    if (e->kind == KT_ELEMENT_OBJECT) p->n_keys = e->first_key;
    p->depth--;
}

void kt_parser_tree_end(kt_parser *p) {
    while (p->depth) close_element(p);
    say(p, p->n_root ? "}" : "{}");
}

static bool is_tag(const kt_parser *p, const char *text) {
    return p->n_key == strlen(text) && memcmp(p->key, text, p->n_key) == 0;
}

static bool closes(const kt_parser *p, const kt_parser_element *e) {
    return e && p->n_key == e->n_name + 1 && p->key[0] == '/' &&
           memcmp(p->key + 1, e->name, e->n_name) == 0;
}

static void on_tag(kt_parser *p) {
    kt_parser_element *e = top(p);

    p->state = KT_AT_TREE;
    if (closes(p, e)) {
        const bool is_aside = e->kind == KT_ELEMENT_ASIDE;
        if (is_aside) tag_is_text(p, true);
        if (p->begun) close_element(p);
        return;
    }
    if (is_tag(p, "/invoke")) {
        kt_parser_end_call(p, p->depth > 0);
        return;
    }
    if (is_tag(p, "/tool_call")) {
        kt_parser_end_section(p);
        return;
    }
    if (e && e->kind == KT_ELEMENT_LEAF && is_blank(p) && p->key[0] != '/' &&
        p->depth < KT_TREE_DEPTH)
        become_container(p, e);
    if (p->n_key && p->key[0] != '/' && p->depth < KT_TREE_DEPTH &&
        (!e || e->kind == KT_ELEMENT_OBJECT || e->kind == KT_ELEMENT_ARRAY))
        open_element(p);
    else
        tag_is_text(p, true);
}

size_t kt_parser_run_tag(kt_parser *p, const char *bytes, size_t n) {
    (void)n;
    if (*bytes == '>') {
        on_tag(p);
        return 1;
    }
    if (*bytes == '\n' || *bytes == '<' || p->n_key == KT_CALL_NAME_BYTES) {
        tag_is_text(p, false);
        return 0;
    }
    p->key[p->n_key++] = *bytes;
    return 1;
}
