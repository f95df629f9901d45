/* What a table says of a device: kernels by rows, the experts' share, when prefill goes there.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_PLAN_DEVICE_H
#define KT_DISPATCH_PLAN_DEVICE_H

#include "dispatch/device/device.h"
#include "dispatch/device/device_choice.h"
#include "dispatch/table/table.h"

/* How the rows of a table became a ladder. */
typedef struct kt_device_advice {
    int n_used, n_ignored;
    char note[KT_ERR_SIZE]; /* the first that was ignored and why; "" = none */
} kt_device_advice;

/* Choices for the job by the table's rows of this very device, target, formats and sizes (of
 * experts: whatever their number here); between two m the boundary is their geometric mean. Rows
 * whose kernel is unknown here, refused or of another version, or whose default is the safer
 * choice, do not count. Without rows of at most 8, or of more, the default's choices stand there.
 * The table may be NULL; advice is added to. */
void kt_plan_device_ladder(const kt_table *table, const kt_device_facts *facts,
                           const kt_device_job *job, kt_device_ladder *out,
                           kt_device_advice *advice);

/* The part of a layer's experts that the device should have so that both sides end at the same
 * time, as the cell of the fewest tokens says: 0 to 1; -1 = the table does not say. `experts` is
 * their problem, m and acts are not looked at; threads those of the CPU. */
double kt_plan_device_share(const kt_table *table, const kt_device_facts *facts,
                            const kt_problem *experts, int threads);
/* Rows of a step from which on experts of the CPU are better streamed to the device; INT64_MAX =
 * never, -1 = the table does not say. */
int64_t kt_plan_device_offload(const kt_table *table, const kt_device_facts *facts,
                               const kt_problem *experts, int threads);
/* The same between the rows that were raced: where both sides take the same time, the CPU's being
 * in proportion to its rows and the link's always that of all experts. At most the rows of the
 * above, at least 1; INT64_MAX and -1 likewise. */
int64_t kt_plan_device_crossover(const kt_table *table, const kt_device_facts *facts,
                                 const kt_problem *experts, int threads);

#endif
