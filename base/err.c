/* SPDX-License-Identifier: Apache-2.0 */
#include "base/err.h"

#include <stdio.h>
#include <string.h>

kt_status kt_fail(kt_err *err, kt_status status, const char *format, ...) {
    if (err) {
        va_list args;
        va_start(args, format);
        err->status = status;
        vsnprintf(err->message, sizeof err->message, format, args);
        va_end(args);
    }
    return status;
}

kt_status kt_fail_prefix(kt_err *err, kt_status status, const char *format, ...) {
    char prefix[KT_ERR_SIZE];
    size_t used;
    va_list args;

    if (!err) return status;
    va_start(args, format);
    vsnprintf(prefix, sizeof prefix, format, args);
    va_end(args);
    used = strlen(prefix);
    if (used + 3 < sizeof prefix) {
        size_t room = sizeof prefix - used - 3;
        size_t tail = strlen(err->message);
        if (tail > room) tail = room;
        memcpy(prefix + used, ": ", 2);
        memcpy(prefix + used + 2, err->message, tail);
        prefix[used + 2 + tail] = '\0';
    }
    memcpy(err->message, prefix, sizeof prefix);
    return err->status;
}

const char *kt_status_name(kt_status status) {
    static const char *const names[] = {
        "KT_OK",   "KT_E_INVALID",   "KT_E_FORMAT",   "KT_E_UNSUPPORTED", "KT_E_NOMEM",
        "KT_E_IO", "KT_E_NOT_FOUND", "KT_E_MISMATCH", "KT_E_CANCELLED",   "KT_E_INTERNAL"};
    size_t i = (size_t)status;
    return i < sizeof names / sizeof *names ? names[i] : "KT_E_UNKNOWN";
}
