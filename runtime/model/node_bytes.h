/* What each memory node holds of a model whose experts are cut over nodes, counted before loading.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_NODE_BYTES_H
#define KT_RUNTIME_NODE_BYTES_H

#include "runtime/model/model_plan.h"
#include "runtime/model/node_plan.h"

/* Bytes of the slices of all layers' experts on each of nodes->n nodes, as the loader packs them
 * (each slice rounded up to 64 bytes, each layer to large pages); zeros when nodes->n is 1.
 * Everything else of the model lies on whichever node has room. Fails when experts cannot be cut so
 * (kt_moe_cut_channels), or as "too large to count". */
kt_status kt_node_bytes_count(const kt_model_plan *plan, const kt_node_plan *nodes,
                              size_t out[KT_MOE_MAX_NODES], kt_err *err);

#endif
