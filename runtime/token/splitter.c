/* Pre-tokenisation by PCRE2.
 *
 * Patterns were written for Oniguruma (Ruby syntax), the engine of the reference tokenizers. Where
 * PCRE2 differs, the pattern is rewritten or refused:
 *   \s, \S     PCRE2's Unicode classes hold U+180E; replaced by White_Space written out.
 *   $          end of each line in Ruby: PCRE2_MULTILINE with LF as the only line end.
 *   [a&&b], [a[b]], \h, \w, \b   other meanings or other tables: refused.
 *
 * A step sees each piece as a text of its own, so look-ahead ends at the end of the piece.
 *
 * Match and heap limits keep hostile text from hanging the process. The limit grows with the piece because
 * honest patterns give back one character at a time, e.g. \s*[\r\n]+ on a long run of spaces.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "runtime/token/splitter.h"

#include <pcre2.h>

#include "base/err.h"
#include "runtime/token/text.h"

#define WHITE_SPACE                                                                             \
    "\\x{9}-\\x{d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}" \
    "\\x{205f}\\x{3000}"
#define NOT_WHITE_SPACE                                                                        \
    "\\x{0}-\\x{8}\\x{e}-\\x{1f}\\x{21}-\\x{84}\\x{86}-\\x{9f}\\x{a1}-\\x{167f}\\x{1681}-\\x{" \
    "1fff}"                                                                                    \
    "\\x{200b}-\\x{2027}\\x{202a}-\\x{202e}\\x{2030}-\\x{205e}\\x{2060}-\\x{2fff}"             \
    "\\x{3001}-\\x{10ffff}"

enum {
    max_steps = 32,
    match_steps = 10 * 1000 * 1000, /* about 0.1 s */
    match_steps_per_byte = 16,
    heap_limit_kib = 256 * 1024
};

typedef struct kt_split_step {
    pcre2_code *code; /* NULL = prefix space */
    kt_split_behavior behavior;
    bool invert;
} kt_split_step;

struct kt_split_work {
    pcre2_match_data *match;
    pcre2_match_context *context;
};

void kt_splitter_deinit(kt_splitter *s) {
    for (int i = 0; i < s->n_steps; i++) pcre2_code_free(s->steps[i].code);
    free(s->steps);
    memset(s, 0, sizeof *s);
}

static kt_status append(kt_text *out, const char *s, kt_err *err) {
    return kt_text_append(out, s, strlen(s), err);
}

/* The backslash at p[0]: append it with what follows, rewritten. Returns the bytes taken in *used. */
static kt_status translate_escape(const char *p, size_t left, bool in_class, kt_text *out,
                                  size_t *used, kt_err *err) {
    *used = left < 2 ? left : 2;
    if (left < 2) return kt_text_append(out, p, left, err);
    switch (p[1]) {
    case 's': return append(out, in_class ? WHITE_SPACE : "[" WHITE_SPACE "]", err);
    case 'S': return append(out, in_class ? NOT_WHITE_SPACE : "[" NOT_WHITE_SPACE "]", err);
    case 'h':
    case 'H':
    case 'w':
    case 'W':
    case 'b':
    case 'B':
    case 'Q':
    case 'K':
        return kt_fail(err, KT_E_UNSUPPORTED, "the pattern uses \\%c, which is not supported",
                       p[1]);
    default: return kt_text_append(out, p, 2, err);
    }
}

static kt_status translate(const char *p, size_t n, kt_text *out, kt_err *err) {
    bool in_class = false;
    size_t class_begin = 0, used;

    for (size_t i = 0; i < n; i += used) {
        used = 1;
        if (p[i] == '\\') {
            KT_TRY(translate_escape(p + i, n - i, in_class, out, &used, err));
            continue;
        }
        if (!in_class && p[i] == '[') {
            in_class = true;
            class_begin = i + 1;
            if (class_begin < n && p[class_begin] == '^') class_begin++;
        } else if (in_class && p[i] == ']' && i > class_begin) {
            in_class = false;
        } else if (in_class && p[i] == '[' && i >= class_begin) {
            if (i + 1 == n || p[i + 1] != ':') {
                return kt_fail(err, KT_E_UNSUPPORTED, "the pattern has a class inside a class");
            }
        } else if (in_class && p[i] == '&' && i + 1 < n && p[i + 1] == '&') {
            return kt_fail(err, KT_E_UNSUPPORTED, "the pattern intersects classes (&&)");
        }
        KT_TRY(kt_text_append(out, p + i, 1, err));
    }
    return KT_OK;
}

