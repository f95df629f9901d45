/* Experts of the CPU that a device computes for one long step, and experts that move to it while
 * serving: their panels cross the link as they lie in the host's memory.
 *
 * A ring of buffers in the device's memory takes the panels of one group of experts each. Copies go
 * by KT_STREAM_UPLOAD, everything else by KT_STREAM_MAIN: a buffer is filled when the panels in it
 * have been turned to records, and turned when it has been filled; events say both. So the next
 * group crosses while this one is multiplied with. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_EXPERT_STREAM_H
#define KT_RUNTIME_EXPERT_STREAM_H

#include "runtime/device/device_op.h"
#include "runtime/device/stream_plan.h"
#include "runtime/model/weights.h"

typedef struct kt_expert_stream kt_expert_stream;

/* For kt_device_step_create: buffers and code, and the panels of the host pinned. Everything ends
 * with the step; plan and weights are borrowed as long. *out is NULL where the plan has no group, or
 * no expert of this device's layers crosses.
 * note: why copies are slower than they could be (memory that cannot be pinned), else "". */
kt_status kt_expert_stream_create(kt_device_step *d, const kt_stream_plan *plan,
                                  const kt_weights *weights, kt_expert_stream **out, kt_err *note,
                                  kt_err *err);

/* Are steps of so many rows long enough for any weight's experts? s may be NULL: no. */
bool kt_expert_stream_is_for(const kt_expert_stream *s, int64_t rows);
/* Is the step that was begun long enough? s may be NULL: no. */
bool kt_expert_stream_wants(const kt_expert_stream *s, int weight);

/* Chooses by the host's routing of the step that was begun, expert_id [rows, slots], and puts
 * copies and launches: the sum of the chosen experts is added to the node's out, where their rows'
 * weights are the step's route_weight. The host must have waited for what was put before the last
 * routing. *lent: [experts] which ones, until the next call; NULL = none. place: [experts] at least
 * 0 for those that the device has. */
kt_status kt_expert_stream_put(kt_expert_stream *s, const kt_device_node *n, const int32_t *place,
                               const int32_t *expert_id, const bool **lent, kt_err *err);

/* One expert of the host to a place among those that lie on the device, behind the back of
 * KT_STREAM_MAIN, in which nothing may use that place meanwhile: `done` is recorded when it is
 * there. to: the records of all places. */
kt_status kt_expert_stream_move(kt_expert_stream *s, int weight, int32_t expert, int64_t place,
                                const kt_device_matrices to[3], kt_device_event *done, kt_err *err);

#endif
