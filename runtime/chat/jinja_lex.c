/* From the text of a template to tokens. White space around tags is settled here: "-" strips, a
 * line end behind a block tag goes (trim_blocks), and so do blanks between a line's beginning and a
 * block tag (lstrip_blocks), unless "+" keeps them. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "base/utf8.h"
#include "runtime/chat/jinja_node.h"
#include "runtime/token/unicode.h"
#include "runtime/token/utf8_scan.h"

enum { MAX_BRACKETS = 256 };

typedef struct lexer {
    kt_template *t;
    const char *s;
    size_t n, at;
    size_t counted; /* line and column are those of this offset */
    uint32_t line, column;
    bool line_starting; /* what was matched last ended a line */
    char brackets[MAX_BRACKETS];
    int n_brackets;
    kt_jinja_token *tokens;
    size_t n_tokens, capacity;
    kt_err *err;
} lexer;

static void locate(lexer *x, size_t offset) {
    if (offset < x->counted) {
        x->counted = 0;
        x->line = x->column = 1;
    }
    for (; x->counted < offset; x->counted++) {
        if (x->s[x->counted] == '\n') {
            x->line++;
            x->column = 1;
        } else if (((unsigned char)x->s[x->counted] & 0xc0) != 0x80) {
            x->column++;
        }
    }
}

static kt_status fail_at(lexer *x, size_t offset, const char *what) {
    locate(x, offset);
    return kt_fail(x->err, KT_E_FORMAT, "%.200s:%u:%u: %s", x->t->name, x->line, x->column, what);
}

static kt_status add(lexer *x, kt_jinja_token_type type, size_t offset, const char *text,
                     size_t size) {
    locate(x, offset);
    if (x->n_tokens == x->capacity) {
        size_t more = x->capacity ? x->capacity * 2 : 256;
        kt_jinja_token *grown =
            kt_arena_alloc(&x->t->arena, more * sizeof *grown, _Alignof(kt_jinja_token));
        if (!grown)
            return kt_fail(x->err, KT_E_NOMEM, "%.200s: no memory for the template", x->t->name);
        if (x->n_tokens) memcpy(grown, x->tokens, x->n_tokens * sizeof *grown);
        x->tokens = grown;
        x->capacity = more;
    }
    x->tokens[x->n_tokens++] = (kt_jinja_token){type, x->line, x->column, text, size};
    return KT_OK;
}

/* ---- white space ---- */

static size_t space_at(const lexer *x, size_t at) {
    uint32_t c;
    int n = at < x->n ? kt_utf8_next(x->s + at, x->n - at, &c) : 0;
    return n > 0 && kt_unicode_is_space(c) ? (size_t)n : 0;
}

static size_t skip_space(const lexer *x, size_t at) {
    for (size_t n; (n = space_at(x, at)) > 0;) at += n;
    return at;
}

/* The end of s[from, to) without white space at its end. */
static size_t strip_end(const lexer *x, size_t from, size_t to) {
    while (to > from) {
        size_t begin = to - 1;
        uint32_t c;
        while (begin > from && ((unsigned char)x->s[begin] & 0xc0) == 0x80) begin--;
        if (kt_utf8_next(x->s + begin, to - begin, &c) <= 0 || !kt_unicode_is_space(c)) break;
        to = begin;
    }
    return to;
}

/* Text [from, tag) in front of a tag whose sign is '-', '+' or 0. */
static kt_status put_data(lexer *x, size_t from, size_t tag, char sign, bool is_variable) {
    size_t end = tag;

    if (sign == '-') {
        end = strip_end(x, from, tag);
    } else if (sign != '+' && !is_variable) {
        size_t line = tag;
        while (line > from && x->s[line - 1] != '\n') line--;
        if ((line > from || x->line_starting) && strip_end(x, line, tag) == line) end = line;
    }
    return end > from ? add(x, KT_TOK_DATA, from, x->s + from, end - from) : KT_OK;
}

static bool starts(const lexer *x, size_t at, const char *what) {
    size_t n = strlen(what);
    return at <= x->n && x->n - at >= n && memcmp(x->s + at, what, n) == 0;
}

