/* Whether experts of the CPU can cross the link to a device, and what that takes there, before
 * anything is loaded. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STREAM_PLAN_H
#define KT_RUNTIME_STREAM_PLAN_H

#include "runtime/device/device_op.h"
#include "runtime/device/stream_share.h"

struct kt_placement;

enum { KT_STREAM_RING = 2 }; /* buffers of panels: one is filled while another is used */

typedef struct kt_stream_plan {
    bool *weight; /* owned: [weights] experts of it can cross: their panels are p64 in one piece,
                           and there are records of their formats */
    int64_t from_rows;  /* of a step; INT64_MAX = no step is long enough */
    int64_t crossover;  /* of kt_stream_call */
    int percent;        /* likewise */
    int64_t group;      /* experts of a buffer; 0 = no buffers */
    size_t panel_bytes; /* of one expert, the largest: as it crosses, and as it is read there */
    size_t record_bytes;
    size_t bytes;  /* of each device that has buffers, all together */
    bool learns;   /* experts are moved while serving: buffers are there for that, too */
    char note[96]; /* why nothing crosses although something was asked for; "" = none */
} kt_stream_plan;

/* What is asked. `word` as parsed; rows: the table's crossover where word is auto (INT64_MAX =
 * never, -1 = it does not say); is_cut: experts lie in pieces over memory nodes. Finds out which
 * weights can cross, and sizes a buffer for them. KT_E_UNSUPPORTED: learns, but no expert can
 * move. */
typedef struct kt_stream_request {
    const kt_device_ask *ask;
    const kt_stream_word *word;
    int64_t rows;
    bool is_cut, allow_nonfinite, learns;
} kt_stream_request;

kt_status kt_stream_plan_make(const kt_stream_request *request, kt_stream_plan *out, kt_err *err);
void kt_stream_plan_deinit(kt_stream_plan *p); /* accepts a zeroed one */

/* "steps of 512 rows and more: experts of the CPU cross, up to 8 at once"; "no experts cross for
 * long steps: ..." where that was asked for; else "". */
char *kt_stream_plan_line(const kt_stream_plan *p, char *out, size_t out_bytes);

/* Is any node of a device's part on both sides whose experts can cross? Then it has buffers. */
bool kt_stream_plan_is_for(const kt_stream_plan *p, const kt_graph *graph,
                           const struct kt_placement *part);

/* Half as many experts in a buffer; false: there is one already. */
bool kt_stream_plan_shrink(kt_stream_plan *p, const kt_device_ask *ask);
/* Nothing crosses, for the reason given. */
void kt_stream_plan_drop(kt_stream_plan *p, const char *why);

#endif
