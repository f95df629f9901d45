/* Correctness gate of router logits. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ROUTER_GATE_H
#define KT_KERNELS_ROUTER_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows, problem->n experts, length problem->k, weights as problem->weights says: against
 * kt_router_ref_row, and each row alone must give the bits it has in the batch. */
kt_status kt_router_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                         uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
