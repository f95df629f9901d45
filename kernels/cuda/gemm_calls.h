/* Parameters of dense products, the same for hosts and for devices, where nothing else is included.
 * Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_GEMM_CALLS_H
#define KT_CUDA_GEMM_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* y[r, 0 .. n) = x[row of r] * w^T, or added to y, for rows r < rows. `heads` products at once
 * (the grid's y): head i has its matrix w_head bytes, its x and y x_head and y_head elements
 * further. k is a multiple of 8; rows of x begin at any multiple of 4 bytes (of 16: faster). w: n
 * records (kt_dev_weights.h) of the kernel's `format`; matrices of one format and input, laid end
 * to end, are one matrix. */
typedef struct kt_gemm_decode {
    const float *x;       /* ldx apart */
    const int32_t *x_row; /* row of x for each row of y; NULL = the same */
    const uint8_t *w;
    float *y; /* ldy apart */
    int64_t ldx, ldy, w_head, x_head, y_head;
    int32_t rows, n, k, accumulate; /* rows: at most 8 */
} kt_gemm_decode;

/* Rows as bfloat16: to[head, row, 0 .. k) = x[row of row, head * x_head + ..]. k is a multiple of
 * 8; `to` is aligned to 16 bytes. */
typedef struct kt_bf16_rows {
    const float *x;       /* ldx apart, any multiple of 4 bytes */
    const int32_t *x_row; /* row of x for each row; NULL = the same */
    uint16_t *to;         /* [heads, rows, k] */
    int64_t ldx, x_head;
    int32_t rows, k;
} kt_bf16_rows;

/* y[row, head * y_head + ..] = x[row, head * x_head + ..], `width` numbers. */
typedef struct kt_head_tails {
    const float *x; /* ldx apart */
    float *y;       /* ldy apart */
    int64_t ldx, ldy, x_head, y_head;
    int32_t rows, width;
} kt_head_tails;

/* As kt_gemm_decode, of any number of rows, and with x [heads, rows, k] as kt_bf16_rows leaves it.
 * The grid's y: row_tiles (rows / bm rounded up) for each head. */
typedef struct kt_gemm_tiles {
    const uint16_t *x;
    const uint8_t *w;
    float *y; /* ldy apart */
    int64_t ldy, w_head, y_head;
    int32_t rows, n, k, row_tiles, accumulate;
    int32_t zero; /* for padding */
} kt_gemm_tiles;

#endif
