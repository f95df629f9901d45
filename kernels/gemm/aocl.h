/* AMD's aocl_gemm, the low-precision GEMMs of AOCL-BLAS, found at run time.
 *
 * It is opened by name and never linked: builds of one machine serve others that lack it, and its symbols
 * share their names with those of plain BLIS. $KT_AOCL_LIBRARY (a path) goes before the usual names.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_GEMM_AOCL_H
#define KT_GEMM_AOCL_H

#include <stddef.h>
#include <stdint.h>

#include "kt/variant.h"

/* The library's structures, as 5.2 lays them out; members that we leave alone are pointers to nothing. */
enum { KT_AOCL_F32 = 0, KT_AOCL_BF16 = 1 };
typedef struct kt_aocl_factors { /* one per output, or per group and output */
    const void *values;
    int64_t length;
    int type;
} kt_aocl_factors;

typedef struct kt_aocl_groups { /* integer sums of a group times the factors of row and column */
    int64_t group, count;
    const kt_aocl_factors *a, *b;
    const void *a_zero, *b_zero;
} kt_aocl_groups;

typedef struct kt_aocl_expand { /* 4-bit weights to BF16 */
    const void *b_zero;
    const kt_aocl_factors *b;
    int64_t count, group;
} kt_aocl_expand;

typedef struct kt_aocl_steps {
    const void *sum, *eltwise, *bias, *matrix_add, *matrix_mul;
    int64_t count;
    const void *order;
    const kt_aocl_expand *expand;
    const kt_aocl_groups *groups;
    int64_t n_eltwise;
} kt_aocl_steps;

typedef struct kt_aocl_group_size {
    int64_t group;
} kt_aocl_group_size;

typedef size_t (*kt_aocl_bytes_fn)(char order, char trans, char which, int64_t k, int64_t n);
typedef size_t (*kt_aocl_bytes_grouped_fn)(char order, char trans, char which, int64_t k, int64_t n,
                                           kt_aocl_group_size *group);
typedef void (*kt_aocl_reorder_fn)(char order, char trans, char which, const void *in, void *out,
                                   int64_t k, int64_t n, int64_t ld);
typedef void (*kt_aocl_reorder_grouped_fn)(char order, char trans, char which, const void *in,
                                           void *out, int64_t k, int64_t n, int64_t ld,
                                           kt_aocl_group_size *group);
typedef void (*kt_aocl_int_fn)(char order, char trans_a, char trans_b, int64_t m, int64_t n,
                               int64_t k, int32_t alpha, const void *a, int64_t lda, char a_form,
                               const void *b, int64_t ldb, char b_form, int32_t beta, void *c,
                               int64_t ldc, const kt_aocl_steps *steps);
typedef void (*kt_aocl_float_fn)(char order, char trans_a, char trans_b, int64_t m, int64_t n,
                                 int64_t k, float alpha, const void *a, int64_t lda, char a_form,
                                 const void *b, int64_t ldb, char b_form, float beta, void *c,
                                 int64_t ldc, const kt_aocl_steps *steps);

typedef struct kt_aocl {
    void *library;
    void (*set_threads)(int64_t n);
    kt_aocl_bytes_fn u8s8_bytes, bf16_bytes, bf16s4_bytes;
    kt_aocl_bytes_grouped_fn grouped_bytes;
    kt_aocl_reorder_fn u8s8_reorder, bf16_reorder, bf16s4_reorder;
    kt_aocl_reorder_grouped_fn grouped_reorder;
    kt_aocl_int_fn u8s8s32, grouped;
    kt_aocl_float_fn bf16, bf16s4;
} kt_aocl;

/* Open the first of `names` (NULL at the end) that exists and check it: version 5.2 or newer 5.x, every
 * symbol of the interface, 64-bit integers. On failure out is zero and the message says what is wrong
 * with the last one that could be opened, or that none could. The caller never closes a good one: threads
 * of the library may outlive any user. */
kt_status kt_aocl_load(const char *const *names, kt_aocl *out, kt_err *why);

/* The library of this process, looked for once; NULL with the reason when there is none. Thread-safe. */
const kt_aocl *kt_aocl_find(kt_err *why);
kt_status kt_aocl_usable(kt_err *why); /* the same as a status */

/* Multiply 16 x 64 x 128 with the variant, whose other requirements are met, and compare with plain
 * integers: all values are integers times powers of two, so the result must be exact; where weights
 * are bytes, up to the ends of their range. For usable() of variants of GEMM. */
kt_status kt_lib_self_test(const char *library, const kt_variant *v, kt_weight_format weights,
                           kt_act_format acts, kt_err *why);

#endif
