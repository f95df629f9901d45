/* Walking the built-in variants of one op with all their configurations.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_VARIANT_WALK_H
#define KT_TESTS_VARIANT_WALK_H

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "base/cpu.h"
#include "kt/variant.h"

/* Sanitizers look at code, not at numbers: under them each format meets a part of the shapes. */
#ifdef __SANITIZE_ADDRESS__
#define KT_SHAPE_STEP 3
#else
#define KT_SHAPE_STEP 1
#endif

/* Registry indices of an op's variants, in Criterion's memory. */
static inline size_t *variants_of(kt_op op, size_t *count) {
    size_t *index = cr_malloc(sizeof *index * (kt_builtin_variant_count + 1));
    *count = 0;
    for (size_t i = 0; i < kt_builtin_variant_count; i++)
        if (kt_builtin_variants[i]->op == op) index[(*count)++] = i;
    return index;
}

static inline int64_t config_count(const kt_variant *v) {
    int64_t count = 1;
    for (int i = 0; i < v->n_params; i++) count *= v->params[i].count;
    return count;
}

/* The first configuration meets all numbers of rows, the others half of them each: neighbours of one
 * parameter the other half. */
static inline int config_takes_row(int64_t c, size_t i) {
    return c == 0 || ((int64_t)i + c) % 2 == 0;
}

static inline kt_config config_at(const kt_variant *v, int64_t c) {
    kt_config config = {{0}};
    for (int i = 0; i < v->n_params; c /= v->params[i].count, i++)
        config.value[i] = v->params[i].values[c % v->params[i].count];
    return config;
}

#endif
