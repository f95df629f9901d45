/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/cli/verb.h"

#include <stdio.h>

int kt_verb_fail(const kt_err *err) {
    fprintf(stderr, "kttune: %s\n", err->message);
    switch (err->status) {
    case KT_E_INVALID: return KT_TUNE_USAGE;
    case KT_E_NOMEM: return KT_TUNE_RESOURCE;
    case KT_E_CANCELLED: return KT_TUNE_INTERRUPTED;
    default: return KT_TUNE_INTERNAL;
    }
}
