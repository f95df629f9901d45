/* Tokenizer: text <-> token ids.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TOKENIZER_H
#define KT_TOKENIZER_H

#include "kt/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kt_tokenizer kt_tokenizer; /* immutable after load; thread-safe */

/* Load `path`: a tokenizer.json, a .gguf file (its metadata), a tiktoken.model (with
 * tokenizer_config.json beside it), or a folder with a tokenizer.json or else a tiktoken.model;
 * a folder with neither is KT_E_NOT_FOUND. Kinds other than byte-level BPE are refused by name
 * (KT_E_UNSUPPORTED). */
KT_API kt_status kt_tokenizer_load(const char *path, kt_tokenizer **out, kt_err *err);
KT_API void kt_tokenizer_destroy(kt_tokenizer *t);

KT_API int32_t kt_tokenizer_size(const kt_tokenizer *t); /* largest id + 1 */

/* Encode size bytes of UTF-8 (invalid sequences become U+FFFD). Special tokens in the text are
 * recognised when parse_special, other added tokens always; none are added. *ids is owned by
 * the caller: kt_free. */
KT_API kt_status kt_tokenizer_encode(const kt_tokenizer *t, const char *text, size_t size,
                                     bool parse_special, int32_t **ids, size_t *count, kt_err *err);

/* Bytes [begin, end) of a text that may hold control tokens: a template wrote them, not a user. */
typedef struct kt_trusted_span {
    size_t begin, end;
} kt_trusted_span;

/* Encode a prompt of which only the spans (ascending, apart) are trusted. Added tokens, special or
 * not, are recognised where their text lies inside one span; anywhere only those that are nothing
 * but white space. Normal form, pieces and merges see the whole text, so that a text without
 * control tokens of its own gets the ids of kt_tokenizer_encode. One difference: where an added
 * token is matched after normalisation, the text is normalised from span to span. */
KT_API kt_status kt_tokenizer_encode_spans(const kt_tokenizer *t, const char *text, size_t size,
                                           const kt_trusted_span *spans, size_t n_spans,
                                           int32_t **ids, size_t *count, kt_err *err);

/* Raw bytes of one token (borrowed); NULL for an id outside the vocabulary. May be an incomplete
 * UTF-8 sequence. *special is set for added special tokens; may be NULL. */
KT_API const char *kt_tokenizer_bytes(const kt_tokenizer *t, int32_t id, size_t *size,
                                      bool *special);

/* Id of a token by its exact text (added tokens included), or -1. */
KT_API int32_t kt_tokenizer_find(const kt_tokenizer *t, const char *text);

/* Concatenate tokens into NUL-terminated UTF-8 (incomplete sequences become U+FFFD), owned by the
 * caller: kt_free. */
KT_API kt_status kt_tokenizer_decode(const kt_tokenizer *t, const int32_t *ids, size_t count,
                                     bool skip_special, char **text, size_t *size, kt_err *err);

/* Streaming decoder: feed ids, take whole characters only. Zero-initialise. */
typedef struct kt_detokenizer {
    char held[64];
    size_t n_held;
} kt_detokenizer;

/* Bytes that are complete after this token (out >= 4096 bytes is always enough for one token of any
 * shipped vocabulary; returns KT_E_INVALID when it is not). flush emits what is held as U+FFFD. */
KT_API kt_status kt_detokenizer_push(const kt_tokenizer *t, kt_detokenizer *d, int32_t id,
                                     bool skip_special, char *out, size_t out_bytes, size_t *size);
KT_API size_t kt_detokenizer_flush(kt_detokenizer *d, char *out, size_t out_bytes);

#ifdef __cplusplus
}
#endif
#endif
