/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "runtime/chat/template.h"

#include <locale.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "runtime/chat/jinja_node.h"
#include "runtime/token/utf8_scan.h"

/* ---- the state of a rendering ---- */

kt_status kt_jinja_fail(const kt_jinja_run *r, kt_status status, const char *format, ...) {
    char what[320];
    va_list ap;

    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    return kt_fail(r->err, status, "%.150s:%u:%u: %s", r->t->name, r->at ? r->at->line : 1,
                   r->at ? r->at->column : 1, what);
}

kt_status kt_jinja_overspent(kt_jinja_run *r) {
    r->steps = r->limits.steps;
    return kt_jinja_fail(r, KT_E_UNSUPPORTED, "this takes more than %lld steps",
                         (long long)r->limits.steps);
}

kt_status kt_jinja_enter(kt_jinja_run *r) {
    if (r->depth >= r->limits.depth)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "nested deeper than %d", r->limits.depth);
    r->depth++;
    return KT_OK;
}

/* Chunks of the arena are shared out here, as nearly all that is asked for is a few words. */
enum { CHUNK_BYTES = 16384, GRAIN = 16 };

static kt_status take_chunk(kt_jinja_run *r, size_t size, char **out) {
    *out = kt_arena_alloc(&r->arena, size, GRAIN);
    if (!*out) return kt_jinja_fail(r, KT_E_NOMEM, "no memory for the rendering");
    r->n_chunks++;
    r->mark = kt_arena_here(&r->arena);
    return KT_OK;
}

/* Zeroed, in whole grains: what was given back has been written to. */
static void *give(kt_jinja_run *r, size_t size) {
    char *at = r->room, *end = at + size;

    for (char *p = at; p < end && p < r->zeros; p += GRAIN) memset(p, 0, GRAIN);
    if (end > r->zeros) r->zeros = end;
    r->room = end;
    return at;
}

kt_status kt_jinja_alloc(kt_jinja_run *r, size_t n, size_t item_bytes, void **out) {
    const size_t most = r->limits.memory_bytes;
    size_t bytes, size;
    char *chunk;

    if (__builtin_mul_overflow(n, item_bytes, &bytes) || bytes > most - r->used)
        return kt_jinja_fail(r, KT_E_UNSUPPORTED, "this takes more than %zu bytes of memory", most);
    size = (bytes + GRAIN) & ~(size_t)(GRAIN - 1);
    if (size > (size_t)(r->room_end - r->room)) {
        const bool is_large = size > CHUNK_BYTES / 8;
        KT_TRY(take_chunk(r, is_large ? size : CHUNK_BYTES, &chunk));
        if (is_large) {
            r->used += bytes;
            *out = chunk;
            return KT_OK;
        }
        r->room = r->zeros = chunk;
        r->room_end = chunk + CHUNK_BYTES;
    }
    r->used += bytes;
    *out = give(r, size);
    return KT_OK;
}

void kt_jinja_rewind(kt_jinja_run *r, const kt_jinja_here *here) {
    if (r->n_chunks != here->n_chunks) {
        kt_arena_rewind(&r->arena, here->mark);
        r->n_chunks = here->n_chunks;
        r->mark = here->mark;
        r->room_end = r->zeros = here->room_end;
    }
    r->room = here->room;
    r->used = here->used;
}

/* Bindings of the scopes come from new memory, so that those in reserve stay as they are. */
kt_jinja_here kt_jinja_enter_scopes(kt_jinja_run *r) {
    const kt_jinja_here here = kt_jinja_note_here(r);

    r->spare = NULL;
    return here;
}

bool kt_jinja_leave(kt_jinja_run *r, const kt_jinja_here *here) {
    if (r->lasting != here->lasting) return false;
    r->stores = here->stores;
    r->spare = here->spare;
    return true;
}

void kt_jinja_keep(kt_jinja_run *r) {
    r->stores++;
    r->lasting++;
}

/* ---- no locale ---- */

/* A host program's locale may have a comma in numbers and other names of months: while a template
 * is compiled or rendered, its thread has the C locale. */
typedef struct plain_locale {
    locale_t own, before;
} plain_locale;

static bool enter_plain(plain_locale *l) {
    l->own = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (l->own) l->before = uselocale(l->own);
    return l->own != (locale_t)0;
}

static void leave_plain(const plain_locale *l) {
    uselocale(l->before);
    freelocale(l->own);
}

/* ---- compiling ---- */

/* The source with every line end as \n, without the last one: so does Jinja. */
static void copy_source(kt_template *t, const char *text, size_t size) {
    size_t n = 0;

    for (size_t i = 0; i < size; i++) {
        t->source[n++] = text[i] == '\r' ? '\n' : text[i];
        if (text[i] == '\r' && i + 1 < size && text[i + 1] == '\n') i++;
    }
    if (n && t->source[n - 1] == '\n') n--;
    t->source[n] = '\0';
    t->source_size = n;
}

static void find_rest(kt_template *t) {
    static const char *const names[KT_RESTS] = {"varargs", "kwargs", "caller"};

    for (uint32_t i = 0; i < t->n_symbols; i++)
        for (int k = 0; k < KT_RESTS; k++)
            if (t->symbols[i].size == strlen(names[k]) &&
                memcmp(t->symbols[i].text, names[k], strlen(names[k])) == 0)
                t->rest[k] = i + 1;
}

