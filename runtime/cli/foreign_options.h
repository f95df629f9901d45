/* Options by the names that users of kt-kernel and SGLang bring along.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FOREIGN_OPTIONS_H
#define KT_RUNTIME_FOREIGN_OPTIONS_H

#include <stddef.h>

typedef struct kt_foreign_option {
    const char *name; /* without the dashes */
    const char *ours; /* the option of the same meaning, or NULL */
    const char *why;  /* else: why there is none, and what to do instead */
} kt_foreign_option;

/* The entry of a name of `size` bytes, or NULL: nobody's. */
const kt_foreign_option *kt_foreign_option_find(const char *name, size_t size);

#endif
