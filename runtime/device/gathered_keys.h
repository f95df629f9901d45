/* Attention over keys that are brought together first, on a device: what ATTEND_ENTRIES and
 * ATTEND_BLOCKS share. Rows are gathered some at a time, to scratch, where the keys of a row are
 * pages of their own for the kernels of attention: each key is read and written once more than
 * where it lies in order. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_GATHERED_KEYS_H
#define KT_RUNTIME_GATHERED_KEYS_H

#include "kernels/cuda/gather_calls.h"
#include "runtime/device/device_attn.h"
#include "runtime/device/row_code.h"

/* Entries of attn_gather.cu. */
enum { KT_GATHER_ENTRIES = 0, KT_GATHER_BLOCKS, KT_GATHER_RING };

/* Keys that a row of the span at this position meets; 0 = it goes another way. */
typedef int64_t kt_gathered_keys(const kt_node *n, const kt_device_span *span, int64_t position);

/* Layers that are alike share one. */
typedef struct kt_device_gather {
    kt_attn_shape shape;
    kt_device_attn_way way;
    kt_row_code code;
    int64_t most;         /* keys of a row, whole pages */
    int64_t rows;         /* gathered at a time, at most */
    const uint32_t *page; /* device: 0, 1 .. */
    kt_attn_tile *host_tile;
    int32_t *host_row, *host_last; /* [max_rows] */
    /* Of the current step: numbers, then lists of the device. */
    uint64_t step;
    bool has_lists;
    int64_t n, tiles; /* gathered rows; tiles of each */
    const kt_attn_tile *tile;
    const int32_t *row, *last;
} kt_device_gather;

/* Why nothing of this shape can run on the target, or NULL. */
const char *kt_device_gather_refuse(const kt_device_ask *ask, const kt_attn_shape *shape);
/* For rows of at most `most` keys; asks for scratch. */
kt_status kt_device_gather_make(kt_device_step *d, const kt_attn_shape *shape, int64_t most,
                                kt_device_gather **out, kt_err *err);

/* What gathers: puts a launch of attn_gather for these rows, whose longest has `longest` keys. */
typedef kt_status kt_gather_put(kt_device_node *n, const kt_device_gather *g, const kt_gathered *to,
                                int64_t longest, kt_err *err);
/* Launches for all rows of the step that have keys. sink: device [heads], or NULL. */
kt_status kt_device_gather_attend(kt_device_node *n, kt_device_gather *g, kt_gathered_keys *keys,
                                  kt_gather_put *put, const float *sink, kt_err *err);

/* Where the values of gathered rows go, and their scales, if they are not the keys. */
uint8_t *kt_gathered_values(const kt_device_gather *g, const kt_gathered *to);
float *kt_gathered_value_scales(const kt_device_gather *g, const kt_gathered *to);
/* Blocks of threads for so many keys. */
int kt_gather_grid(const kt_device_gather *g, int64_t keys);

#endif
