/* Inside of a graph that is being built. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_BUILD_IMPL_H
#define KT_DISPATCH_BUILD_IMPL_H

#include "dispatch/model/build.h"

/* What quantization_config declares, for when no checkpoint is at hand. */
typedef struct kt_declared {
    kt_weight_format floats, linear,
        experts; /* of embedding and head; of attention; of feed-forward */
    kt_int4_packing packing;
} kt_declared;

struct kt_build {
    kt_graph *graph;
    const kt_checkpoint *checkpoint; /* or NULL */
    kt_declared declared;
    int layer;
    int room_weights, room_nodes, room_values, room_planes, room_slots, room_rotations;
    kt_status status;
    kt_err *err;
};

/* The residual, and the embedding that it begins with. */
void kt_build_begin(kt_build *b);

/* Read torch_dtype and quantization_config of a config.json, or of its text_config: AWQ, GPTQ,
 * compressed-tensors with 4 bits, FP8, MXFP4. Refuses other methods and settings by name. */
kt_status kt_declared_read(const kt_json *root, const char *where, kt_declared *out, kt_err *err);

/* How a part is stored: by the tensors that the checkpoint has under its name; without one, as
 * declared. */
void kt_build_detect(kt_build *b, kt_weight *w);

#endif
