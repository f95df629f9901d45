/* Values as text: Python's str and repr, and its json.dumps. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "runtime/chat/jinja_node.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

static kt_status put_text(kt_jinja_run *r, kt_jinja_builder *b, const char *s) {
    return kt_jinja_put(r, b, s, strlen(s), true);
}

static kt_status put_double(kt_jinja_run *r, kt_jinja_builder *b, double v, bool is_json) {
    kt_json_writer w = {0};
    const char *text;
    size_t n;
    kt_status st;

    if (isnan(v)) return put_text(r, b, is_json ? "NaN" : "nan");
    if (isinf(v) && is_json) return put_text(r, b, v > 0 ? "Infinity" : "-Infinity");
    if (isinf(v)) return put_text(r, b, v > 0 ? "inf" : "-inf");
    kt_json_put_double(&w, v);
    text = kt_json_writer_text(&w, &n);
    st = text ? kt_jinja_put(r, b, text, n, true)
              : kt_jinja_fail(r, KT_E_NOMEM, "no memory for the rendering");
    kt_json_writer_deinit(&w);
    return st;
}

static kt_status put_int(kt_jinja_run *r, kt_jinja_builder *b, int64_t v) {
    char text[32];

    snprintf(text, sizeof text, "%lld", (long long)v);
    return put_text(r, b, text);
}

/* ---- repr ---- */

