/* Parameters of dense products, the same for hosts and for devices, where nothing else is included.
 * Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_GEMM_CALLS_H
#define KT_CUDA_GEMM_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* y[r, 0 .. n) = x[row of r] * w^T, or added to y, for rows r < rows. `heads` products at once (the
 * grid's y): head i has its matrix w_head bytes, its x and y x_head and y_head elements further. k is
 * a multiple of 8; rows of x begin at multiples of 16 bytes. w: n records (kt_dev_weights.h) of the
 * kernel's `format`; matrices of one format and input, laid end to end, are one matrix. */
typedef struct kt_gemm_decode {
    const float *x;       /* ldx apart */
    const int32_t *x_row; /* row of x for each row of y; NULL = the same */
    const uint8_t *w;
    float *y; /* ldy apart */
    int64_t ldx, ldy, w_head, x_head, y_head;
    int32_t rows, n, k, accumulate; /* rows: at most 8 */
} kt_gemm_decode;

#endif
