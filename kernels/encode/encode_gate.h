/* Correctness gate of encoders: equal bits. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENCODE_GATE_H
#define KT_KERNELS_ENCODE_GATE_H

#include "kernels/formats/gate.h"
#include "kt/variant.h"

/* Encode problem->m rows of problem->k floats (normal, heavy-tailed, ties, zero, denormal, huge, not
 * finite) with v and with the reference; every byte of the rows, and of the padding between them,
 * must agree. problem->acts names the encoding. */
kt_status kt_encode_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                         uint64_t seed, kt_gate_report *report, kt_err *err);

/* One row of inputs of the kind `kind` modulo the number of kinds. */
void kt_encode_fill(float *x, int64_t k, int kind, uint64_t seed);

#endif