/* The escape of a character in repr, or "" where it stands for itself. */
static void escape_of(uint32_t c, char quote, char out[16]) {
    out[0] = '\0';
    if (c == (unsigned char)quote || c == '\\')
        snprintf(out, 16, "\\%c", (char)c);
    else if (c == '\n' || c == '\r' || c == '\t')
        snprintf(out, 16, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    else if (c < 0x20 || c == 0x7f || (c >= 0x80 && c < 0x100 && !kt_unicode_is_printable(c)))
        snprintf(out, 16, "\\x%02x", c);
    else if (c >= 0x100 && !kt_unicode_is_printable(c))
        snprintf(out, 16, c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
}

static kt_status repr_string(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s) {
    bool single = memchr(s->data, '\'', s->size) != NULL;
    char quote = single && !memchr(s->data, '"', s->size) ? '"' : '\'', escape[16];
    size_t plain = 0, n;

    if (s->is_markup) KT_TRY(put_text(r, b, "Markup("));
    KT_TRY(kt_jinja_put(r, b, &quote, 1, true));
    for (size_t i = 0; i < s->size; i += n) {
        uint32_t c = 0;
        int got = kt_utf8_next(s->data + i, s->size - i, &c);
        n = got > 0 ? (size_t)got : 1;
        if (c >= 0x20 && c < 0x7f && c != '\'' && c != '"' && c != '\\') continue;
        escape_of(c, quote, escape);
        if (!escape[0]) continue;
        KT_TRY(kt_jinja_put_part(r, b, s, plain, i));
        KT_TRY(kt_jinja_put(r, b, escape, strlen(escape), kt_jinja_trusted_at(s, i)));
        plain = i + n;
    }
    KT_TRY(kt_jinja_put_part(r, b, s, plain, s->size));
    KT_TRY(kt_jinja_put(r, b, &quote, 1, true));
    return s->is_markup ? put_text(r, b, ")") : KT_OK;
}

static kt_status repr_list(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_list *l) {
    static const char *const open[] = {
        "[", "(", "range(0, ", "dict_keys([", "dict_values([", "dict_items(["};
    static const char *const close[] = {"]", ")", ")", "])", "])", "])"};

    if (l->flavour == KT_JINJA_GENERATOR) return put_text(r, b, "<generator object>");
    if (l->flavour == KT_JINJA_RANGE) {
        int64_t from = l->size ? l->items[0].as.integer : 0;
        int64_t step = l->size > 1 ? l->items[1].as.integer - from : 1;
        KT_TRY(put_text(r, b, "range("));
        KT_TRY(put_int(r, b, from));
        KT_TRY(put_text(r, b, ", "));
        KT_TRY(put_int(r, b, from + step * (int64_t)l->size));
        if (step != 1) KT_TRY(put_text(r, b, ", "));
        if (step != 1) KT_TRY(put_int(r, b, step));
        return put_text(r, b, ")");
    }
    KT_TRY(put_text(r, b, open[l->flavour]));
    for (size_t i = 0; i < l->size; i++) {
        if (i) KT_TRY(put_text(r, b, ", "));
        KT_TRY(kt_jinja_put_repr(r, b, &l->items[i]));
    }
    if (l->flavour == KT_JINJA_TUPLE && l->size == 1) KT_TRY(put_text(r, b, ","));
    return put_text(r, b, close[l->flavour]);
}

static kt_status repr_dict(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_dict *d) {
    KT_TRY(put_text(r, b, "{"));
    for (size_t i = 0; i < d->size; i++) {
        if (i) KT_TRY(put_text(r, b, ", "));
        KT_TRY(kt_jinja_put_repr(r, b, &d->entries[i].key));
        KT_TRY(put_text(r, b, ": "));
        KT_TRY(kt_jinja_put_repr(r, b, &d->entries[i].value));
    }
    return put_text(r, b, "}");
}

static kt_status repr_object(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_value *v) {
    switch (v->type) {
    case KT_JINJA_NAMESPACE:
        KT_TRY(put_text(r, b, "<Namespace "));
        KT_TRY(repr_dict(r, b, v->as.dict));
        return put_text(r, b, ">");
    case KT_JINJA_MACRO:
        KT_TRY(put_text(r, b, "<Macro "));
        KT_TRY(repr_string(r, b, &v->as.macro->node->name));
        return put_text(r, b, ">");
    case KT_JINJA_LOOP:
        KT_TRY(put_text(r, b, "<LoopContext "));
        KT_TRY(put_int(r, b, (int64_t)v->as.loop->index + 1));
        KT_TRY(put_text(r, b, "/"));
        KT_TRY(put_int(r, b, (int64_t)v->as.loop->size));
        return put_text(r, b, ">");
    case KT_JINJA_BUILTIN:
        KT_TRY(put_text(r, b, v->as.bound->of ? "<built-in method " : "<function "));
        KT_TRY(put_text(r, b, v->as.bound->builtin->name));
        return put_text(r, b, ">");
    default:
        KT_TRY(put_text(r, b, "<"));
        KT_TRY(put_text(r, b, kt_jinja_type_name(v)));
        return put_text(r, b, ">");
    }
}

kt_status kt_jinja_put_repr(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_value *v) {
    kt_status st;

    KT_TRY(kt_jinja_spend(r, 1));
    switch (v->type) {
    case KT_JINJA_UNSET:
    case KT_JINJA_UNDEFINED: return put_text(r, b, "Undefined");
    case KT_JINJA_NONE: return put_text(r, b, "None");
    case KT_JINJA_BOOL: return put_text(r, b, v->as.truth ? "True" : "False");
    case KT_JINJA_INT: return put_int(r, b, v->as.integer);
    case KT_JINJA_BIG: return kt_jinja_put_string(r, b, v->as.string);
    case KT_JINJA_FLOAT: return put_double(r, b, v->as.real, false);
    case KT_JINJA_STRING: return repr_string(r, b, v->as.string);
    default: break;
    }
    KT_TRY(kt_jinja_enter(r));
    st = v->type == KT_JINJA_LIST   ? repr_list(r, b, v->as.list)
         : v->type == KT_JINJA_DICT ? repr_dict(r, b, v->as.dict)
                                    : repr_object(r, b, v);
    r->depth--;
    return st;
}

kt_status kt_jinja_put_str(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_value *v) {
    if (v->type == KT_JINJA_STRING) return kt_jinja_put_string(r, b, v->as.string);
    if (v->type == KT_JINJA_UNDEFINED || v->type == KT_JINJA_UNSET) return KT_OK;
    return kt_jinja_put_repr(r, b, v);
}

kt_status kt_jinja_to_str(kt_jinja_run *r, const kt_jinja_value *v, const kt_jinja_string **out) {
    kt_jinja_builder b = {0};
    kt_jinja_value text = {0};
    kt_status st;

    if (v->type == KT_JINJA_STRING) {
        *out = v->as.string;
        return KT_OK;
    }
    st = kt_jinja_put_str(r, &b, v);
    if (st == KT_OK) st = kt_jinja_build(r, &b, false, &text);
    if (st == KT_OK) *out = text.as.string;
    kt_jinja_builder_deinit(&b);
    return st;
}

/* ---- JSON ---- */

static kt_status json_escape(kt_jinja_run *r, kt_jinja_builder *b, uint32_t c, bool trusted) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *found = c && c < 0x80 ? strchr(from, (int)c) : NULL;
    char text[16];

    if (found)
        snprintf(text, sizeof text, "\\%c", to[found - from]);
    else if (c < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", c);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd7c0 + (c >> 10), 0xdc00 + (c & 0x3ff));
    return kt_jinja_put(r, b, text, strlen(text), trusted);
}

static kt_status json_string(kt_jinja_run *r, kt_jinja_builder *b, bool ensure_ascii,
                             const kt_jinja_string *s) {
    size_t plain = 0, n;

    KT_TRY(put_text(r, b, "\""));
    for (size_t i = 0; i < s->size; i += n) {
        unsigned char byte = (unsigned char)s->data[i];
        uint32_t c = byte;
        int got;
        n = 1;
        if (byte >= 0x20 && byte != '"' && byte != '\\' && (byte < 0x7f || !ensure_ascii)) continue;
        if (byte >= 0x80) {
            got = kt_utf8_next(s->data + i, s->size - i, &c);
            n = got > 0 ? (size_t)got : 1;
        }
        KT_TRY(kt_jinja_put_part(r, b, s, plain, i));
        KT_TRY(json_escape(r, b, c, kt_jinja_trusted_at(s, i)));
        plain = i + n;
    }
    KT_TRY(kt_jinja_put_part(r, b, s, plain, s->size));
    return put_text(r, b, "\"");
}

typedef struct json_writer {
    kt_jinja_run *r;
    kt_jinja_builder *b;
    const kt_jinja_json_form *form;
    int level;
} json_writer;

static kt_status json_value(json_writer *w, const kt_jinja_value *v);

static kt_status json_line(json_writer *w) {
    if (!w->form->indent) return KT_OK;
    KT_TRY(put_text(w->r, w->b, "\n"));
    for (int i = 0; i < w->level; i++) KT_TRY(kt_jinja_put_string(w->r, w->b, w->form->indent));
    return KT_OK;
}

static kt_status json_list(json_writer *w, const kt_jinja_list *l) {
    if (l->size == 0) return put_text(w->r, w->b, "[]");
    KT_TRY(put_text(w->r, w->b, "["));
    w->level++;
    for (size_t i = 0; i < l->size; i++) {
        if (i) KT_TRY(kt_jinja_put_string(w->r, w->b, w->form->item));
        KT_TRY(json_line(w));
        KT_TRY(json_value(w, &l->items[i]));
    }
    w->level--;
    KT_TRY(json_line(w));
    return put_text(w->r, w->b, "]");
}

static kt_status json_key(json_writer *w, const kt_jinja_value *key) {
    switch (key->type) {
    case KT_JINJA_STRING: return json_string(w->r, w->b, w->form->ensure_ascii, key->as.string);
    case KT_JINJA_NONE:
    case KT_JINJA_BOOL:
    case KT_JINJA_INT:
    case KT_JINJA_BIG:
    case KT_JINJA_FLOAT:
        KT_TRY(put_text(w->r, w->b, "\""));
        KT_TRY(json_value(w, key));
        return put_text(w->r, w->b, "\"");
    default:
        return kt_jinja_fail(w->r, KT_E_INVALID,
                             "keys must be str, int, float, bool or None, not %s",
                             kt_jinja_type_name(key));
    }
}

static kt_status json_sorted(json_writer *w, const kt_jinja_dict *d, kt_jinja_value **out) {
    kt_jinja_value *keys;
    void *memory;

    KT_TRY(kt_jinja_alloc(w->r, 2 * d->size, sizeof *keys, &memory));
    keys = memory;
    for (size_t i = 0; i < d->size; i++) {
        keys[i] = d->entries[i].key;
        keys[d->size + i] = d->entries[i].value;
    }
    KT_TRY(kt_jinja_sort(w->r, keys, keys + d->size, d->size, false));
    *out = keys;
    return KT_OK;
}

static kt_status json_dict(json_writer *w, const kt_jinja_dict *d) {
    kt_jinja_value *sorted = NULL;

    if (d->size == 0) return put_text(w->r, w->b, "{}");
    if (w->form->sort_keys) KT_TRY(json_sorted(w, d, &sorted));
    KT_TRY(put_text(w->r, w->b, "{"));
    w->level++;
    for (size_t i = 0; i < d->size; i++) {
        if (i) KT_TRY(kt_jinja_put_string(w->r, w->b, w->form->item));
        KT_TRY(json_line(w));
        KT_TRY(json_key(w, sorted ? &sorted[i] : &d->entries[i].key));
        KT_TRY(kt_jinja_put_string(w->r, w->b, w->form->key));
        KT_TRY(json_value(w, sorted ? &sorted[d->size + i] : &d->entries[i].value));
    }
    w->level--;
    KT_TRY(json_line(w));
    return put_text(w->r, w->b, "}");
}

static kt_status json_value(json_writer *w, const kt_jinja_value *v) {
    kt_status st;

    KT_TRY(kt_jinja_spend(w->r, 1));
    switch (v->type) {
    case KT_JINJA_NONE: return put_text(w->r, w->b, "null");
    case KT_JINJA_BOOL: return put_text(w->r, w->b, v->as.truth ? "true" : "false");
    case KT_JINJA_INT: return put_int(w->r, w->b, v->as.integer);
    case KT_JINJA_BIG: return kt_jinja_put_string(w->r, w->b, v->as.string);
    case KT_JINJA_FLOAT: return put_double(w->r, w->b, v->as.real, true);
    case KT_JINJA_STRING: return json_string(w->r, w->b, w->form->ensure_ascii, v->as.string);
    case KT_JINJA_LIST:
        if (v->as.list->flavour > KT_JINJA_TUPLE) break;
        KT_TRY(kt_jinja_enter(w->r));
        st = json_list(w, v->as.list);
        w->r->depth--;
        return st;
    case KT_JINJA_DICT:
        KT_TRY(kt_jinja_enter(w->r));
        st = json_dict(w, v->as.dict);
        w->r->depth--;
        return st;
    default: break;
    }
    return kt_jinja_fail(w->r, KT_E_INVALID, "Object of type %s is not JSON serializable",
                         kt_jinja_type_name(v));
}

kt_status kt_jinja_put_json(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_json_form *form,
                            const kt_jinja_value *v) {
    json_writer w = {.r = r, .b = b, .form = form};
    return json_value(&w, v);
}
