/* Products of large matrices by NVIDIA's cuBLASLt: what our own kernels are measured by, never what
 * a model runs. Opened at run time: $KT_CUBLASLT (a path; nothing else is tried then), or
 * libcublasLt.so.13 and .12 where the dynamic linker looks, or below /usr/local/cuda. No header of
 * a toolkit is needed. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_CUBLAS_LT_H
#define KT_DEVICE_CUBLAS_LT_H

#include "dispatch/device/device.h"

/* What goes in and what comes out. */
typedef enum kt_lt_kind {
    KT_LT_BF16 = 0, /* bfloat16 to bfloat16 */
    KT_LT_BF16_F32, /* bfloat16 to float */
    KT_LT_E4M3,     /* E4M3 with scales of one to bfloat16, summed as fast as the GPU can */
    KT_LT_INT8,     /* int8 to int32 */
    KT_LT_KINDS
} kt_lt_kind;

const char *kt_lt_kind_name(kt_lt_kind kind);
size_t kt_lt_in_bytes(kt_lt_kind kind); /* of a number */
size_t kt_lt_out_bytes(kt_lt_kind kind);

typedef struct kt_lt kt_lt;

/* In the device's own context and main stream, with working memory from kt_device_alloc.
 * KT_E_NOT_FOUND: no such library, with what was tried. KT_E_UNSUPPORTED: a device without a
 * driver's stream (emulated), a library that lacks a function or is older than 12.0. */
kt_status kt_lt_start(kt_device *d, kt_lt **out, kt_err *err);
/* Before its device is closed; after the work. A lost device's library is left as it is. Accepts
 * NULL. */
void kt_lt_stop(kt_lt *lt);
const char *kt_lt_name(const kt_lt *lt); /* "cuBLASLt 13.1" */
kt_device *kt_lt_device(const kt_lt *lt);

/* c[m, n] = a[m, k] * w[n, k]^T, all row-major. */
typedef struct kt_lt_product kt_lt_product;

/* Asks for the ways there are to do it. KT_E_UNSUPPORTED: none. */
kt_status kt_lt_product_make(kt_lt *lt, kt_lt_kind kind, int64_t m, int64_t n, int64_t k,
                             kt_lt_product **out, kt_err *err);
void kt_lt_product_drop(kt_lt_product *p); /* accepts NULL; before kt_lt_stop */
/* How many ways there are, at least one; the library expects the first to be the fastest. */
int kt_lt_product_ways(const kt_lt_product *p);
/* Puts it into the main stream. Memory is the device's, aligned to 256 bytes. A way that was never
 * put before may wait for the device, which loads its code then. */
kt_status kt_lt_product_put(const kt_lt_product *p, int way, const void *a, const void *w, void *c,
                            kt_err *err);

/* Runs every way of a small product against double precision, so that what is timed is known to be
 * a product. KT_E_MISMATCH: it is not. */
kt_status kt_lt_check(kt_lt *lt, kt_lt_kind kind, kt_err *err);

#endif
