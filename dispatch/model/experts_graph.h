/* Graphs of one weight: the experts of a layer alone, for whoever runs no whole model.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_EXPERTS_GRAPH_H
#define KT_DISPATCH_EXPERTS_GRAPH_H

#include "dispatch/model/graph.h"

typedef struct kt_experts_shape {
    int64_t experts, topk, hidden, intermediate;
} kt_experts_shape;

/* Experts whose tensors are named {e}.gate_proj, {e}.up_proj, {e}.down_proj, or gate_up_proj and
 * down_proj for all; the tensors of the checkpoint tell how they are stored. packing: of qweight.
 * *out is ended with kt_graph_deinit; its only weight is number 0. */
kt_status kt_experts_graph_of_tensors(const kt_experts_shape *shape, const kt_checkpoint *c,
                                      kt_int4_packing packing, kt_graph *out, kt_err *err);

/* The experts of a layer of a model, as its graph describes them. *out borrows the names of
 * `model`. KT_E_NOT_FOUND when rows of that layer are routed to none. */
kt_status kt_experts_graph_of_layer(const kt_graph *model, int64_t layer, kt_graph *out,
                                    kt_err *err);

#endif
