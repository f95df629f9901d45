/* How fast a model can be at most on a machine whose ceilings were measured: the roofline, not a
 * promise. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SPEED_BOUND_H
#define KT_RUNTIME_SPEED_BOUND_H

#include "dispatch/topology/topology.h"
#include "runtime/model/model_plan.h"

typedef struct kt_speed_bound {
    double decode_bytes;  /* read for a token at that context: its experts, all else that is
                             multiplied, cache */
    double decode_tps;    /* tokens per second, one sequence */
    double prefill_ops;   /* of a step of plan->max_rows tokens, two for a multiply-add */
    double prefill_bytes; /* read for it */
    double prefill_tps;
} kt_speed_bound;

/* decode: bytes / read stream of the plan's threads. Prefill: the longer of operations / peak of
 * the instructions that the planned variants use, and bytes / read stream; attention over half of
 * the context. */
kt_status kt_speed_bound_count(const kt_model_plan *plan, int64_t context,
                               const kt_ceilings *ceilings, kt_speed_bound *out, kt_err *err);

#endif
