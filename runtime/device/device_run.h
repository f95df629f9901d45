/* A device's part of the steps of a model: its memory, what crosses, its operations in order. The
 * caller (runtime/exec/segments.c) knows which segment is next; here is how it is done.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_RUN_H
#define KT_RUNTIME_DEVICE_RUN_H

#include "dispatch/device/mailbox.h"
#include "runtime/device/stream_plan.h"
#include "runtime/exec/place.h"
#include "runtime/exec/step.h"

typedef struct kt_device_setup {
    kt_device *device;               /* transferred, also when creating fails */
    int number;                      /* of several devices, which */
    const kt_step *step;             /* borrowed: sizes, where values and states lie, tables */
    const kt_placement *placement;   /* borrowed */
    const kt_checkpoint *checkpoint; /* used during the call */
    const kt_checkpoint *importance; /* likewise; or NULL */
    bool allow_nonfinite;
    const kt_table *table;        /* used during the call: whose rows choose kernels; or NULL */
    bool is_exact;                /* no rows in 8 bits */
    bool has_twins;               /* experts may have the same stored bytes: one is loaded, others
                                     are copies of it */
    kt_pool *pool;                /* used during the call */
    const kt_stream_plan *stream; /* borrowed: which experts of the CPU may cross; NULL = none */
    const kt_weights *weights;    /* borrowed: the host's, where they lie */
    int64_t logit_rows;       /* that are usually asked for at once; more are taken when they are */
    int (*cancel)(void *arg); /* NULL, or asked between nodes: nonzero = stop (KT_E_CANCELLED) */
    void *cancel_arg;
} kt_device_setup;

/* Bytes on a device, by what they are for, in the order in which they are taken. */
typedef struct kt_device_bytes {
    size_t dense, experts, working, cache, staging;
} kt_device_bytes;

/* Takes memory for values and tables, asks every op that the device runs to get ready and loads its
 * weights. KT_E_NOMEM with what was asked for and what is free. */
kt_status kt_device_step_create(const kt_device_setup *setup, kt_device_step **out, kt_err *err);
void kt_device_step_destroy(kt_device_step *d); /* accepts NULL; closes the device */
const char *kt_device_step_name(const kt_device_step *d);
kt_device_bytes kt_device_step_bytes(const kt_device_step *d);
/* Why copies of experts are slower than the link (their memory could not be pinned), or "". */
const char *kt_device_step_unpinned(const kt_device_step *d);
/* How many kernels the table chose, and what of it was ignored. */
const kt_device_advice *kt_device_step_advice(const kt_device_step *d);

/* Memory for keys and values of the planes and for states that the device keeps, as many as the
 * host's pools have; once. Both pools then tell it of copies. */
kt_status kt_device_step_keep(kt_device_step *d, kt_page_pool *pages, kt_states *states,
                              kt_err *err);
/* Memory of the host that pages cross to and from is pinned, where that can be: copies are slower
 * without. It must stay until the step is destroyed. What one device pins is so for all of its
 * class. */
void kt_device_step_pin(kt_device_step *d, void *memory, size_t bytes);

/* ---- one step ---- */

/* Tables of the step's rows go to the device. Nothing of the step before may be under way. */
kt_status kt_device_step_begin(kt_device_step *d, const kt_step *s, kt_err *err);
/* Rows of a whole value; ids and weights [rows, slots] of the last routing, to the experts of a
 * node, or back. The host's memory is used until the work has been waited for. */
kt_status kt_device_step_up(kt_device_step *d, int value, kt_err *err);
kt_status kt_device_step_down(kt_device_step *d, int value, kt_err *err);
/* What is put from now on comes behind all that another device was given; the host does not wait.
 * What either keeps (kt_device_step_gather) is put. */