static kt_status compile(const char *pattern, size_t size, bool literal, pcre2_code **out,
                         kt_err *err) {
    const uint32_t options =
        PCRE2_UTF |
        (literal ? PCRE2_LITERAL : PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
    pcre2_compile_context *context = pcre2_compile_context_create(NULL);
    PCRE2_SIZE where = 0;
    int code = 0;

    if (!context) return kt_fail(err, KT_E_NOMEM, "no memory for a pattern");
    pcre2_set_newline(context, PCRE2_NEWLINE_LF);
    pcre2_set_parens_nest_limit(context, 100);
    *out = pcre2_compile((PCRE2_SPTR)pattern, size, options, &code, &where, context);
    pcre2_compile_context_free(context);
    if (!*out) {
        char text[128];
        if (code == PCRE2_ERROR_HEAP_FAILED)
            return kt_fail(err, KT_E_NOMEM, "no memory for a pattern of %zu bytes", size);
        pcre2_get_error_message(code, (PCRE2_UCHAR *)text, sizeof text);
        return kt_fail(err, KT_E_FORMAT, "the pattern '%.*s' is wrong at character %zu: %s",
                       size < 200 ? (int)size : 200, pattern, (size_t)where, text);
    }
    /* Without JIT (locked-down kernels refuse its memory) the interpreter does the same, slower. */
    (void)pcre2_jit_compile(*out, PCRE2_JIT_COMPLETE);
    return KT_OK;
}

static kt_status add_step(kt_splitter *s, kt_split_step step, kt_err *err) {
    kt_split_step *grown;

    if (s->n_steps == max_steps) {
        return kt_fail(err, KT_E_UNSUPPORTED, "more than %d pre-tokenizer steps", max_steps);
    }
    grown = realloc(s->steps, (size_t)(s->n_steps + 1) * sizeof *grown);
    if (!grown) return kt_fail(err, KT_E_NOMEM, "no memory for a pre-tokenizer step");
    grown[s->n_steps++] = step;
    s->steps = grown;
    return KT_OK;
}

kt_status kt_splitter_add(kt_splitter *s, const char *pattern, size_t size, bool literal,
                          kt_split_behavior behavior, bool invert, kt_err *err) {
    kt_split_step step = {NULL, behavior, invert};
    kt_text text = {0};
    kt_status st;

    st = literal ? kt_text_append(&text, pattern, size, err) : translate(pattern, size, &text, err);
    if (st == KT_OK && text.size == 0) st = kt_fail(err, KT_E_FORMAT, "an empty split pattern");
    if (st == KT_OK) st = compile(text.data, text.size, literal, &step.code, err);
    if (st == KT_OK) st = add_step(s, step, err);
    if (st != KT_OK) pcre2_code_free(step.code);
    free(text.data);
    return st;
}

kt_status kt_splitter_add_prefix_space(kt_splitter *s, kt_err *err) {
    return add_step(s, (kt_split_step){NULL, KT_SPLIT_ISOLATED, false}, err);
}

kt_status kt_split_work_create(kt_split_work **out, kt_err *err) {
    kt_split_work *w = calloc(1, sizeof *w);

    *out = NULL;
    if (w) {
        w->match = pcre2_match_data_create(1, NULL);
        w->context = pcre2_match_context_create(NULL);
    }
    if (!w || !w->match || !w->context) {
        kt_split_work_destroy(w);
        return kt_fail(err, KT_E_NOMEM, "no memory to match patterns");
    }
    pcre2_set_heap_limit(w->context, heap_limit_kib);
    *out = w;
    return KT_OK;
}

void kt_split_work_destroy(kt_split_work *work) {
    if (!work) return;
    pcre2_match_data_free(work->match);
    pcre2_match_context_free(work->context);
    free(work);
}

/* One text going through the steps. */
typedef struct run {
    const kt_splitter *s;
    kt_split_work *work;
    kt_piece_fn emit;
    void *arg;
} run;

/* Pieces of one step before they go on: behaviours may join them to the next. */
typedef struct pending {
    size_t begin, end;
    bool match;
} pending;

static kt_status run_step(const run *r, int step, const char *text, size_t size, kt_err *err);

static kt_status pass_on(const run *r, int step, const char *text, const pending *p, kt_err *err) {
    if (p->end == p->begin) return KT_OK;
    return run_step(r, step + 1, text + p->begin, p->end - p->begin, err);
}

/* The next stretch of the text, a match or a gap. */
static kt_status put(const run *r, int step, const char *text, pending *held, size_t begin,
                     size_t end, bool match, kt_err *err) {
    const kt_split_step *s = &r->s->steps[step];
    bool join = false;

    if (begin == end) return KT_OK;
    if (s->invert) match = !match;
    switch (s->behavior) {
    case KT_SPLIT_REMOVED:
        if (match) return KT_OK;
        break;
    case KT_SPLIT_MERGED_PREVIOUS: join = match && !held->match; break;
    case KT_SPLIT_MERGED_NEXT: join = !match && held->match; break;
    case KT_SPLIT_CONTIGUOUS: join = match == held->match; break;
    case KT_SPLIT_ISOLATED: break;
    }
    if (join && held->end > held->begin) {
        held->end = end;
        held->match = match;
        return KT_OK;
    }
    KT_TRY(pass_on(r, step, text, held, err));
    *held = (pending){begin, end, match};
    return KT_OK;
}

/* Search text from `at`. *found false = no more matches. */
static kt_status search(const run *r, const pcre2_code *code, const char *text, size_t size,
                        size_t at, size_t *begin, size_t *end, bool *found, kt_err *err) {
    const PCRE2_SIZE *span = pcre2_get_ovector_pointer(r->work->match);
    int rc = pcre2_match(code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK, r->work->match,
                         r->work->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
        rc = pcre2_match(code, (PCRE2_SPTR)text, size, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT,
                         r->work->match, r->work->context);
    }
    *found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH) return KT_OK;
    if (rc < 0) {
        char why[128];
        pcre2_get_error_message(rc, (PCRE2_UCHAR *)why, sizeof why);
        return kt_fail(err, KT_E_UNSUPPORTED, "a stretch of %zu bytes cannot be split: %s", size,
                       why);
    }
    *begin = span[0];
    *end = span[1];
    return KT_OK;
}

