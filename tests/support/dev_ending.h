/* Endings of experts on a device, with biases, and what they make of gate and up in double.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_DEV_ENDING_H
#define KT_TESTS_DEV_ENDING_H

#include "base/rng.h"
#include "kernels/cuda/moe_calls.h"

typedef struct kt_test_ending {
    kt_dev_ending ending; /* its vectors are `memory` */
    float *memory;        /* NULL = no biases */
    int64_t n, k;
} kt_test_ending;

/* Which of the kinds of kt_glu, and whether there are biases, by seed: 0 is plain. */
void kt_test_ending_make(kt_test_ending *out, uint32_t seed, int64_t experts, int64_t n, int64_t k);
void kt_test_ending_drop(kt_test_ending *e);
/* h of output j before it is encoded, and how far a device may be from it that has gate and up
 * within d_gate and d_up (kernels/moe_ffn/moe_ref.c has the formula). */
double kt_test_ending_h(const kt_test_ending *e, int64_t expert, int64_t j, double gate,
                        double d_gate, double up, double d_up, double *bound);
/* The bias of down's output j; 0 without. */
double kt_test_ending_down(const kt_test_ending *e, int64_t expert, int64_t j);

#endif
