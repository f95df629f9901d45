/* tokenizer.json, the parts that byte-level BPE uses. Everything else is refused by name: a tokenizer
 * that is nearly right is worse than none. SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"
#include "base/json.h"
#include "dispatch/model/mistakes.h"
#include "runtime/token/tokenizer_impl.h"

static bool flag_of(const kt_json *object, const char *key, bool fallback) {
    return kt_json_bool(kt_json_get(object, key), fallback);
}

static bool is_null(const kt_json *value) {
    return kt_json_type_of(value) == KT_JSON_NULL;
}

/* ---- normalizer ---- */

static kt_status read_normalizer(kt_tokenizer *t, const kt_json *n, int depth, kt_err *err) {
    static const char *const names[] = {"", "NFC", "NFD", "NFKC", "NFKD"};
    const char *type = kt_json_text(n, "type");

    if (is_null(n)) return KT_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const kt_json *list = kt_json_get(n, "normalizers");
        for (size_t i = 0; i < kt_json_length(list); i++) {
            KT_TRY(read_normalizer(t, kt_json_at(list, i), depth + 1, err));
        }
        return KT_OK;
    }
    for (int form = KT_NORMAL_NFC; form <= KT_NORMAL_NFKD; form++) {
        if (strcmp(type, names[form]) != 0) continue;
        if (t->n_forms == KT_TOKENIZER_MAX_FORMS) break;
        t->forms[t->n_forms++] = (kt_normal_form)form;
        return KT_OK;
    }
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "normalizer '%s' is not supported (NFC, NFD, NFKC, NFKD and sequences are)",
                   type);
}

/* ---- pre-tokenizer ---- */

static kt_status behavior_of(const kt_json *p, const char *fallback, kt_split_behavior *out,
                             kt_err *err) {
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *name = kt_json_text(p, "behavior");

    if (!*name) name = fallback;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        *out = (kt_split_behavior)i;
        return KT_OK;
    }
    return kt_fail(err, KT_E_UNSUPPORTED, "split behavior '%s' is not known", name);
}

static kt_status read_split(kt_tokenizer *t, const kt_json *p, kt_err *err) {
    const kt_json *pattern = kt_json_get(p, "pattern");
    kt_split_behavior behavior = KT_SPLIT_ISOLATED;
    size_t size = 0;
    const char *text = kt_json_string(kt_json_get(pattern, "Regex"), &size);
    bool literal = !text;

    if (literal) text = kt_json_string(kt_json_get(pattern, "String"), &size);
    if (!text) return kt_fail(err, KT_E_FORMAT, "a Split has neither a Regex nor a String pattern");
    KT_TRY(behavior_of(p, "", &behavior, err));
    return kt_splitter_add(&t->splitter, text, size, literal, behavior, flag_of(p, "invert", false),
                           err);
}

static kt_status add_regex(kt_tokenizer *t, const char *regex, kt_split_behavior b, kt_err *err) {
    return kt_splitter_add(&t->splitter, regex, strlen(regex), false, b, false, err);
}

static kt_status read_pre_tokenizer(kt_tokenizer *t, const kt_json *p, int depth, bool *byte_level,
                                    kt_err *err) {
    const char *type = kt_json_text(p, "type");
    kt_split_behavior behavior = KT_SPLIT_ISOLATED;

    if (is_null(p)) return KT_OK;
    if (strcmp(type, "Sequence") == 0 && depth < 4) {
        const kt_json *list = kt_json_get(p, "pretokenizers");
        for (size_t i = 0; i < kt_json_length(list); i++) {
            KT_TRY(read_pre_tokenizer(t, kt_json_at(list, i), depth + 1, byte_level, err));
        }
        return KT_OK;
    }
    if (*byte_level) {
        return kt_fail(err, KT_E_UNSUPPORTED, "pre-tokenizer '%s' after ByteLevel", type);
    }
    if (strcmp(type, "Split") == 0) return read_split(t, p, err);
    if (strcmp(type, "Digits") == 0) {
        bool single = flag_of(p, "individual_digits", false);
        return add_regex(t, single ? "\\p{N}" : "\\p{N}+", KT_SPLIT_ISOLATED, err);
    }
    if (strcmp(type, "Punctuation") == 0) {
        KT_TRY(behavior_of(p, "Isolated", &behavior, err));
        return add_regex(t, "[\\p{P}$+<=>^`|~]", behavior, err);
    }
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        if (flag_of(p, "add_prefix_space", true)) {
            KT_TRY(kt_splitter_add_prefix_space(&t->splitter, err));
        }
        if (!flag_of(p, "use_regex", true)) return KT_OK;
        return add_regex(t, KT_GPT2_PATTERN, KT_SPLIT_ISOLATED, err);
    }
    return kt_fail(
        err, KT_E_UNSUPPORTED,
        "pre-tokenizer '%s' is not supported (Split, Digits, Punctuation, ByteLevel are)", type);
}

