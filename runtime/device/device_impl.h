/* What the files of runtime/device share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_IMPL_H
#define KT_RUNTIME_DEVICE_IMPL_H

#include "dispatch/device/mailbox.h"
#include "runtime/device/device_run.h"
#include "runtime/device/expert_moves.h"
#include "runtime/model/packer.h"

/* Memory of both sides for what the host makes for a step, used from the beginning in each. */
typedef struct kt_device_room {
    uint8_t *host, *device;
    size_t bytes, used;
    struct kt_device_room *next; /* that was taken when this one was full */
} kt_device_room;

/* A vector, router or table that was asked for. */
typedef struct kt_device_small_weight {
    const void *at;
    kt_weight_format format;
    bool is_loaded;
} kt_device_small_weight;

/* A matrix of an expert on the device, and the stored bytes it was made of. */
typedef struct kt_device_twin {
    const uint8_t *stored, *at;
    const kt_format *format;
    int64_t n, k;
} kt_device_twin;

#define KT_DEVICE_TWINS 64

struct kt_device_home {
    const kt_device_setup *setup; /* while creating */
    const kt_step *host;
    const kt_placement *placement;
    kt_device_node *node; /* [nodes]; op NULL = not of this device */
    kt_arena arena;
    float *values;
    kt_device_room room;
    kt_device_event *marked;
    const kt_states *states;                       /* the host's, or NULL */
    kt_kept_elsewhere before_pages, before_states; /* of the device before this one, told first */
    size_t page_at; /* where this device's part of a page begins in the host's copy */
    const kt_device_code *rows_copy;

    /* Routing and sums of the host, pinned. */
    int32_t *host_id, *host_device_id;
    float *host_weight, *host_sum, *device_sum;
    int64_t most_slots, hidden;
    kt_mailbox *mail; /* NULL = steps are not put at once */

    /* Loading. */
    kt_packer packer;              /* finds the tensors; its staging is not used */
    kt_device_small_weight *small; /* [weights] */
    uint8_t *stage[2];             /* pinned, filled in turn */
    size_t stage_bytes;
    kt_device_event *staged[2];
    int next_stage;
    kt_device_twin twins[KT_DEVICE_TWINS];
    int n_twins;

    kt_expert_stream *stream; /* NULL = nothing crosses */
    kt_expert_moves *moves;   /* NULL = experts stay where they are */
    kt_err unpinned;          /* why the experts of the host could not be pinned */

    size_t scratch_bytes;
    int64_t logit_rows; /* that step.logits has room for */
    kt_device_bytes bytes;
    size_t *counted; /* part of bytes that what is taken now belongs to */
};

/* Device memory, counted. */
kt_status kt_device_home_take(kt_device_step *d, size_t bytes, void **out, kt_err *err);
/* Before and after the ops' init: sources of weights, and what they needed. */
kt_status kt_device_load_begin(kt_device_step *d, kt_err *err);
void kt_device_load_end(kt_device_step *d);
/* A mailbox for the step's segments, where the host has any and its values can be pinned. */
kt_status kt_device_mail_init(kt_device_step *d, kt_err *err);

#endif