kt_status kt_device_step_after(kt_device_step *d, kt_device_step *from, kt_err *err);
/* The same, and then the rows of a value from there. */
kt_status kt_device_step_across(kt_device_step *d, kt_device_step *from, int value, kt_err *err);
kt_status kt_device_step_route_up(kt_device_step *d, int node, int64_t slots, kt_err *err);
kt_status kt_device_step_route_down(kt_device_step *d, int64_t slots, kt_err *err);
/* Reach waits for what was put before the mark; later work goes on meanwhile. */
kt_status kt_device_step_mark(kt_device_step *d, kt_err *err);
kt_status kt_device_step_reach(kt_device_step *d, kt_err *err);
/* Put the launches of a node. */
kt_status kt_device_step_run(kt_device_step *d, int node, kt_err *err);
/* Where experts move: between steps, what has arrived is used and what is worth it begins. Then
 * kt_device_step_wait waits for the step alone. How many have arrived so far. */
kt_status kt_device_step_settle(kt_device_step *d, kt_err *err);
int64_t kt_device_step_moved(const kt_device_step *d);
/* Of a node on both sides: the host has its routing. */
void kt_device_step_note(kt_device_step *d, int node);
/* Of a node on both sides whose routing the host has: in a step that is long enough, experts of the
 * CPU cross and the device adds theirs to what kt_device_step_run gave. *lent: [experts] which,
 * until the next call; NULL = none. */
bool kt_device_step_lends(const kt_device_step *d, int node);
/* Would any node's experts cross in a step of so many rows? */
bool kt_device_step_lends_any(const kt_device_step *d, int64_t rows);
kt_status kt_device_step_lend(kt_device_step *d, int node, const bool **lent, kt_err *err);
/* The host's place for one side's sum of a node on both sides: f32 [rows, hidden]. Down: the
 * device's sum goes there. Up: what is there is added to the node's out on the device. */
float *kt_device_step_sum(const kt_device_step *d);
kt_status kt_device_step_sum_down(kt_device_step *d, kt_err *err);
kt_status kt_device_step_sum_up(kt_device_step *d, int node, kt_err *err);
/* Rows of the residual (node -1) or of a node's out to hidden[index] of the step. */
kt_status kt_device_step_hidden(kt_device_step *d, int node, int64_t index, kt_err *err);
kt_status kt_device_step_logits(kt_device_step *d, kt_err *err);
/* ---- steps in few pieces ---- */

/* What is put from now on is kept, and goes to the device when the host waits for it or at `put`:
 * pieces that come again are replayed by a graph (kt_device_gather_begin, also for `eager`). */
kt_status kt_device_step_gather(kt_device_step *d, bool eager, kt_err *err);
kt_status kt_device_step_put(kt_device_step *d, kt_err *err);
kt_device_gathered kt_device_step_gathered(const kt_device_step *d);
/* Through which the host and the device hand each other their parts of a step that was put whole;
 * NULL: steps are put part by part. Borrowed. */
kt_mailbox *kt_device_step_mailbox(const kt_device_step *d);
/* From now on there is none: the device cannot. */
void kt_device_step_no_mail(kt_device_step *d);
/* What the calls above copy, for letters and answers: rows of a value, a routing (how many spans
 * there are, at most KT_ROUTE_SPANS), a sum. Behind a routing that goes up the device's nodes read
 * `slots` of it, when the host has filled it in by kt_device_step_route_ready; a sum that has come
 * up is added to the node's out by kt_device_step_sum_add. */
enum { KT_ROUTE_SPANS = 3 };
kt_mail_span kt_device_step_value_span(const kt_device_step *d, int value, bool is_up);
int kt_device_step_route_up_spans(kt_device_step *d, int64_t slots, kt_mail_span *out);
int kt_device_step_route_down_spans(const kt_device_step *d, int64_t slots, kt_mail_span *out);
void kt_device_step_route_ready(kt_device_step *d, int node, int64_t slots);
kt_mail_span kt_device_step_sum_span(const kt_device_step *d, bool is_up);
kt_status kt_device_step_sum_add(kt_device_step *d, int node, kt_err *err);

/* All is done, whatever became of it. */
kt_status kt_device_step_wait(kt_device_step *d, kt_err *err);

#endif
