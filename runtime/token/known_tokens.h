/* Is a tokenizer the one that a model was published with? SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KNOWN_TOKENS_H
#define KT_RUNTIME_KNOWN_TOKENS_H

#include "dispatch/model/family.h"
#include "runtime/token/tokenizer.h"

/* A model with `vocab` rows in its embedding can read every id of the tokenizer; else
 * KT_E_MISMATCH. A smaller tokenizer is usual: models pad their vocabulary. */
kt_status kt_tokenizer_fits(const kt_tokenizer *t, int64_t vocab, kt_err *err);

/* Files carry no hash of their own, so vocabulary size and ids of the family's known tokens are
 * made into one, and compared with what they should be. KT_E_MISMATCH names both digests and the
 * first token that differs. Then the check text's hash (check_text.h), where one is published: the
 * message has both. KT_OK where no token of a vocabulary of that size is known: that
 * model is somebody's own. */
kt_status kt_tokenizer_check(const kt_tokenizer *t, const kt_family *family, int64_t vocab,
                             kt_err *err);

#endif
