/* Correctness gate of rotary embeddings. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROPE_GATE_H
#define KT_KERNELS_ROPE_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows of problem->n heads of problem->k floats, both pairings, whole and partial
 * rotation, positions spread from 0 to 10^6, against kt_rope_ref_row. */
kt_status kt_rope_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
