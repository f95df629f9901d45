/* The tensors of a GGUF file: names, formats, sizes and where they lie.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_GGUF_TENSORS_H
#define KT_DISPATCH_GGUF_TENSORS_H

#include "kt/variant.h"
#include <stdbool.h>

#include "dispatch/model/gguf_meta.h"

#define KT_GGUF_NAME 64 /* longest tensor name */
#define KT_GGUF_RANK 4

/* One tensor. size[0] is the contiguous dimension: a matrix [n, k] has sizes {k, n}, a stack of
 * experts {k, n, experts}; unused sizes are 1. Rows are rows of the format's blocks. */
typedef struct kt_gguf_tensor {
    char name[KT_GGUF_NAME + 1];
    kt_weight_format format; /* of low-bit blocks: what they become, KT_W_INT8_G16M */
    int rank;
    bool has_integers; /* of 32 bits, in no format of weights */
    int64_t size[KT_GGUF_RANK];
    const uint8_t *data; /* borrowed from the file's bytes */
    size_t bytes;
} kt_gguf_tensor;

/* The list of the file behind meta, sorted by name; *out is the caller's to free. Checked:
 * names, that each format is one of ours (the error names the others), whole blocks, and that
 * all data lies in the file. A part of a split file lists its own tensors. */
kt_status kt_gguf_tensors_read(const kt_gguf_meta *meta, kt_gguf_tensor **out, size_t *count,
                               kt_err *err);

/* Tensor by name, or NULL. */
const kt_gguf_tensor *kt_gguf_tensor_find(const kt_gguf_tensor *list, size_t count,
                                          const char *name);

/* The stacks of a layer's routed experts. */
typedef struct kt_gguf_experts {
    const kt_gguf_tensor *gate, *up, *down;
} kt_gguf_experts;

/* Find blk.LAYER.ffn_{gate,up,down}_exps.weight: KT_E_NOT_FOUND when one is missing. Down may
 * have another format than the others (kt_moe_layer.down_weights); gate and up, which one kernel
 * reads together, have one, or it is KT_E_UNSUPPORTED. Errors name the tensors. */
kt_status kt_gguf_experts_find(const kt_gguf_tensor *list, size_t count, int64_t layer,
                               kt_gguf_experts *out, kt_err *err);

/* Matrix `index` of a stack of size[2] matrices [size[1], size[0]], as it lies in the file; of the
 * format KT_W_NONE when it is of low-bit blocks. */
kt_matrix kt_gguf_matrix(const kt_gguf_tensor *tensor, int64_t index);

#endif