/* Move to `to`, which ends a match. */
static void move(lexer *x, size_t to) {
    x->at = to;
    x->line_starting = to > 0 && x->s[to - 1] == '\n';
}

/* ---- comments and raw blocks ---- */

static kt_status skip_comment(lexer *x, size_t tag, char sign) {
    size_t from = tag + 2 + (sign ? 1 : 0), end = from;

    while (end < x->n && !starts(x, end, "#}")) end++;
    if (end >= x->n) return fail_at(x, tag, "this comment has no end, expected '#}'");
    if (end > from && x->s[end - 1] == '-')
        move(x, skip_space(x, end + 2));
    else if (end > from && x->s[end - 1] == '+')
        move(x, end + 2);
    else
        move(x, end + 2 + (starts(x, end + 2, "\n") ? 1 : 0));
    return KT_OK;
}

/* Is there "{%[-+] word [-+]%}" at `tag`? Then the offset behind it, else 0. */
static size_t match_word_tag(const lexer *x, size_t tag, const char *word, bool trim) {
    size_t at = tag + 2;

    if (!starts(x, tag, "{%")) return 0;
    if (starts(x, at, "-") || starts(x, at, "+")) at++;
    at = skip_space(x, at);
    if (!starts(x, at, word)) return 0;
    at = skip_space(x, at + strlen(word));
    if (starts(x, at, "-%}")) return skip_space(x, at + 3);
    if (trim && starts(x, at, "+%}")) return at + 3;
    if (!starts(x, at, "%}")) return 0;
    return at + 2 + (trim && starts(x, at + 2, "\n") ? 1 : 0);
}

static char sign_at(const lexer *x, size_t at) {
    return starts(x, at, "-") ? '-' : starts(x, at, "+") ? '+' : 0;
}

static kt_status copy_raw(lexer *x, size_t tag, size_t from) {
    size_t end = from, behind = 0;

    move(x, from);
    for (; end < x->n; end++)
        if ((behind = match_word_tag(x, end, "endraw", true)) != 0) break;
    if (!behind) return fail_at(x, tag, "this raw block has no end, expected '{% endraw %}'");
    KT_TRY(put_data(x, from, end, sign_at(x, end + 2), false));
    move(x, behind);
    return KT_OK;
}

/* ---- inside of tags ---- */

static bool is_digit(char c, int base) {
    if (base == 16) return strchr("0123456789abcdefABCDEF", c) && c;
    return c >= '0' && c < '0' + base;
}

static size_t digits(const lexer *x, size_t at, int base) {
    while (at < x->n && (is_digit(x->s[at], base) ||
                         (x->s[at] == '_' && at + 1 < x->n && is_digit(x->s[at + 1], base))))
        at++;
    return at;
}

static kt_status put_number(lexer *x) {
    size_t from = x->at, end, exponent;
    char letter = from + 1 < x->n ? (char)(x->s[from + 1] | 0x20) : 0;
    int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
    bool is_float = false;

    if (x->s[from] == '0' && base != 10 && (end = digits(x, from + 2, base)) > from + 2) {
        x->at = end;
        return add(x, KT_TOK_INT, from, x->s + from, end - from);
    }
    end = digits(x, from, 10);
    if (!(from > 0 && x->s[from - 1] == '.')) { /* a.0.1 counts elements, it has no fraction */
        if (starts(x, end, ".") && end + 1 < x->n && is_digit(x->s[end + 1], 10)) {
            end = digits(x, end + 1, 10);
            is_float = true;
        }
        if (starts(x, end, "e") || starts(x, end, "E")) {
            exponent = end + 1;
            if (starts(x, exponent, "+") || starts(x, exponent, "-")) exponent++;
            if (exponent < x->n && is_digit(x->s[exponent], 10)) {
                end = digits(x, exponent, 10);
                is_float = true;
            }
        }
    }
    x->at = end;
    return add(x, is_float ? KT_TOK_FLOAT : KT_TOK_INT, from, x->s + from, end - from);
}

