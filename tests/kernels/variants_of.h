/* Parameters of tests that run once per variant of one op. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_VARIANTS_OF_H
#define KT_TESTS_VARIANTS_OF_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>
#include <string.h>

#include "base/cpu.h"
#include "kt/variant.h"

/* The one that KT_TEST_VARIANT names, if it is of the op: for faults planted in one alone. */
static inline const char *kt_variant_wanted(kt_op op) {
    const char *name = getenv("KT_TEST_VARIANT");
    for (size_t i = 0; name && i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op == op && strcmp(kt_builtin_variants[i]->name, name) == 0)
            return name;
    return NULL;
}

/* Indices into kt_builtin_variants (plain values: pointers do not survive into the test's
 * process). */
static inline struct criterion_test_params kt_variants_of(kt_op op) {
    size_t *index = cr_malloc(sizeof *index * kt_builtin_variant_count), n = 0;
    const char *wanted = kt_variant_wanted(op);
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op == op &&
            (!wanted || strcmp(kt_builtin_variants[i]->name, wanted) == 0))
            index[n++] = i;
    return cr_make_param_array(size_t, index, n);
}

#endif
