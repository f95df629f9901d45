/* A matrix times rows on a device, by the kernels of a ladder. SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEVICE_DEVICE_GEMM_H
#define KT_DEVICE_DEVICE_GEMM_H

#include "dispatch/device/device_kernel.h"

/* `count` matrices [n, k] of one format, each for a head of its own (one for a plain product). */
typedef struct kt_device_gemm {
    kt_device_matrices w;
    kt_device_ladder ladder;
    kt_device_kernel kernel[KT_DEVICE_RUNGS]; /* of the rungs */
    kt_device_kernel round, quantise;         /* rows to bfloat16 and to 8 bits, where needed */
} kt_device_gemm;

typedef struct kt_device_gemm_call {
    const float *x;       /* ldx apart; head i begins x_head floats further */
    const int32_t *x_row; /* row of x for each row of y; NULL = the same */
    float *y;             /* ldy apart, likewise y_head */
    int64_t ldx, x_head, ldy, y_head;
    int64_t rows;
    bool accumulate;
    bool is_encoded; /* scratch holds the rows already: kt_device_gemm_shares_rows */
    void *scratch;   /* kt_device_gemm_scratch bytes, aligned to 256 */
} kt_device_gemm_call;

/* The job of such a product. */
kt_device_job kt_device_gemm_job(const kt_device_matrices *w, uint32_t encodings);
/* Code for calls of at most max_rows rows; w and the ladder are copied. */
kt_status kt_device_gemm_make(kt_device *d, const kt_device_matrices *w,
                              const kt_device_ladder *ladder, int64_t max_rows, kt_device_gemm *out,
                              kt_err *err);
size_t kt_device_gemm_scratch(const kt_device_gemm *g, int64_t max_rows);
/* Do calls of so many rows of both, with the same x, leave the same in scratch? */
bool kt_device_gemm_shares_rows(const kt_device_gemm *a, const kt_device_gemm *b, int64_t rows);
/* Puts the launches into KT_STREAM_MAIN; 0 rows are nothing to do. */
kt_status kt_device_gemm_put(kt_device *d, const kt_device_gemm *g, const kt_device_gemm_call *call,
                             kt_err *err);

#endif
