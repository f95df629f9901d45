/* Weights as the kernels for GPUs read them: records of kt_dev_weights.h, made from plain
 * matrices.
 *
 * A matrix [n, k] on a device is n records one after the other, kt_device_row_bytes each, the
 * first aligned to 16 bytes. Records are independent of each other: rows may be packed in any
 * order, in parts and by several threads, and matrices laid end to end (experts, gate and up) are
 * one matrix. Nothing is rounded but wf16 and wf32, which become bfloat16; all other formats keep
 * their numbers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_CUDA_DEVICE_WEIGHTS_H
#define KT_CUDA_DEVICE_WEIGHTS_H

#include "kt/variant.h"

/* What weights stored in a format are on a device, which is the value of a kernel's parameter
 * "format": KT_W_BF16 for KT_W_F16 and KT_W_F32, else the format itself; KT_W_NONE for
 * KT_W_NONE, and for a format whose records nobody has described (kt_weight_spec_of). */
kt_weight_format kt_device_weight_format(kt_weight_format stored);

/* Bytes of a record of k > 0 inputs, a multiple of 16. `format` is stored or a device's. */
size_t kt_device_row_bytes(kt_weight_format format, int64_t k);

/* Bytes of a matrix. Refuses sizes that the format cannot have, records that a device cannot
 * address (2^31 bytes and more) and k that is no multiple of 8, which all kernels need. */
kt_status kt_device_weights_bytes(kt_weight_format format, int64_t n, int64_t k, size_t *bytes,
                                  kt_err *err);

/* Write the records of rows [row_begin, row_end) of w one after the other to `records` (aligned to
 * 16 bytes, kt_device_row_bytes(w->format, w->k) each). w as for kt_variant.pack; a NaN code of FP8
 * becomes a NaN scale of its group, so that every output it meets is NaN, as on the CPU. Fails as
 * kt_device_weights_bytes does, and writes nothing then. Thread-safe for different records. */
kt_status kt_device_weights_pack(const kt_matrix *w, int64_t row_begin, int64_t row_end,
                                 void *records, kt_err *err);

#endif
