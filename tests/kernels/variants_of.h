/* Parameters of tests that run once per variant of one op. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_VARIANTS_OF_H
#define KT_TESTS_VARIANTS_OF_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "base/cpu.h"
#include "kt/variant.h"

/* Indices into kt_builtin_variants (plain values: pointers do not survive into the test's process). */
static inline struct criterion_test_params kt_variants_of(kt_op op) {
    size_t *index = cr_malloc(sizeof *index * kt_builtin_variant_count), n = 0;
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op == op) index[n++] = i;
    return cr_make_param_array(size_t, index, n);
}

#endif
