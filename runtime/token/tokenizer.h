/* Tokenizer: text <-> token ids. The interface is the public one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TOKENIZER_H
#define KT_RUNTIME_TOKENIZER_H

#include "kt/tokenizer.h"

/* A vocabulary of n_tokens (256 to 2^24, KT_E_INVALID otherwise) for models whose weights are made
 * up, too: the 256 bytes, then a word of some letters with a space before it for each further id.
 * What is not one of those words is encoded byte by byte. *out is owned by the caller. */
kt_status kt_tokenizer_make_up(int64_t n_tokens, kt_tokenizer **out, kt_err *err);

/* The ids that the model's own tokenizer puts in front of every text, its BOS: *n of them,
 * borrowed, for most models none. kt_tokenizer_encode leaves them out, as templates of chats write
 * them. */
const int32_t *kt_tokenizer_first_ids(const kt_tokenizer *t, size_t *n);
/* Put them in front of *ids [*n], from kt_tokenizer_encode, unless they are there. On KT_E_NOMEM
 * nothing has changed. */
kt_status kt_tokenizer_begin(const kt_tokenizer *t, int32_t **ids, size_t *n, kt_err *err);

#endif
