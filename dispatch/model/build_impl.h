/* Inside of a graph that is being built. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_BUILD_IMPL_H
#define KT_DISPATCH_BUILD_IMPL_H

#include "dispatch/model/build.h"

/* What quantization_config declares, for when no checkpoint is at hand. */
typedef struct kt_declared {
    /* Of embedding and head; of attention; of routed experts; of other feed-forward. */
    kt_weight_format floats, linear, experts, ffn;
    kt_int4_packing packing;
} kt_declared;

struct kt_build {
    kt_graph *graph;
    const kt_checkpoint *checkpoint; /* or NULL */
    kt_declared declared;
    int layer;
    bool wants_draft; /* a draft head will follow, if the model carries one */
    int room_weights, room_nodes, room_values, room_planes, room_slots, room_rotations;
    kt_status status;
    kt_err *err;
};

/* What verbs outside build.c are made of: a node without anything, a value, a vector, a slot of so
 * many floats, a rotation, a plane. An error sticks. */
kt_node kt_build_node_of(kt_node_kind kind, kt_view in, kt_view out);
void kt_build_add_node(kt_build *b, const kt_node *n);
kt_view kt_build_value(kt_build *b, int64_t width);
int kt_build_vector(kt_build *b, kt_vec v);
int kt_build_slot(kt_build *b, int64_t floats);
int kt_build_rotation(kt_build *b, const kt_rope_rule *rotation);
int kt_build_plane(kt_build *b, const kt_plane *plane);
/* to = W x. */
void kt_build_linear_to(kt_build *b, const char *role, kt_view to, kt_view x, kt_mat w);

/* The residual, and the embedding that it begins with. */
void kt_build_begin(kt_build *b);

/* Read torch_dtype and quantization_config of a config.json (source->json, the whole of it), or of
 * its text_config: AWQ, GPTQ, compressed-tensors with 4 bits, NVFP4, FP8, MXFP4. Refuses other
 * methods and settings by name. */
kt_status kt_declared_read(const kt_config_source *source, kt_declared *out, kt_err *err);

/* How a part is stored: by the tensors that the checkpoint has under its name; without one, as
 * declared. */
void kt_build_detect(kt_build *b, kt_weight *w);

#endif
