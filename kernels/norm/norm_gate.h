/* Correctness gate of RMSNorm and gates. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_NORM_GATE_H
#define KT_KERNELS_NORM_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows of problem->k floats (normal, heavy-tailed, tiny, large, zero), every
 * kt_norm_kind, out of place and in place, against kt_norm_ref_row. The report is that of
 * RMSNorm. */
kt_status kt_norm_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
