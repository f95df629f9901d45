/* Inside of a tokenizer, for its loaders. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TOKENIZER_IMPL_H
#define KT_RUNTIME_TOKENIZER_IMPL_H

#include "base/json.h"
#include "runtime/token/added.h"
#include "runtime/token/bpe.h"
#include "runtime/token/normalize.h"
#include "runtime/token/splitter.h"
#include "runtime/token/tokenizer.h"

#define KT_TOKENIZER_MAX_FORMS 4
#define KT_TOKENIZER_MOST_FIRST 8

struct kt_tokenizer {
    kt_bpe bpe;
    kt_added added_raw;                           /* looked for in the text as it came */
    kt_added added_normal;                        /* looked for after normalisation */
    kt_normal_form forms[KT_TOKENIZER_MAX_FORMS]; /* normalisations, in order */
    int n_forms;
    kt_splitter splitter;
    int32_t first[KT_TOKENIZER_MOST_FIRST]; /* in front of every text, but not of a template's */
    int n_first;
};

/* The GPT-2 alphabet, in which vocabulary files write bytes as printable characters: turn s into
 * bytes (out is replaced). *ok is false when a character is outside of the alphabet. */
kt_status kt_byte_alphabet_read(const char *s, size_t n, kt_text *out, bool *ok, kt_err *err);

/* Normalise s into out through all forms; tmp is scratch. */
kt_status kt_tokenizer_normalize(const kt_tokenizer *t, const char *s, size_t n, kt_text *out,
                                 kt_text *tmp, kt_err *err);

/* Add a token that is matched as text. Content must not be empty. */
kt_status kt_tokenizer_add_special(kt_tokenizer *t, int64_t id, const char *content, size_t size,
                                   kt_added_flags flags, bool normalized, kt_err *err);

/* One more id in front of every text; what is none of the vocabulary is left out. */
void kt_tokenizer_add_first(kt_tokenizer *t, int64_t id);
/* Those that tokenizer.json, whose root it is, and the tokenizer_config.json beside it ask for;
 * where there is none, or it is no JSON, the former alone. KT_E_NOMEM. */
kt_status kt_tokenizer_read_first(kt_tokenizer *t, const kt_json *root, const char *path,
                                  kt_err *err);

/* The pattern of GPT-2, which a ByteLevel pre-tokenizer with use_regex means. */
#define KT_GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

/* The pre-tokenizer of that name (tokenizer.ggml.pre): normal form, patterns, how pieces merge. */
kt_status kt_tokenizer_set_pre(kt_tokenizer *t, const char *name, size_t n, kt_err *err);

/* Fill an empty tokenizer. On error the caller destroys it. */
kt_status kt_tokenizer_read_json(kt_tokenizer *t, const char *path, kt_err *err);
kt_status kt_tokenizer_read_gguf(kt_tokenizer *t, const char *path, kt_err *err);
kt_status kt_tokenizer_read_tiktoken(kt_tokenizer *t, const char *path, kt_err *err);

/* Add the tokens of a tiktoken vocabulary: lines of base64, a space and the rank, which is the
 * id. Ranks are 0 to n - 1, in any order. */
kt_status kt_tiktoken_parse(kt_tokenizer *t, const char *text, size_t size, kt_err *err);

#endif
