/* Model families: what a checkpoint's config means and which tensors it has.
 * One file runtime/model/families/<name>.c defines `const kt_family kt_family_<name>`; the build
 * writes the table. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FAMILY_H
#define KT_RUNTIME_FAMILY_H

#include <stddef.h>

#include "base/json.h"
#include "kt/status.h"

typedef struct kt_family {
    const char *name; /* config.json "model_type" */
} kt_family;

extern const kt_family *const kt_builtin_families[];
extern const size_t kt_builtin_family_count;

#endif
