/* A kernel with the config that its code was made for, on one device.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_DEVICE_KERNEL_H
#define KT_DEVICE_DEVICE_KERNEL_H

#include "dispatch/device/device.h"
#include "dispatch/device/device_choice.h"

typedef struct kt_device_kernel {
    const kt_cuda_kernel *kernel;
    const kt_device_code *code;
    kt_config config;
} kt_device_kernel;

/* Code of a choice. */
kt_status kt_device_kernel_make(kt_device *d, const kt_device_choice *choice, kt_device_kernel *out,
                                kt_err *err);
/* Code of kernels/cuda/<name>.cu with its initial config, of which `values` replace the first
 * n_values. KT_E_INTERNAL: this build has no such kernel. */
kt_status kt_device_kernel_named(kt_device *d, const char *name, const int32_t *values,
                                 int n_values, kt_device_kernel *out, kt_err *err);
/* A launch in KT_STREAM_MAIN with the shared memory for rows of `size` inputs. */
kt_status kt_device_kernel_run(kt_device *d, const kt_device_kernel *k, int entry, int64_t grid_x,
                               int64_t grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err);

/* A value as operations see it: row r begins at x + r * ld, at any multiple of 4 bytes. */
typedef struct kt_device_view {
    float *x;
    int64_t ld, width;
} kt_device_view;

/* Matrices that lie one behind the other: records of kernels/cuda/device_weights.h,
 * kt_device_row_bytes each. */
typedef struct kt_device_matrices {
    const uint8_t *at;       /* matrix i begins at at + i * bytes */
    size_t bytes;            /* of a matrix: n records */
    kt_weight_format format; /* of the device: kt_device_weight_format of what the CPU has */
    int64_t n, k, count;
} kt_device_matrices;

/* Rows as 8-bit kernels read them: what quantise_rows is made with for a kernel's weights. */
typedef struct kt_device_encoding {
    int32_t format, group; /* KT_A8_*; inputs of a scale, 0 = the row */
} kt_device_encoding;
kt_device_encoding kt_device_encoding_of(kt_weight_format weights);
/* Scales of a row of k inputs. */
int64_t kt_device_encoding_scales(kt_device_encoding e, int64_t k);
kt_status kt_device_quantiser_make(kt_device *d, kt_device_encoding e, kt_device_kernel *out,
                                   kt_err *err);

#endif
