/* Correctness gate of the indexer's scores. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_INDEX_GATE_H
#define KT_KERNELS_INDEX_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows over problem->context keys against kt_index_ref; rows one by one and keys in two
 * parts must repeat the bits. */
kt_status kt_index_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                        uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
