/* Which layers lie on which of several devices: runs of neighbours, so that one value crosses at
 * each cut, behind an event of the device before. The devices have one target. Each keeps the keys,
 * values and states of its own layers, and has its own mailbox, its own buffers and its own link for
 * the experts of these layers that cross or move.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LAYER_CUT_H
#define KT_RUNTIME_LAYER_CUT_H

#include "dispatch/device/device_word.h"
#include "runtime/device/device_op.h"

typedef struct kt_layer_cut_request {
    const kt_device_ask *ask;   /* borrowed, as all below; its devices are not read */
    int n;                      /* devices, 1 to KT_DEVICES_MOST */
    const uint64_t *free_bytes; /* [n] */
    const char *split;          /* "3,1": shares of the layers' bytes; NULL = as free_bytes */
    double expert_part;         /* of a layer's experts that are to lie there, 0 to 1 */
} kt_layer_cut_request;

/* first: [n] the first layer of each device, the first of them 0. A layer's bytes are its dense
 * weights, a context of its keys and values, and so many of its experts; the head counts as the
 * last layer. Layers that read what another one keeps or picked stay with it, and every device has
 * one at least. KT_E_INVALID: a split of other than n positive numbers; KT_E_UNSUPPORTED: more
 * devices than there are places to cut. Thread-safe. */
kt_status kt_layer_cut_make(const kt_layer_cut_request *request, int *first, kt_err *err);

#endif
