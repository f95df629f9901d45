/* tiktoken.model, the vocabulary that Kimi-K2 is published with, and tokenizer_config.json beside
 * it, which names the special tokens. The pre-tokenizer's pattern stands in neither (it is Python
 * code beside them), so only the class that is known is accepted.
 *
 * Behind the n ranks come 256 special ids, n to n + 255; those without a name in
 * added_tokens_decoder are called "<|reserved_token_ID|>".
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>

#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/mistakes.h"
#include "runtime/token/tokenizer_impl.h"

enum { special_ids = 256, max_path = 4096 };

static const size_t max_file_bytes = (size_t)64 << 20;

/* ---- the ranks ---- */

static int base64_value(char c) {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

/* Replace out by the bytes; *ok is false when s is no padded base64 (RFC 4648). */
static kt_status read_base64(const char *s, size_t n, kt_text *out, bool *ok, kt_err *err) {
    uint32_t bits = 0;
    size_t n_padding = 0;

    out->size = 0;
    *ok = false;
    KT_TRY(kt_text_reserve(out, n, err));
    while (n_padding < 2 && n_padding < n && s[n - 1 - n_padding] == '=') n_padding++;
    if (n == 0 || n % 4 != 0) return KT_OK;
    for (size_t i = 0; i < n; i++) {
        int v = i + n_padding < n ? base64_value(s[i]) : 0;
        if (v < 0) return KT_OK;
        bits = bits << 6 | (uint32_t)v;
        if (i % 4 < 3) continue;
        for (int k = 2; k >= 0; k--) out->data[out->size++] = (char)(bits >> 8 * k);
    }
    out->size -= n_padding;
    *ok = true;
    return KT_OK;
}

/* A whole number of at most 9 digits, or -1. */
static int64_t read_number(const char *s, size_t n) {
    int64_t v = 0;

    if (n < 1 || n > 9) return -1;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return -1;
        v = 10 * v + (s[i] - '0');
    }
    return v;
}

static kt_status read_line(kt_tokenizer *t, const char *line, size_t n, kt_text *bytes,
                           kt_err *err) {
    const char *space = memchr(line, ' ', n);
    const size_t n_code = space ? (size_t)(space - line) : n;
    int64_t rank = space ? read_number(space + 1, n - n_code - 1) : -1;
    bool ok;

    KT_TRY(read_base64(line, n_code, bytes, &ok, err));
    if (!ok || rank < 0) {
        return kt_fail(err, KT_E_FORMAT, "'%.*s', expected base64, a space and a rank",
                       n < 60 ? (int)n : 60, line);
    }
    return kt_bpe_add_token(&t->bpe, rank, bytes->data, bytes->size, KT_TOKEN_PIECE, err);
}

kt_status kt_tiktoken_parse(kt_tokenizer *t, const char *text, size_t size, kt_err *err) {
    const char *const end = text + size;
    int32_t n_ranks = 0;
    kt_text bytes = {0};
    kt_status st = KT_OK;
    size_t number = 0;

    while (st == KT_OK && text < end) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t n = stop ? (size_t)(stop - text) : (size_t)(end - text);
        size_t n_used = n && text[n - 1] == '\r' ? n - 1 : n;
        number++;
        if (n_used) {
            st = read_line(t, text, n_used, &bytes, err);
            if (st != KT_OK) st = kt_fail_prefix(err, st, "line %zu", number);
            n_ranks++;
        }
        text = stop ? stop + 1 : end;
    }
    free(bytes.data);
    if (st == KT_OK && n_ranks != t->bpe.n_tokens) {
        st = kt_fail(err, KT_E_FORMAT, "%d tokens with ranks up to %d, expected each rank once",
                     n_ranks, t->bpe.n_tokens - 1);
    }
    return st;
}

static kt_status read_ranks(kt_tokenizer *t, const char *path, kt_err *err) {
    char *text = NULL;
    const char *mistake;
    size_t size = 0;
    kt_status st = kt_file_read(path, max_file_bytes, &text, &size, err);

    if (st != KT_OK) return st;
    mistake = kt_model_mistake(text, size);
    st = mistake ? kt_fail(err, KT_E_FORMAT, "%s, expected lines of base64 and rank", mistake)
                 : kt_tiktoken_parse(t, text, size, err);
    free(text);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%s", path);
}

/* ---- the special tokens ---- */

static bool flag_of(const kt_json *object, const char *key) {
    return kt_json_bool(kt_json_get(object, key), false);
}

