/* Filling kt_err and forwarding it. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_ERR_H
#define KT_BASE_ERR_H

#include <stdarg.h>

#include "kt/status.h"

/* Write status and the formatted message into err (may be NULL) and return status. */
kt_status kt_fail(kt_err *err, kt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Put "prefix: " in front of the message already in err (may be NULL); returns err's status or
 * `status` when err is NULL. For adding the file name at the outermost level. */
kt_status kt_fail_prefix(kt_err *err, kt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Forward an error where there is nothing to release. */
#define KT_TRY(expr)                                        \
    do {                                                    \
        kt_status kt_try_status_ = (expr);                  \
        if (kt_try_status_ != KT_OK) return kt_try_status_; \
    } while (0)

#endif
