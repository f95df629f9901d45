/* Nodes between a product and attention (RMS_HEADS, ROPE, KEEP) that follow each other, by one
 * launch of rows_heads.cu: each alone takes as long as starting it. The results are the same bits.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_HEADS_H
#define KT_RUNTIME_DEVICE_HEADS_H

#include "kernels/cuda/row_calls.h"
#include "runtime/device/device_op.h"

/* Of a step whose nodes are set and whose ops have not been asked to get ready: two nodes or more,
 * one behind the other, get one op, which works for all of them when the first is run. A value's
 * heads are normed, then rotated, then kept; what comes in another order, or would be a fourth
 * value, begins the next launch. */
void kt_device_heads_join(kt_device_step *s);

/* Of a KEEP: where keys (which = 0) or values (1) go; the format of pages, as kernels count. */
kt_kept_heads kt_device_kept_heads(const kt_device_node *n, int which);
int32_t kt_device_kept_format(const kt_device_step *s);

#endif
