/* What can be read, as tables for people: containers, and how matrices may lie in them (detect.c
 * tells these apart). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_STORED_KINDS_H
#define KT_DISPATCH_STORED_KINDS_H

#include "dispatch/model/graph.h"

typedef struct kt_container_kind {
    const char *name, *files;
} kt_container_kind;

extern const kt_container_kind kt_container_kinds[];
extern const size_t kt_container_kind_count;

#define KT_STORED_FORMATS 6

typedef struct kt_stored_kind {
    kt_encoding encoding;
    kt_int4_packing packing; /* of KT_STORED_INT4 */
    const char *name, *tensors;
    kt_weight_format
        formats[KT_STORED_FORMATS]; /* that detect.c may find in it; KT_W_NONE ends them */
} kt_stored_kind;

/* All but the block types of GGUF, which are the formats with block_bytes
 * (kernels/formats/format.h). */
extern const kt_stored_kind kt_stored_kinds[];
extern const size_t kt_stored_kind_count;

#endif
