/* Tokenizer: text <-> token ids. The interface is the public one.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TOKENIZER_H
#define KT_RUNTIME_TOKENIZER_H

#include "kt/tokenizer.h"

/* A vocabulary of n_tokens (256 to 2^24, KT_E_INVALID otherwise) for models whose weights are made
 * up, too: the 256 bytes, then a word of some letters with a space before it for each further id.
 * What is not one of those words is encoded byte by byte. *out is owned by the caller. */
kt_status kt_tokenizer_make_up(int64_t n_tokens, kt_tokenizer **out, kt_err *err);

#endif
