/* Correctness gate of attention. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_GATE_H
#define KT_KERNELS_ATTN_GATE_H

#include "kernels/formats/gate.h"

/* problem->m rows that end at position problem->context - 1, n heads of size k over kv_heads:
 * every result against kt_attn_ref; and the last row alone, and its chunks one by one, must
 * repeat the bits. Where problem->v is set and not over k, once more with the values at the
 * beginning of the keys' rows. Odd seeds draw keys that make scores up to some hundreds (one key
 * takes nearly all the weight). */
kt_status kt_attn_gate(const kt_variant *v, const kt_config *config, const kt_problem *problem,
                       uint64_t seed, kt_gate_report *report, kt_err *err);

#endif