static kt_status read_named(kt_tokenizer *t, const kt_json *list, int32_t first, kt_err *err) {
    for (size_t i = 0; i < kt_json_length(list); i++) {
        const char *key;
        size_t n_key, n;
        const kt_json *a = kt_json_member(list, i, &key, &n_key);
        const char *content = kt_json_string(kt_json_get(a, "content"), &n);
        kt_added_flags flags = {flag_of(a, "special"), flag_of(a, "single_word"),
                                flag_of(a, "lstrip"), flag_of(a, "rstrip")};
        int64_t id = read_number(key, n_key);
        if (!content || n == 0) {
            return kt_fail(err, KT_E_FORMAT, "added token '%.60s' has no content", key);
        }
        if (id < first || id >= first + special_ids) {
            return kt_fail(err, KT_E_MISMATCH,
                           "added token '%.60s' has id '%.20s', expected %d to %d: the ids behind "
                           "those of tiktoken.model",
                           content, key, first, first + special_ids - 1);
        }
        KT_TRY(kt_tokenizer_add_special(t, id, content, n, flags, false, err));
    }
    return KT_OK;
}

static kt_status add_reserved(kt_tokenizer *t, int32_t first, kt_err *err) {
    const kt_added_flags flags = {.special = true};

    for (int32_t id = first; id < first + special_ids; id++) {
        char name[48];
        int n = snprintf(name, sizeof name, "<|reserved_token_%d|>", id);
        if (id < t->bpe.n_tokens && t->bpe.tokens[id].flags & KT_TOKEN_PRESENT) continue;
        KT_TRY(kt_tokenizer_add_special(t, id, name, (size_t)n, flags, false, err));
    }
    return KT_OK;
}

static kt_status read_added(kt_tokenizer *t, const kt_json *root, kt_err *err) {
    const kt_json *list = kt_json_get(root, "added_tokens_decoder");
    const char *kind = kt_json_text(root, "tokenizer_class");
    const int32_t first = t->bpe.n_tokens;

    if (*kind && strcmp(kind, "TikTokenTokenizer") != 0) {
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "tokenizer_class '%.60s' is not supported beside tiktoken.model "
                       "(TikTokenTokenizer, Kimi's, is)",
                       kind);
    }
    if (kt_json_type_of(list) != KT_JSON_OBJECT) {
        return kt_fail(err, KT_E_FORMAT, "added_tokens_decoder is %s, expected an object",
                       kt_json_type_name(kt_json_type_of(list)));
    }
    KT_TRY(read_named(t, list, first, err));
    return add_reserved(t, first, err);
}

/* tokenizer_config.json in the folder of path. */
static kt_status read_config(kt_tokenizer *t, const char *path, kt_err *err) {
    const char *slash = strrchr(path, '/'), *mistake;
    char config[max_path], *text = NULL;
    size_t size = 0;
    kt_json_doc *doc = NULL;
    kt_status st;
    int n = snprintf(config, sizeof config, "%.*stokenizer_config.json",
                     slash ? (int)(slash + 1 - path) : 0, path);

    if (n < 0 || (size_t)n >= sizeof config) {
        return kt_fail(err, KT_E_INVALID, "%.200s: the path is too long", path);
    }
    st = kt_file_read(config, max_file_bytes, &text, &size, err);
    if (st == KT_E_NOT_FOUND) {
        return kt_fail(err, KT_E_MISMATCH,
                       "%.300s: missing; tiktoken.model needs it for the special tokens", config);
    }
    if (st != KT_OK) return st;
    mistake = kt_model_mistake(text, size);
    st = mistake ? kt_fail(err, KT_E_FORMAT, "%s, expected JSON", mistake)
                 : kt_json_parse(text, size, NULL, &doc, err);
    free(text);
    if (st == KT_OK) st = read_added(t, kt_json_root(doc), err);
    if (st != KT_OK) st = kt_fail_prefix(err, st, "%s", config);
    kt_json_destroy(doc);
    return st;
}

kt_status kt_tokenizer_read_tiktoken(kt_tokenizer *t, const char *path, kt_err *err) {
    static const char pre[] = "kimi-k2";
    kt_status st;

    KT_TRY(kt_tokenizer_set_pre(t, pre, sizeof pre - 1, err));
    KT_TRY(read_ranks(t, path, err));
    KT_TRY(read_config(t, path, err));
    st = kt_bpe_index(&t->bpe, err);
    if (st == KT_OK) st = kt_bpe_finish(&t->bpe, err);
    return st == KT_OK ? KT_OK : kt_fail_prefix(err, st, "%s", path);
}
