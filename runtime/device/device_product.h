/* A matrix of the model times rows on a device, whatever its format and the number of rows: what
 * the operations LINEAR, HEAD and LINEAR_HEADS share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_PRODUCT_H
#define KT_RUNTIME_DEVICE_PRODUCT_H

#include "runtime/device/device_op.h"

enum {
    KT_DEVICE_FEW = 8,        /* rows that gemm_decode and moe_decode take at once */
    KT_DEVICE_TILE_SIZES = 3, /* of tile kernels: 16, 32 and 64 rows */
};

/* Code of a kernel with the config that it was made for. */
typedef struct kt_device_kernel {
    const kt_cuda_kernel *kernel;
    const kt_device_code *code;
    kt_config config;
} kt_device_kernel;

/* Code of kernels/cuda/<name>.cu. `values` replace the first n_values of its initial config. */
kt_status kt_device_kernel_find(kt_device_step *s, const char *name, const int32_t *values,
                                int n_values, kt_device_kernel *out, kt_err *err);
/* A launch with the shared memory for rows of k inputs. */
kt_status kt_device_kernel_put(kt_device_step *s, const kt_device_kernel *k, int entry, int grid_x,
                               int grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err);

/* The tile kernel `name` (moe_tiles, gemm_tiles) in the sizes of kt_device_tile_size. */
kt_status kt_device_tiles_find(kt_device_step *s, const char *name, kt_weight_format format,
                               kt_device_kernel out[KT_DEVICE_TILE_SIZES], kt_err *err);
/* The index of the smallest tiles that hold `rows` rows, else of the largest. */
int kt_device_tile_size(int64_t rows);

/* `count` matrices [n, k] of one format, each for a head of its own (one for a plain product). */
typedef struct kt_device_product {
    kt_device_matrices w;
    kt_device_kernel few, round, many[KT_DEVICE_TILE_SIZES];
} kt_device_product;

typedef struct kt_device_product_call {
    const float *x;       /* ldx apart; head i begins x_head floats further */
    const int32_t *x_row; /* row of x for each row of y; NULL = the same */
    float *y;             /* ldy apart, likewise y_head */
    int64_t ldx, x_head, ldy, y_head;
    int64_t rows;
    bool accumulate;
    bool is_rounded; /* the last call of this node had the same x: it is in step->scratch */
} kt_device_product_call;

/* Why a product with k inputs cannot run there, or NULL. */
const char *kt_device_product_refuse(int64_t k);
/* Loads the matrices and asks for scratch: for init. */
kt_status kt_device_product_init(kt_device_step *s, const kt_device_pick *pick,
                                 kt_device_product *out, kt_err *err);
/* For enqueue. Up to KT_DEVICE_FEW rows read the weights once without rounding the rows first; more
 * rows go through tiles of tensor cores. */
kt_status kt_device_product_put(kt_device_step *s, const kt_device_product *p,
                                const kt_device_product_call *call, kt_err *err);

#endif
