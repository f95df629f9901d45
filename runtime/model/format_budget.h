/* One of several encodings for each of many weights, for least error within a number of bytes.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FORMAT_BUDGET_H
#define KT_RUNTIME_FORMAT_BUDGET_H

#include <stddef.h>

#include "kt/status.h"

typedef struct kt_budget_option {
    size_t bytes;
    double error; /* >= 0; those of all weights are added up */
} kt_budget_option;

typedef struct kt_budget_item {
    const kt_budget_option *options; /* borrowed; in any order */
    int n_options;                   /* at least 1 */
    int taken;                       /* out: an index of options */
} kt_budget_item;

/* Bytes of all items in their smallest options; SIZE_MAX when that is too large to count. */
size_t kt_format_budget_least(const kt_budget_item *items, int n_items);

/* Choose: *bytes, at most `budget`, are those of the options taken. Every item begins with its
 * smallest option, and the budget then goes to whichever step saves most error per byte, among the
 * options on the lower convex hull of error over bytes. That is the best of all choices for the
 * bytes that it takes, up to the one step that did not fit (the Lagrangian bound of a knapsack with
 * multiple choices); items without that step go on with theirs. The same input gives the same
 * choice. KT_E_INVALID: the smallest options take more than the budget. */
kt_status kt_format_budget_choose(kt_budget_item *items, int n_items, size_t budget, size_t *bytes,
                                  kt_err *err);

#endif