/* ---- decoder ---- */

static bool decodes_bytes(const kt_json *d) {
    const char *type = kt_json_text(d, "type");
    const kt_json *list = kt_json_get(d, "decoders");

    if (strcmp(type, "ByteLevel") == 0) return true;
    return strcmp(type, "Sequence") == 0 && kt_json_length(list) == 1 &&
           strcmp(kt_json_text(kt_json_at(list, 0), "type"), "ByteLevel") == 0;
}

/* ---- model ---- */

static kt_status check_model(const kt_json *m, kt_err *err) {
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type = kt_json_text(m, "type");

    /* old files name no type; only BPE has merges */
    if (!*type && kt_json_get(m, "merges")) type = "BPE";
    if (strcmp(type, "BPE") != 0) {
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "a tokenizer of type '%s' is not supported, only byte-level BPE is",
                       *type ? type : "unknown");
    }
    for (size_t i = 0; i < sizeof affixes / sizeof *affixes; i++) {
        if (!*kt_json_text(m, affixes[i])) continue;
        return kt_fail(err, KT_E_UNSUPPORTED, "BPE with %s '%s' is not supported", affixes[i],
                       kt_json_text(m, affixes[i]));
    }
    if (kt_json_double(kt_json_get(m, "dropout"), 0) != 0) {
        return kt_fail(err, KT_E_UNSUPPORTED, "BPE with dropout is not supported");
    }
    return KT_OK;
}

static kt_status read_vocab(kt_tokenizer *t, const kt_json *vocab, kt_text *bytes, kt_err *err) {
    if (kt_json_type_of(vocab) != KT_JSON_OBJECT) {
        return kt_fail(err, KT_E_FORMAT, "model.vocab is %s, expected an object",
                       kt_json_type_name(kt_json_type_of(vocab)));
    }
    for (size_t i = 0; i < kt_json_length(vocab); i++) {
        const char *key;
        size_t n;
        const kt_json *id = kt_json_member(vocab, i, &key, &n);
        bool in_alphabet;
        if (!kt_json_is_integer(id)) {
            return kt_fail(err, KT_E_FORMAT, "model.vocab: the id of '%.100s' is no integer", key);
        }
        KT_TRY(kt_byte_alphabet_read(key, n, bytes, &in_alphabet, err));
        KT_TRY(kt_bpe_add_token(&t->bpe, kt_json_int(id, -1), in_alphabet ? bytes->data : key,
                                in_alphabet ? bytes->size : n, in_alphabet ? KT_TOKEN_PIECE : 0,
                                err));
    }
    return KT_OK;
}

/* Both halves of a merge, written "a b" or ["a", "b"]. */
static bool merge_halves(const kt_json *merge, const char **a, size_t *n_a, const char **b,
                         size_t *n_b) {
    if (kt_json_type_of(merge) == KT_JSON_ARRAY) {
        *a = kt_json_string(kt_json_at(merge, 0), n_a);
        *b = kt_json_string(kt_json_at(merge, 1), n_b);
        return *a && *b && kt_json_length(merge) == 2;
    }
    *a = kt_json_string(merge, n_b);
    *b = *a && *n_b ? memchr(*a + 1, ' ', *n_b - 1) : NULL;
    if (!*b) return false;
    *n_a = (size_t)(*b - *a);
    *n_b -= *n_a + 1;
    *b += 1;
    return true;
}