/* A code point of `count` hexadecimal digits at s. */
static bool read_hex(const char *s, size_t n, size_t count, uint32_t *out) {
    static const char hex[] = "0123456789abcdef";

    *out = 0;
    if (n < count) return false;
    for (size_t i = 0; i < count; i++) {
        const char *at = s[i] ? strchr(hex, s[i] | (s[i] >= 'A' ? 0x20 : 0)) : NULL;
        if (!at) return false;
        *out = *out * 16 + (uint32_t)(at - hex);
    }
    return *out <= 0x10ffff && !(*out >= 0xd800 && *out < 0xe000);
}

/* One escape of Python's; s is behind the backslash. Returns the bytes read, 0 = malformed. */
static size_t read_escape(const char *s, size_t n, char *out, size_t *size) {
    static const char from[] = "abfnrtv\\'\"", to[] = "\a\b\f\n\r\t\v\\'\"";
    const char *simple = strchr(from, s[0]);
    size_t count = s[0] == 'x' ? 2 : s[0] == 'u' ? 4 : s[0] == 'U' ? 8 : 0;
    uint32_t c = 0;

    *size = 0;
    if (s[0] && simple) {
        out[(*size)++] = to[simple - from];
        return 1;
    }
    if (s[0] == '\n') return 1;
    if (count) {
        if (!read_hex(s + 1, n - 1, count, &c)) return 0;
        *size = (size_t)kt_utf8_put(out, c);
        return 1 + count;
    }
    if (s[0] >= '0' && s[0] <= '7') {
        for (count = 0; count < 3 && count < n && s[count] >= '0' && s[count] <= '7'; count++)
            c = c * 8 + (uint32_t)(s[count] - '0');
        *size = (size_t)kt_utf8_put(out, c);
        return count;
    }
    out[(*size)++] = '\\'; /* unknown ones stay as they are */
    return s[0] == 'N' ? 0 : (out[(*size)++] = s[0], 1);
}

static kt_status put_text(lexer *x) {
    size_t from = x->at, end = from + 1, size = 0;
    char quote = x->s[from];
    char *text;

    while (end < x->n && x->s[end] != quote) end += x->s[end] == '\\' ? 2 : 1;
    if (end >= x->n) return fail_at(x, from, "this string has no end");
    text = kt_arena_alloc(&x->t->arena, end - from + 1, 1);
    if (!text) return kt_fail(x->err, KT_E_NOMEM, "%.200s: no memory for the template", x->t->name);
    for (size_t i = from + 1; i < end; i++) {
        size_t n, used;
        if (x->s[i] != '\\') {
            text[size++] = x->s[i];
            continue;
        }
        used = read_escape(x->s + i + 1, end - i - 1, text + size, &n);
        if (used == 0) return fail_at(x, i, "this escape in a string is malformed");
        size += n;
        i += used;
    }
    x->at = end + 1;
    return add(x, KT_TOK_STRING, from, text, size);
}

static bool is_word(char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           ((unsigned char)c & 0x80);
}

/* A bracket closes the one that was opened last. */
static kt_status balance(lexer *x, char c) {
    static const char open[] = "([{", close[] = ")]}";
    const char *opened = strchr(open, c), *closed = strchr(close, c);

    if (opened) {
        if (x->n_brackets == MAX_BRACKETS) return fail_at(x, x->at, "brackets nest too deep");
        x->brackets[x->n_brackets++] = close[opened - open];
    } else if (closed) {
        char text[64] = "unexpected ' '", want[] = ", expected ' '";
        text[12] = c;
        if (x->n_brackets && x->brackets[x->n_brackets - 1] == c) {
            x->n_brackets--;
            return KT_OK;
        }
        if (x->n_brackets) {
            want[12] = x->brackets[x->n_brackets - 1];
            strcat(text, want);
        }
        return fail_at(x, x->at, text);
    }
    return KT_OK;
}

