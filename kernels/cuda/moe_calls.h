/* Parameters of the kernels' entries, the same for hosts and for devices, where nothing else is
 * included. Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_MOE_CALLS_H
#define KT_CUDA_MOE_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* What becomes of gate and up, and the biases of experts: all zeros is plain SwiGLU without any.
 * Vectors of an expert lie behind those of the one before it. */
typedef struct kt_dev_ending {
    const float *gate_bias, *up_bias; /* [experts, n]; NULL = none */
    const float *down_bias;           /* [experts, k]; NULL = none */
    int32_t glu;                      /* kt_glu of kt/problem.h */
    float limit, alpha;
    int32_t zero; /* for padding */
} kt_dev_ending;

/* At most 8 tokens, whose slots name an expert at most once each. n and k are multiples of 8; rows
 * of x begin at any multiple of 4 bytes (of 16: faster). Weights are records (kt_dev_weights.h) of
 * `format`, those of an expert `*_bytes` behind those of the one before it. */
typedef struct kt_moe_decode {
    const float *x;        /* [tokens, k], ldx apart */
    const int32_t *expert; /* [tokens, slots]; -1 = another device has it */
    const float *route;    /* [tokens, slots] */
    const uint8_t *gate, *up, *down;
    uint16_t *h; /* bfloat16 [tokens, slots, n]; only slots with an expert are written */
    float *out;  /* [tokens, k], ldo apart; written by down, or added to */
    int64_t ldx, ldo, gate_bytes, down_bytes;
    int32_t tokens, slots, n, k, accumulate;
    int32_t zero; /* for padding */
    kt_dev_ending ending;
} kt_moe_decode;

typedef struct kt_moe_tile {
    int32_t expert, first, rows; /* sorted rows [first, first + rows); no rows = no tile */
} kt_moe_tile;

/* Rows sorted by expert, as kt_moe_permute leaves them (tiles of 0 rows are skipped). n and k are
 * multiples of 8; x and h are aligned to 16 bytes. Weights are records (kt_dev_weights.h) of
 * `format`, those of an expert `*_bytes` behind those of the one before it. */
typedef struct kt_moe_tiles {
    const uint16_t *x;        /* bfloat16 [tokens, k] */
    const int32_t *row_token; /* [sorted rows] */
    const float *route;       /* [sorted rows] */
    const kt_moe_tile *tile;  /* [tiles], of at most bm rows */
    const uint8_t *gate, *up, *down;
    uint16_t *h; /* bfloat16 [sorted rows, n] */
    float *y;    /* [sorted rows, k]: weighted by route */
    int64_t gate_bytes, down_bytes;
    int32_t n, k;
    kt_dev_ending ending;
} kt_moe_tiles;

#endif
