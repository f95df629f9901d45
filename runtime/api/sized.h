/* Structures of the public API that may grow. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SIZED_H
#define KT_RUNTIME_SIZED_H

#include <string.h>

#include "base/err.h"

/* Copy what was found, `bytes` of a structure as this library knows it, into the caller's, whose
 * first member says how much of it the caller knows. */
static inline kt_status kt_sized_give(void *out, const void *found, size_t bytes, const char *name,
                                      kt_err *err) {
    size_t size;

    memcpy(&size, out, sizeof size);
    if (size <= sizeof size)
        return kt_fail(err, KT_E_INVALID, "%s: size is %zu, expected sizeof(%s)", name, size, name);
    if (size < bytes) bytes = size;
    memcpy((char *)out + sizeof size, (const char *)found + sizeof size, bytes - sizeof size);
    return KT_OK;
}

/* The caller's structure as this library knows it: what the caller does not know stays as `into`
 * has it. */
static inline kt_status kt_sized_take(void *into, size_t bytes, const void *from, const char *name,
                                      kt_err *err) {
    size_t size;

    memcpy(&size, from, sizeof size);
    if (size <= sizeof size)
        return kt_fail(err, KT_E_INVALID, "%s: size is %zu, expected sizeof(%s)", name, size, name);
    memcpy(into, from, size < bytes ? size : bytes);
    return KT_OK;
}

#endif
