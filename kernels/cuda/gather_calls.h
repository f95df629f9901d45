/* Parameters of the kernels that make the keys of attention out of what a model keeps: entries of
 * windows, the last tokens, picked blocks. The same for hosts and for devices. Pointers are the
 * device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_GATHER_CALLS_H
#define KT_CUDA_GATHER_CALLS_H

#include "kernels/cuda/row_calls.h"

/* ---- entry_pool ---- */

/* Windows of `ratio` tokens become entries, channel by channel, with the formulas and the state of
 * kernels/compress/entries.h: kt_pool_call of it for all spans of a batch. */
typedef struct kt_entry_pool {
    const float *values, *gates; /* rows of halves * dim */
    const float *ape;            /* [ratio, halves * dim] */
    float *out;                  /* rows of dim: written where a window ends */
    const kt_state_span *spans;
    float *states;  /* of this node: [halves][3][dim] each */
    int64_t stride; /* floats from a sequence's states to the next one's */
    int32_t ldv, ldg, ldo, dim, halves, ratio;
} kt_entry_pool;

/* ---- attn_gather ---- */

/* Where gathered rows go: key i of the n-th gathered row, of kv head h, is row
 * (h * rows + n) * most + i of `keys`, `row_bytes` long, with its scale beside it. `most` is a
 * multiple of 64, so that 64 keys are a page of attention's (attn_calls.h). */
typedef struct kt_gathered {
    uint8_t *keys;
    float *scale;        /* NULL = none */
    const int32_t *row;  /* [rows] of the batch */
    const int32_t *last; /* [rows of the batch]: number of the last key that a row meets */
    int64_t most;
    int32_t row_bytes, rows;
} kt_gathered;

/* Keys of a row: the last `window` tokens up to its position, the oldest first, then entries: all
 * that it sees, or (it sees more than topk) those of its list. A packed row has `floats` floats,
 * the last of them its scale; tokens before the batch come from the ring of the sequence's state,
 * token t at place t % window. An entry whose window ends with token t lies in t's page, at place
 * t % 64 / ratio. */
typedef struct kt_gather_entries {
    kt_gathered to;
    kt_row_places places;
    const float *packed; /* [rows of the batch, ldp] */
    const kt_state_span *spans;
    const float *states; /* of this node */
    int64_t stride, ldp;
    const uint8_t *entries; /* of page 0 */
    const float *scales;    /* likewise; NULL = none */
    int64_t page_bytes;
    const int32_t *picked; /* [rows of the batch, ldpicked] ascending; NULL = all are met */
    int32_t ldpicked, window, ratio, floats, topk; /* ratio 0: there are no entries */
    int32_t zero; /* for padding */
} kt_gather_entries;

/* The rings behind the step: every packed row that the next one may see goes to its place. */
typedef struct kt_keep_ring {
    const float *packed;
    const kt_state_span *spans;
    float *states;
    int64_t stride, ldp;
    int32_t window, floats;
} kt_keep_ring;

/* Keys and values of a row and a kv head: those of the picked blocks of `block` tokens, ascending,
 * or (no more than topk are seen) all. Row t of page g of head h lies (h * pages + g) * 64 + t rows
 * behind `keys`; values likewise, to `values_to`. */
typedef struct kt_gather_blocks {
    kt_gathered to;
    uint8_t *values_to;
    float *value_scale_to; /* NULL = none */
    kt_row_places places;
    const uint8_t *keys, *values;
    const float *scale, *value_scale; /* NULL = none */
    int64_t head_rows;                /* 64 * pages */
    const int32_t *picked;            /* [rows of the batch, heads, topk] */
    int32_t heads, block, topk;
    int32_t zero; /* for padding */
} kt_gather_blocks;

#endif
