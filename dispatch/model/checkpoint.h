/* Checkpoints: tensors by name, in safetensors (one file, or shards with an index) or GGUF (one
 * file, or its parts), and writing small safetensors. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_CHECKPOINT_H
#define KT_DISPATCH_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buffer.h"
#include "dispatch/model/quant.h"
#include "kt/problem.h"
#include "kt/status.h"

typedef enum kt_dtype {
    KT_DTYPE_BOOL,
    KT_DTYPE_U8,
    KT_DTYPE_I8,
    KT_DTYPE_F8_E4M3,
    KT_DTYPE_F8_E5M2,
    KT_DTYPE_F8_E8M0,
    KT_DTYPE_I16,
    KT_DTYPE_U16,
    KT_DTYPE_F16,
    KT_DTYPE_BF16,
    KT_DTYPE_I32,
    KT_DTYPE_U32,
    KT_DTYPE_F32,
    KT_DTYPE_I64,
    KT_DTYPE_U64,
    KT_DTYPE_F64,
    KT_DTYPE_COUNT
} kt_dtype;

const char *kt_dtype_name(kt_dtype dtype); /* as in the file: "BF16" */
size_t kt_dtype_bytes(kt_dtype dtype);     /* of one element */

#define KT_TENSOR_MAX_RANK 8

/* One tensor of an open checkpoint; everything borrowed from it. data lies in a read-only mapping
 * and may be unaligned for its type. */
typedef struct kt_tensor {
    const char *name;
    kt_dtype dtype;
    int rank;
    int64_t shape[KT_TENSOR_MAX_RANK];
    const uint8_t *data;
    size_t bytes;
    int file; /* index of the shard */
    kt_weight_format
        blocks; /* of a GGUF tensor in blocks: rows of them, shape counts weights, dtype is U8;
                              * KT_W_NONE = elements of dtype */
} kt_tensor;

/* Immutable after opening; thread-safe. */
typedef struct kt_checkpoint kt_checkpoint;

/* Open one file. Everything in its header is checked: size, JSON, types, shapes, and that the
 * tensors fill the data exactly, without gap or overlap. */
kt_status kt_checkpoint_open_file(const char *path, kt_checkpoint **out, kt_err *err);
/* Open a folder: the shards of model.safetensors.index.json, or model.safetensors, or the one
 * GGUF file (or set of its parts) that lies there. Or a GGUF file itself: the first part finds
 * the others beside it. */
kt_status kt_checkpoint_open(const char *folder, kt_checkpoint **out, kt_err *err);
/* Tensors that lie in memory instead of a file. The list and the names are copied; the data lies
 * in `memory`, which is transferred also when the call fails. label stands for the file in
 * messages. */
kt_status kt_checkpoint_of_memory(const char *label, const kt_tensor *tensors, size_t count,
                                  kt_buffer *memory, kt_checkpoint **out, kt_err *err);
void kt_checkpoint_close(kt_checkpoint *c);

/* Of a folder that `kt convert` wrote (packed.h): its panels, borrowed, and what the source's
 * weights became; NULL of any other. Such a checkpoint's own tensors have no data. */
kt_checkpoint *kt_checkpoint_panels(const kt_checkpoint *c);
kt_quant kt_checkpoint_packed_as(const kt_checkpoint *c);
/* Another owner: kt_checkpoint_close ends it when the last one calls. */
void kt_checkpoint_retain(kt_checkpoint *c);
/* Open one file of panels by itself. */
kt_status kt_checkpoint_open_panels(const char *path, kt_checkpoint **out, kt_err *err);
/* What a tensor's shard says of it in its __metadata__, of panels only; or NULL. */
const char *kt_checkpoint_metadata(const kt_checkpoint *c, const kt_tensor *t);
/* Have a part of a tensor in memory before it is read. */
void kt_checkpoint_populate(const kt_checkpoint *c, const kt_tensor *t, size_t offset,
                            size_t bytes);

/* Metadata of a GGUF file; NULL of safetensors. */
const struct kt_gguf_meta *kt_checkpoint_gguf(const kt_checkpoint *c);

size_t kt_checkpoint_count(const kt_checkpoint *c);
const kt_tensor *kt_checkpoint_at(const kt_checkpoint *c, size_t i);           /* in name order */
const kt_tensor *kt_checkpoint_find(const kt_checkpoint *c, const char *name); /* or NULL */
const char *kt_checkpoint_file(const kt_checkpoint *c, int file);              /* path of a shard */

/* The tensor with this name and exactly this shape; the error names file, found and expected. */
kt_status kt_checkpoint_need(const kt_checkpoint *c, const char *name, int rank,
                             const int64_t *shape, const kt_tensor **out, kt_err *err);

/* "tensor 'x' of model.safetensors" etc.: fill err with a message about this tensor. */
kt_status kt_tensor_fail(const kt_checkpoint *c, const kt_tensor *t, kt_status status, kt_err *err,
                         const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Tell the kernel that `bytes` from `offset` of the tensor are not needed any more. */
void kt_checkpoint_release(const kt_checkpoint *c, const kt_tensor *t, size_t offset, size_t bytes);

/* A tensor to write; borrowed. */
typedef struct kt_tensor_out {
    const char *name;
    kt_dtype dtype;
    int rank;
    int64_t shape[KT_TENSOR_MAX_RANK];
    const void *data;
} kt_tensor_out;

/* Write tensors in the given order, atomically (temporary name, fsync, rename). */
kt_status kt_safetensors_write(const char *path, const kt_tensor_out *tensors, size_t count,
                               kt_err *err);

#endif
