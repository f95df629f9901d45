/* What the two ways to run segments share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SEGMENTS_IMPL_H
#define KT_RUNTIME_SEGMENTS_IMPL_H

#include "dispatch/device/device_word.h"
#include "runtime/device/device_run.h"
#include "runtime/exec/segments.h"

typedef struct kt_segments_runner {
    kt_step *s;
    kt_device_step *d; /* of the segment */
    const kt_step_program *program;
    kt_pool *pool;
    const atomic_bool *stop;
    bool is_pending; /* work of the device that the host has not waited for */
    int layer;       /* whose beginning was seen */
} kt_segments_runner;

/* Of a segment that is put with others: the letter of each device before the host's part, and that
 * of its own one before the host adds the sum; 0 = none. */
typedef struct kt_segment_letters {
    int begin[KT_DEVICES_MOST], sum;
} kt_segment_letters;

/* Slots of the routing that an experts' node reads. */
int64_t kt_segments_slots(const kt_step *s, const kt_node *experts);
/* The experts' node of a segment that the last routing is copied for. */
int kt_segments_routed(const kt_step *s, const kt_segment *segment);
/* The host's phases of a segment. */
kt_status kt_segments_run_host(const kt_segments_runner *r, int segment, kt_err *err);
/* Ids of the experts that the CPU has, and does not lend (NULL = none), for a node on both
 * sides. */
void kt_segments_keep_cold(const kt_segments_runner *r, int node, const bool *lent);
/* The device's sum, which has come, is added to the node's out. */
void kt_segments_add_sum(const kt_segments_runner *r, int node);

/* Waits for all devices, whatever becomes of each; the first error is told. */
kt_status kt_segments_wait(const kt_step *s, kt_err *err);

/* May the step be put whole, with mailboxes? */
bool kt_segments_can_mail(const kt_step *s);
/* Run it so. KT_E_UNSUPPORTED: a device cannot; nothing was done. */
kt_status kt_segments_run_mail(kt_segments_runner *r, kt_err *err);

#endif
