/* A matrix of the model times rows on a device, whatever its format and the number of rows: what
 * the operations LINEAR, HEAD and LINEAR_HEADS share. The kernels are the table's, else the initial
 * ones (dispatch/plan/plan_device.h). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DEVICE_PRODUCT_H
#define KT_RUNTIME_DEVICE_PRODUCT_H

#include "dispatch/device/device_gemm.h"
#include "runtime/device/device_op.h"

/* Code of kernels/cuda/<name>.cu. `values` replace the first n_values of its initial config. */
kt_status kt_device_kernel_find(kt_device_step *s, const char *name, const int32_t *values,
                                int n_values, kt_device_kernel *out, kt_err *err);
/* A launch with the shared memory for rows of k inputs. */
kt_status kt_device_kernel_put(kt_device_step *s, const kt_device_kernel *k, int entry, int grid_x,
                               int grid_y, int64_t size, const void *call, size_t call_bytes,
                               kt_err *err);

/* Encodings that rows may be rounded to where they meet a run of a weight (KT_CUDA_ROWS_*). */
uint32_t kt_device_step_encodings(const kt_device_step *s, int weight, int run);
/* The ladder of a job, by the table of the step where it has one. */
void kt_device_step_ladder(kt_device_step *s, const kt_device_job *job, kt_device_ladder *out);

/* Why a product with k inputs cannot run there, or NULL. */
const char *kt_device_product_refuse(int64_t k);
/* Why no device has a kernel for the format that a weight of the graph becomes; NULL = one has. */
const char *kt_device_weight_refuse(const kt_device_ask *ask, int weight);
/* Loads the matrices of a run and asks for scratch: for init. */
kt_status kt_device_product_init(kt_device_step *s, const kt_device_pick *pick, int run,
                                 kt_device_gemm *out, kt_err *err);
/* For enqueue; the call's scratch is the step's. */
kt_status kt_device_product_put(kt_device_step *s, const kt_device_gemm *g,
                                const kt_device_gemm_call *call, kt_err *err);

#endif
