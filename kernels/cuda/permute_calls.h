/* Parameters of moe_permute: rows in the order of their experts, the same for hosts and for
 * devices. Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_PERMUTE_CALLS_H
#define KT_CUDA_PERMUTE_CALLS_H

#include "kernels/cuda/moe_calls.h"

/* Sorts [tokens, slots] by expert, tokens and slots of one expert in their order, and cuts the rows
 * of each expert into tiles of at most tile_rows.
 *
 * What is -1 (or no expert) is left out: its row_of is -1. Tiles [n_tiles, max_tiles) have 0 rows,
 * so that a kernel with a grid for max_tiles may leave at once; max_tiles = tokens * slots /
 * tile_rows + min(experts, tokens * slots) always suffices. */
typedef struct kt_moe_permute {
    const int32_t *id;   /* [tokens, slots] */
    const float *weight; /* [tokens, slots] */
    int32_t *counts;     /* room: [chunks, experts], chunk = KT_PERMUTE_CHUNK of tokens * slots */
    int32_t *first;     /* [experts + 1] sorted rows before each expert; the last is their number */
    int32_t *row_token; /* [tokens * slots] token of each sorted row */
    float *route;       /* [tokens * slots] weight of each sorted row */
    int32_t *row_of;    /* [tokens, slots] sorted row, or -1 */
    kt_moe_tile *tile;  /* [max_tiles] */
    int32_t *n_tiles;   /* [1] */
    int32_t tokens, slots, experts, tile_rows, max_tiles;
    int32_t zero; /* for padding */
} kt_moe_permute;

enum { KT_PERMUTE_CHUNK = 2048 };

/* out[token] = sum over its slots, in order, of y[row_of], or (is_added) out plus that. route NULL:
 * y is weighted already. */
typedef struct kt_moe_combine {
    const float *y; /* [sorted rows, k] */
    const int32_t *row_of;
    const float *route; /* NULL, or [sorted rows] */
    float *out;
    int32_t ldo, k, slots, is_added;
} kt_moe_combine;

#endif
