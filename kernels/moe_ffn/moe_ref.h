/* The expert feed-forward in double, and how far a correct variant may be from it.
 *
 * The chain is checked link by link, since encoding h is a step function: h against silu(gate) * up
 * within the bound plus half an encoding step, then the output against down * (the h that was
 * written). Chained together for a whole layer, the steps' half widths go through |down|.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_MOE_REF_H
#define KT_KERNELS_MOE_REF_H

#include "kernels/gemm/gemm_ref.h"
#include "kt/variant.h"

/* A reference value and how far a correct variant may be from it. */
typedef struct kt_ref_value {
    double value, bound;
} kt_ref_value;

/* What happens to the sums of gate and up: biases, then the rule. */
typedef struct kt_moe_ending {
    kt_glu_rule glu;
    double gate_bias, up_bias;
} kt_moe_ending;

/* h = glu(gate + bias, up + bias) before it is encoded. */
kt_ref_value kt_moe_ref_h(const kt_problem *problem, kt_numerics numerics, const kt_ref_sum *gate,
                          const kt_ref_sum *up, const kt_moe_ending *ending);

/* The same after encoding and decoding, for one activation group of 32: bounds grow by what the
 * encoding may lose. */
void kt_moe_ref_encode(kt_act_format acts, kt_ref_value h[32]);

/* sum_j down_j h_j for a row of down, with the bounds of h carried along. sum is that of kt_gemm_ref
 * for the row; w_row the decoded row [problem->n]. */
kt_ref_value kt_moe_ref_down(const kt_problem *problem, kt_numerics numerics, const kt_ref_sum *sum,
                             const double *w_row, const kt_ref_value *h);

/* down + bias in f32; nothing when the bias is 0. */
kt_ref_value kt_moe_ref_bias(kt_ref_value down, double bias);

/* old + route_weight * down in f32. */
kt_ref_value kt_moe_ref_add(double old, double route_weight, kt_ref_value down);

/* The problem of one of the two matrix products inside the expert, for kt_gemm_bound. */
kt_problem kt_moe_gate_up_problem(const kt_problem *problem);
kt_problem kt_moe_down_problem(const kt_problem *problem);

#endif
