/* Correctness gate of dense GEMM variants: run before any timing, and by the tests.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GEMM_GATE_H
#define KT_KERNELS_GEMM_GATE_H

#include "kernels/formats/gate_inputs.h"

/* Check one variant with one configuration on one problem (m >= 1 rows) with adversarial inputs from
 * seed. The caller has checked the variant's ISA. On guarded buffers it runs the whole matrix, each
 * panel by itself, single rows, and accumulating, and demands:
 *   - every output within the computed bound of the double reference (gemm_ref.h);
 *   - the same bits whole or by panels, from a second run, and, unless the variant is KT_BITS_UNSTABLE,
 *     for a row alone;
 *   - no byte touched outside c[0..m-1][0..n-1], none read past the end of any input.
 * KT_E_MISMATCH with a message that repeats the case when a demand fails, KT_E_UNSUPPORTED when the
 * variant refuses the problem. A stray read past an input faults (SIGSEGV): run the gate of untrusted
 * variants in a child process. report (may be NULL) is filled as far as the gate got. */
kt_status kt_gemm_gate(const kt_variant *variant, const kt_config *config,
                       const kt_problem *problem, uint64_t seed, kt_gate_report *report,
                       kt_err *err);

/* The same in parts, for walking many m and configurations over one set of inputs and one reference:
 * problem->m is the most rows; check with 0 <= m <= that. sums (may be NULL)
 * accumulate over checks. */
typedef struct kt_gemm_case kt_gemm_case;

kt_status kt_gemm_case_create(const kt_problem *problem, uint64_t seed, kt_gemm_case **out,
                              kt_err *err);
void kt_gemm_case_destroy(kt_gemm_case *c);
kt_status kt_gemm_case_check(kt_gemm_case *c, const kt_variant *variant, const kt_config *config,
                             int64_t m, kt_gate_sums *sums, kt_err *err);
/* What the variant makes of the first m rows: out f32 [m, n], for comparing variants with each other.
 * Unchanged on error. */
kt_status kt_gemm_case_rows(kt_gemm_case *c, const kt_variant *variant, const kt_config *config,
                            int64_t m, float *out, kt_err *err);

#endif