kt_status kt_template_create(const char *text, size_t size, const char *name, kt_template **out,
                             kt_err *err) {
    kt_template *t = calloc(1, sizeof *t);
    size_t good = kt_utf8_valid_prefix(text, size);
    plain_locale plain;
    kt_status st = KT_OK;

    *out = NULL;
    if (!t || !enter_plain(&plain)) {
        free(t);
        return kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the template", name);
    }
    t->name = kt_arena_strndup(&t->arena, name, strlen(name));
    t->source = kt_arena_alloc(&t->arena, size + 1, 1);
    if (!t->name || !t->source) {
        st = kt_fail(err, KT_E_NOMEM, "%.200s: no memory for the template", name);
    } else if (good != size) {
        st = kt_fail(err, KT_E_FORMAT, "%.200s: not UTF-8 at byte %zu", name, good);
    } else {
        copy_source(t, text, size);
        st = kt_jinja_parse(t, err);
        find_rest(t);
    }
    leave_plain(&plain);
    if (st == KT_OK)
        *out = t;
    else
        kt_template_destroy(t);
    return st;
}

void kt_template_destroy(kt_template *t) {
    if (!t) return;
    kt_arena_deinit(&t->arena);
    free(t);
}

bool kt_template_mentions(const kt_template *t, const char *word) {
    return memmem(t->source, t->source_size, word, strlen(word)) != NULL;
}

/* ---- rendering ---- */

void kt_rendered_deinit(kt_rendered *r) {
    free(r->text);
    free(r->trusted);
    memset(r, 0, sizeof *r);
}

static bool ends_with(const char *s, size_t n, const char *end) {
    size_t m = strlen(end);
    return n >= m && memcmp(s + n - m, end, m) == 0;
}

/* Values of the template's variables: what the context has, else a global function. */
static kt_status fill_variables(kt_jinja_run *r, const kt_json *context) {
    const kt_jinja_string *keys[KT_JINJA_KEYS_KEPT] = {NULL};
    void *memory;

    r->keys = keys;
    KT_TRY(kt_jinja_alloc(r, r->t->n_symbols + 1, sizeof *r->variables, &memory));
    r->variables = memory;
    for (uint32_t i = 0; i < r->t->n_symbols; i++) {
        const kt_jinja_name *name = &r->t->symbols[i];
        const kt_json *value = kt_json_get_n(context, name->text, name->size);
        const kt_jinja_builtin *global =
            kt_jinja_find_builtin(kt_jinja_globals, name->text, name->size);
        if (value) {
            KT_TRY(kt_jinja_from_json(r, value, ends_with(name->text, name->size, "_token"),
                                      &r->variables[i]));
        } else if (global) {
            kt_jinja_bound *bound;
            KT_TRY(kt_jinja_alloc(r, 1, sizeof *bound, &memory));
            bound = memory;
            bound->builtin = global;
            r->variables[i] = (kt_jinja_value){.type = KT_JINJA_BUILTIN, .as.bound = bound};
        }
    }
    r->keys = NULL;
    return KT_OK;
}

static kt_template_limits with_defaults(const kt_template_limits *given) {
    kt_template_limits l = given ? *given : (kt_template_limits){0};

    if (l.steps <= 0) l.steps = 50000000;
    if (l.memory_bytes == 0) l.memory_bytes = (size_t)1 << 30;
    if (l.output_bytes == 0) l.output_bytes = (size_t)256 << 20;
    if (l.depth <= 0) l.depth = 100;
    return l;
}

static kt_status render(kt_jinja_run *r, const kt_json *context, kt_jinja_scope *scope) {
    if (kt_json_type_of(context) != KT_JSON_OBJECT)
        return kt_fail(r->err, KT_E_INVALID, "%.200s: the context is a %s, expected an object",
                       r->t->name, kt_json_type_name(kt_json_type_of(context)));
    r->scope = scope;
    KT_TRY(fill_variables(r, context));
    KT_TRY(kt_jinja_exec(r, r->t->body));
    /* room for the final NUL, also where nothing was written */
    if (kt_text_append(&r->out->text, "", 1, NULL) != KT_OK)
        return kt_jinja_fail(r, KT_E_NOMEM, "no memory for the rendering");
    return KT_OK;
}

kt_status kt_template_render(const kt_template *t, const kt_json *context,
                             const kt_template_options *options, kt_rendered *out, kt_err *err) {
    kt_jinja_builder text = {0};
    kt_jinja_scope scope = {0};
    kt_jinja_run r = {.t = t, .out = &text, .err = err};
    plain_locale plain;
    kt_status st;

    if (!enter_plain(&plain)) return kt_jinja_fail(&r, KT_E_NOMEM, "no memory for the rendering");
    r.limits = with_defaults(options ? &options->limits : NULL);
    r.now = options && options->has_now ? options->now : (int64_t)time(NULL);
    st = render(&r, context, &scope);
    leave_plain(&plain);
    kt_arena_deinit(&r.arena);
    if (st == KT_OK) {
        *out = (kt_rendered){text.text.data, text.text.size - 1, text.spans, text.n_spans};
        text = (kt_jinja_builder){0};
    }
    kt_jinja_builder_deinit(&text);
    return st;
}