static kt_status put_operator(lexer *x) {
    static const char *const longer[] = {"//", "**", "==", "!=", ">=", "<="};
    size_t n = 1;
    char c = x->s[x->at];
    char text[] = "unexpected character ' '";

    for (size_t i = 0; i < sizeof longer / sizeof *longer; i++)
        if (starts(x, x->at, longer[i])) n = 2;
    if (n == 1 && !strchr("+-/*%~[](){}><=.:|,;", c)) {
        text[sizeof text - 3] = c;
        return fail_at(x, x->at, text);
    }
    KT_TRY(balance(x, c));
    x->at += n;
    return add(x, KT_TOK_OP, x->at - n, x->s + x->at - n, n);
}

/* The end of the tag at the current place: true when there is one. */
static bool match_end(lexer *x, bool is_variable, size_t *behind) {
    const char *end = is_variable ? "}}" : "%}";

    if (x->n_brackets) return false;
    if (starts(x, x->at, "-") && starts(x, x->at + 1, end)) {
        *behind = skip_space(x, x->at + 3);
        return true;
    }
    if (!is_variable && starts(x, x->at, "+") && starts(x, x->at + 1, end)) {
        *behind = x->at + 3;
        return true;
    }
    if (!starts(x, x->at, end)) return false;
    *behind = x->at + 2 + (!is_variable && starts(x, x->at + 2, "\n") ? 1 : 0);
    return true;
}

static kt_status put_tag(lexer *x, size_t tag, bool is_variable, char sign) {
    size_t behind;

    KT_TRY(add(x, is_variable ? KT_TOK_VAR_BEGIN : KT_TOK_BLOCK_BEGIN, tag, x->s + tag, 2));
    x->at = tag + 2 + (sign ? 1 : 0);
    x->n_brackets = 0;
    for (;;) {
        size_t from;
        x->at = skip_space(x, x->at);
        if (x->at >= x->n)
            return fail_at(x, tag,
                           is_variable ? "this tag has no end, expected '}}'"
                                       : "this tag has no end, expected '%}'");
        if (match_end(x, is_variable, &behind)) break;
        from = x->at;
        if (is_digit(x->s[from], 10)) {
            KT_TRY(put_number(x));
        } else if (is_word(x->s[from])) {
            while (x->at < x->n && is_word(x->s[x->at])) x->at++;
            KT_TRY(add(x, KT_TOK_NAME, from, x->s + from, x->at - from));
        } else if (x->s[from] == '"' || x->s[from] == '\'') {
            KT_TRY(put_text(x));
        } else {
            KT_TRY(put_operator(x));
        }
    }
    KT_TRY(add(x, is_variable ? KT_TOK_VAR_END : KT_TOK_BLOCK_END, x->at, x->s + x->at, 2));
    move(x, behind);
    return KT_OK;
}

kt_status kt_jinja_lex(kt_template *t, kt_jinja_token **out, kt_err *err) {
    lexer x = {.t = t, .s = t->source, .n = t->source_size, .err = err};

    x.line = x.column = 1;
    x.line_starting = true;
    while (x.at < x.n) {
        size_t tag = x.at, raw;
        char sign;
        while (tag < x.n &&
               !(x.s[tag] == '{' && (starts(&x, tag + 1, "{") || starts(&x, tag + 1, "%") ||
                                     starts(&x, tag + 1, "#"))))
            tag++;
        if (tag >= x.n) {
            KT_TRY(add(&x, KT_TOK_DATA, x.at, x.s + x.at, x.n - x.at));
            break;
        }
        sign = sign_at(&x, tag + 2);
        KT_TRY(put_data(&x, x.at, tag, sign, x.s[tag + 1] == '{'));
        raw = match_word_tag(&x, tag, "raw", false);
        if (raw)
            KT_TRY(copy_raw(&x, tag, raw));
        else if (x.s[tag + 1] == '#')
            KT_TRY(skip_comment(&x, tag, sign));
        else
            KT_TRY(put_tag(&x, tag, x.s[tag + 1] == '{', sign));
    }
    KT_TRY(add(&x, KT_TOK_END, x.n, "", 0));
    *out = x.tokens;
    return KT_OK;
}
