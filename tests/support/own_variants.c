/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/own_variants.h"

#include <criterion/criterion.h>
#include <stdlib.h>

kt_registry *kt_test_own_variants(kt_isa isa) {
    const kt_variant **own = malloc(kt_builtin_variant_count * sizeof *own);
    kt_registry *registry;
    kt_err err = {0};
    size_t n = 0;

    cr_assert_not_null(own);
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (!kt_builtin_variants[i]->usable) own[n++] = kt_builtin_variants[i];
    cr_assert_eq(kt_registry_create(own, n, isa, &registry, &err), KT_OK, "%s", err.message);
    free(own);
    return registry;
}
