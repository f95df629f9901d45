/* The tokens of a model as a trie over their bytes, for masks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_VOCABULARY_H
#define KT_RUNTIME_VOCABULARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"
#include "runtime/token/tokenizer.h"

/* Immutable, thread-safe. About 16 bytes per byte of distinct prefixes: 8 MB for 151,936 tokens. */
typedef struct kt_vocabulary kt_vocabulary;

/* One token: its raw bytes (borrowed during the call). Special tokens are reached by their id in a
 * grammar only; a token without bytes is never allowed. */
typedef struct kt_vocabulary_token {
    const char *bytes;
    size_t size;
    bool special;
} kt_vocabulary_token;

/* From n tokens, or from a tokenizer (borrowed during the call). ends[n_ends]: ids that end the
 * text, allowed exactly where it is complete. Ids outside of the vocabulary are KT_E_INVALID. */
kt_status kt_vocabulary_create(const kt_vocabulary_token *tokens, int32_t n, const int32_t *ends,
                               size_t n_ends, kt_vocabulary **out, kt_err *err);
kt_status kt_vocabulary_from_tokenizer(const kt_tokenizer *t, const int32_t *ends, size_t n_ends,
                                       kt_vocabulary **out, kt_err *err);
void kt_vocabulary_destroy(kt_vocabulary *v);

int32_t kt_vocabulary_size(const kt_vocabulary *v); /* ids are 0 ... size - 1 */
size_t kt_vocabulary_words(const kt_vocabulary *v); /* of a mask: (size + 63) / 64 */

#endif
