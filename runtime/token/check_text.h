/* The published fingerprint of a tokenizer: the SHA-256 of the ids of a check text.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_CHECK_TEXT_H
#define KT_RUNTIME_CHECK_TEXT_H

#include "runtime/token/tokenizer.h"

const char *kt_check_text(void); /* a literal; it holds no zero byte */
size_t kt_check_text_bytes(void);

/* The SHA-256 of "[1, 2, 3]", the ids that the tokenizer gives the check text, as 64 lower-case
 * digits. before: n_before ids that the published tokenizer puts first (a beginning-of-sequence
 * token). KT_E_NOMEM without memory. Thread-safe. */
kt_status kt_check_text_hash(const kt_tokenizer *t, const int32_t *before, int n_before,
                             char hex[65], kt_err *err);

#endif