static kt_status split(const run *r, int step, const char *text, size_t size, kt_err *err) {
    const pcre2_code *code = r->s->steps[step].code;
    pending held = {0, 0, false};
    size_t done = 0, at = 0; /* passed on up to; searching from */

    while (at < size) {
        size_t begin = 0, end = 0;
        bool found;
        /* steps inside changed the limit for their pieces */
        uint64_t limit = match_steps + (uint64_t)size * match_steps_per_byte;
        pcre2_set_match_limit(r->work->context, limit < UINT32_MAX ? (uint32_t)limit : UINT32_MAX);
        KT_TRY(search(r, code, text, size, at, &begin, &end, &found, err));
        if (!found) break;
        KT_TRY(put(r, step, text, &held, done, begin, false, err));
        KT_TRY(put(r, step, text, &held, begin, end, true, err));
        done = at = end;
        if (begin == end && at < size) {
            at++; /* past the character after an empty match */
            while (at < size && ((unsigned char)text[at] & 0xc0) == 0x80) at++;
        }
    }
    KT_TRY(put(r, step, text, &held, done, size, false, err));
    return pass_on(r, step, text, &held, err);
}

static kt_status prefix_space(const run *r, int step, const char *text, size_t size, kt_err *err) {
    kt_text copy = {0};
    kt_status st;

    if (text[0] == ' ') return run_step(r, step + 1, text, size, err);
    st = kt_text_append(&copy, " ", 1, err);
    if (st == KT_OK) st = kt_text_append(&copy, text, size, err);
    if (st == KT_OK) st = run_step(r, step + 1, copy.data, copy.size, err);
    free(copy.data);
    return st;
}

static kt_status run_step(const run *r, int step, const char *text, size_t size, kt_err *err) {
    if (step == r->s->n_steps) return r->emit(r->arg, text, size, err);
    if (!r->s->steps[step].code) return prefix_space(r, step, text, size, err);
    return split(r, step, text, size, err);
}

kt_status kt_splitter_run(const kt_splitter *s, kt_split_work *work, const char *text, size_t size,
                          kt_piece_fn emit, void *arg, kt_err *err) {
    const run r = {s, work, emit, arg};
    return size ? run_step(&r, 0, text, size, err) : KT_OK;
}