static kt_status read_merges(kt_tokenizer *t, const kt_json *merges, kt_text *a, kt_text *b,
                             kt_err *err) {
    if (kt_json_type_of(merges) != KT_JSON_ARRAY) {
        return kt_fail(err, KT_E_FORMAT, "model.merges is %s, expected an array",
                       kt_json_type_name(kt_json_type_of(merges)));
    }
    for (size_t i = 0; i < kt_json_length(merges); i++) {
        const char *left, *right;
        size_t n_left, n_right;
        bool ok_left, ok_right;
        if (!merge_halves(kt_json_at(merges, i), &left, &n_left, &right, &n_right)) {
            return kt_fail(err, KT_E_FORMAT, "model.merges[%zu] is neither \"a b\" nor [a, b]", i);
        }
        KT_TRY(kt_byte_alphabet_read(left, n_left, a, &ok_left, err));
        KT_TRY(kt_byte_alphabet_read(right, n_right, b, &ok_right, err));
        if (!ok_left || !ok_right) {
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "model.merges[%zu] is not in the byte alphabet: not a byte-level BPE",
                           i);
        }
        KT_TRY(kt_bpe_add_merge(&t->bpe, a->data, a->size, b->data, b->size, err));
    }
    return KT_OK;
}

static kt_status read_added(kt_tokenizer *t, const kt_json *list, kt_err *err) {
    for (size_t i = 0; i < kt_json_length(list); i++) {
        const kt_json *a = kt_json_at(list, i), *id = kt_json_get(a, "id");
        size_t n;
        const char *content = kt_json_string(kt_json_get(a, "content"), &n);
        kt_added_flags flags = {flag_of(a, "special", false), flag_of(a, "single_word", false),
                                flag_of(a, "lstrip", false), flag_of(a, "rstrip", false)};
        if (!content || n == 0 || !kt_json_is_integer(id)) {
            return kt_fail(err, KT_E_FORMAT, "added_tokens[%zu] needs an id and a content", i);
        }
        KT_TRY(kt_tokenizer_add_special(t, kt_json_int(id, -1), content, n, flags,
                                        flag_of(a, "normalized", !flags.special), err));
    }
    return KT_OK;
}

static kt_status read_root(kt_tokenizer *t, const kt_json *root, kt_text *a, kt_text *b,
                           kt_err *err) {
    const kt_json *model = kt_json_get(root, "model");
    bool byte_level = false;

    if (kt_json_type_of(model) != KT_JSON_OBJECT) {
        return kt_fail(err, KT_E_FORMAT, "no 'model' object: this is not a tokenizer.json");
    }
    KT_TRY(check_model(model, err));
    KT_TRY(read_normalizer(t, kt_json_get(root, "normalizer"), 0, err));
    KT_TRY(read_pre_tokenizer(t, kt_json_get(root, "pre_tokenizer"), 0, &byte_level, err));
    if (!byte_level || !decodes_bytes(kt_json_get(root, "decoder"))) {
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "a BPE without ByteLevel pre-tokenizer and decoder (SentencePiece style) is "
                       "not supported");
    }
    t->bpe.ignore_merges = flag_of(model, "ignore_merges", false);
    KT_TRY(read_vocab(t, kt_json_get(model, "vocab"), a, err));
    KT_TRY(read_added(t, kt_json_get(root, "added_tokens"), err));
    KT_TRY(kt_bpe_index(&t->bpe, err));
    KT_TRY(read_merges(t, kt_json_get(model, "merges"), a, b, err));
    return kt_bpe_finish(&t->bpe, err);
}

kt_status kt_tokenizer_read_json(kt_tokenizer *t, const char *path, kt_err *err) {
    const size_t max_bytes = (size_t)256 << 20;
    kt_text a = {0}, b = {0};
    kt_json_doc *doc = NULL;
    char *text = NULL;
    size_t size = 0;
    kt_status st = kt_file_read(path, max_bytes, &text, &size, err);

    if (st != KT_OK) return st;
    st = kt_model_mistake(text, size)
             ? kt_fail(err, KT_E_FORMAT, "%s, expected JSON", kt_model_mistake(text, size))
             : kt_json_parse(text, size, NULL, &doc, err);
    free(text);
    if (st == KT_OK) st = read_root(t, kt_json_root(doc), &a, &b, err);
    if (st == KT_OK) st = kt_tokenizer_read_first(t, kt_json_root(doc), path, err);
    if (st != KT_OK) st = kt_fail_prefix(err, st, "%s", path);
    kt_json_destroy(doc);
    free(a.data);
    free(b.data);
    return st;
}
