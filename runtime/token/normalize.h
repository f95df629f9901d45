/* Unicode normalisation of text before it is cut into pieces. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_NORMALIZE_H
#define KT_RUNTIME_NORMALIZE_H

#include <stdbool.h>
#include <stddef.h>

#include "kt/status.h"
#include "runtime/token/text.h"

typedef enum kt_normal_form {
    KT_NORMAL_NONE,
    KT_NORMAL_NFC,
    KT_NORMAL_NFD,
    KT_NORMAL_NFKC,
    KT_NORMAL_NFKD
} kt_normal_form;

/* Replace out by the normal form of well-formed UTF-8. Takes O(n log n) whatever the text. */
kt_status kt_normalize(kt_normal_form form, const char *s, size_t n, kt_text *out, kt_err *err);

/* True when s is certainly in that form already: then normalising can be left out. */
bool kt_normalize_is_plain(kt_normal_form form, const char *s, size_t n);

#endif
