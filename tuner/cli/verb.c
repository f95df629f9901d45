/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/verb.h"

#include <stdio.h>

int kt_verb_fail(const kt_err *err) {
    fprintf(stderr, "kttune: %s\n", err->message);
    switch (err->status) {
    case KT_E_INVALID:
    case KT_E_NOT_FOUND:
    case KT_E_FORMAT:
    case KT_E_UNSUPPORTED: return KT_TUNE_USAGE; /* what was named cannot be worked on */
    case KT_E_NOMEM:
    case KT_E_IO:
    case KT_E_MISMATCH: return KT_TUNE_RESOURCE; /* a lock that another process holds */
    case KT_E_CANCELLED: return KT_TUNE_INTERRUPTED;
    default: return KT_TUNE_INTERNAL;
    }
}
