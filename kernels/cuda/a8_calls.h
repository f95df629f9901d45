/* Parameters of kernels whose activations have 8 bits: quantising them, and products of tiles.
 * Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_A8_CALLS_H
#define KT_CUDA_A8_CALLS_H

#include "kernels/cuda/moe_calls.h"

/* How 8-bit activations are written: signed integers in order; signed integers in the order in
 * which products meet codes of 4 bits (quantise_rows.cu); E4M3 in order. */
enum { KT_A8_INT8 = 0, KT_A8_INT8_NIBBLES, KT_A8_E4M3 };

/* k is a multiple of 16, of 32 for KT_A8_INT8_NIBBLES. Rows of bfloat16 are aligned to 4 bytes. */
typedef struct kt_quantise_rows {
    const void *x;     /* f32 or bfloat16 [.., k], by the entry; gate for swiglu */
    const float *up;   /* swiglu: f32 [.., k] */
    const int32_t *of; /* [rows]: which row of x and up; NULL = the same */
    uint8_t *out;      /* [rows, k] */
    float *scale;      /* value = scale * out; of a row: k / 128 rounded up * (128 / group), or 1 */
    int64_t ldx;       /* elements from a row of x, or up, to the next */
    int32_t k;
    int32_t zero; /* for padding */
} kt_quantise_rows;

/* n and k are multiples of 32; matrices are aligned to 16 bytes.
 * Weights are records (kt_dev_weights.h) of the kernel's `format`, those of an expert `*_bytes`
 * behind those of the one before it. Activations have a scale per row for weights per channel, per
 * 128 inputs for weights of 8 bits in groups or blocks of 128, else per 32.
 *
 * A dense product of any rows is `down` with no tiles: x is h8 [rows, n], y is [rows, k]. A dense
 * gate and up is gate_up with neither tiles nor row_token. */
typedef struct kt_a8_tiles {
    const uint8_t *x;         /* [tokens, k], quantised */
    const float *x_scale;     /* [tokens], as kt_quantise_rows writes it */
    const int32_t *row_token; /* [sorted rows]; NULL = row i is token i */
    const float *route;       /* [sorted rows]; NULL = 1 */
    const kt_moe_tile *tile;  /* [tiles]; NULL = `rows` rows of expert 0, cut into tiles of bm */
    const uint8_t *gate, *up, *down;
    uint16_t *h;          /* bfloat16 [sorted rows, n]; written by gate_up */
    const uint8_t *h8;    /* [sorted rows, n], h quantised; read by down */
    const float *h_scale; /* [sorted rows], likewise */
    float *y;             /* [sorted rows, k], ldy apart */
    int64_t ldy, gate_bytes, down_bytes;
    int32_t n, k, rows, accumulate; /* with accumulate down adds to y */
    kt_dev_ending ending;
} kt_a8_tiles;

#endif
