/* Correctness gate of the gated delta rule. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_DELTA_GATE_H
#define KT_KERNELS_DELTA_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows after a state that is not zero, with the gated norm and without: results and the
 * state that is left against kt_delta_ref. Heads in single calls must repeat the bits; and so must
 * rows in two calls: cut anywhere, or, of a variant of KT_BITS_UNSTABLE, where the position is a
 * multiple of its first parameter. */
kt_status kt_delta_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                        uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
