/* Correctness gate of expert feed-forward variants: run before any timing, and by the tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_MOE_GATE_H
#define KT_KERNELS_MOE_GATE_H

#include "kernels/formats/gate_inputs.h"

/* Check one variant with one configuration on one expert (problem->m >= 1 rows, scattered over a few
 * more tokens) with adversarial inputs from seed. The caller has checked the variant's ISA. Demands:
 *   - h within the bound of silu(gate) * up plus half an encoding step, its groups well-formed (scale
 *     of the largest magnitude, largest code 127, compensation exact);
 *   - the same of h for the other kinds of kt_glu, with biases;
 *   - out within the bound of old + route_weight * (down . h) for the h that was written, and with a
 *     bias of down;
 *   - the same bits for h and out whole or by panels, from a second run, and, unless the variant is
 *     KT_BITS_UNSTABLE, for a row alone;
 *   - no byte touched besides these, none read past the end of any input.
 * Errors as kt_gemm_gate. report may be NULL. */
kt_status kt_moe_gate(const kt_variant *variant, const kt_config *config, const kt_problem *problem,
                      uint64_t seed, kt_gate_report *report, kt_err *err);

/* The same in parts, for walking many m and configurations over one set of inputs: problem->m is the
 * most rows; check with 1 <= m <= that. sums (may be NULL) accumulate over checks. */
typedef struct kt_moe_case kt_moe_case;

kt_status kt_moe_case_create(const kt_problem *problem, uint64_t seed, kt_moe_case **out,
                             kt_err *err);
void kt_moe_case_destroy(kt_moe_case *c);
kt_status kt_moe_case_check(kt_moe_case *c, const kt_variant *variant, const kt_config *config,
                            int64_t m, kt_gate_sums *sums, kt_err *err);
/* What the variant makes of the first m rows, both halves in turn: out f32 [m, k], row i of the call's
 * row i, for comparing variants with each other. Unchanged on error. */
kt_status kt_moe_case_rows(kt_moe_case *c, const kt_variant *variant, const kt_config *config,
                           int64_t m, float *out, kt_err *err);

#endif
