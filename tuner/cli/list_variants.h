/* The variants of this build, for people (grouped by operation, in 80 columns) or as JSON.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_LIST_VARIANTS_H
#define KT_TUNER_LIST_VARIANTS_H

#include <stdbool.h>

#include "dispatch/registry/registry.h"

/* Borrowed texts; NULL = any. */
typedef struct kt_variant_filter {
    const char *op, *weights, *isa;
} kt_variant_filter;

/* why_invalid: also those that cannot run here or were not built, and cells of format and instruction set
 * without a kernel, with the reason. KT_E_INVALID, and nothing printed, when a word of the filter is
 * unknown: the message lists those that are. */
kt_status kt_list_variants(const kt_registry *registry, const kt_variant_filter *filter,
                           bool why_invalid, bool json, kt_err *err);

/* Which weight format has a kernel on which instruction set, or why none: a Markdown table, or every cell as
 * JSON ("refused" is empty where there is one). */
void kt_list_matrix(bool json);

#endif
