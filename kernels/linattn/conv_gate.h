/* Correctness gate of the causal convolution. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_CONV_GATE_H
#define KT_KERNELS_CONV_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows after a state that is not zero, against kt_conv_ref; the state that is left must
 * be the last inputs; row by row, in place and a part of the channels at a time must repeat the
 * bits. */
kt_status kt_conv_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
