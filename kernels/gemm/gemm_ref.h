/* The dense GEMM in double, and how far a correct variant may be from it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GEMM_REF_H
#define KT_KERNELS_GEMM_REF_H

#include "kt/variant.h"

/* One output of the reference and what its bound is computed from. */
typedef struct kt_ref_sum {
    double value;     /* sum_k a_k w_k */
    double magnitude; /* sum_k |a_k w_k|, |w_k| taken over the terms of w_k (kt_format.terms_row) */
    /* For variants that round weights again (kernels/formats/requant8.h; 0 where it is not defined): what
     * that may move the value by, and the most that it moves one weight. */
    double moved, move_max;
    /* For variants that open weights to bfloat16: no term of a weight of the row is larger; 0 of
     * floats. */
    double w_top;
    double a_max, w_sum; /* max_k |a_k|, sum_k |w_k|: for variants that round activations again */
} kt_ref_sum;

/* c[i, j] = sum_k a[i, k] * w[j, k], j < w->n, rows of c w->n apart. a holds decoded rows (doubles,
 * w->k apart: kt_act_decode_row), so the reference sees exactly the values the kernels see.
 * w_row is scratch of w->k doubles. */
void kt_gemm_ref(const kt_matrix *w, const double *a, int64_t m, double *w_row, kt_ref_sum *c);

/* Largest |got - value| of a correct variant (derivation at the definition). */
double kt_gemm_bound(const kt_problem *problem, kt_numerics numerics, const kt_ref_sum *sum);

#endif
