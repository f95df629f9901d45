/* A model's weights in memory: quantised when asked, packed for the planned kernels.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_WEIGHTS_H
#define KT_RUNTIME_WEIGHTS_H

#include <stdbool.h>

#include "base/log.h"
#include "base/pool.h"
#include "kernels/moe_ffn/moe_layer.h"
#include "runtime/model/model_plan.h"
#include "runtime/model/node_plan.h"

/* One weight of the graph. Everything borrowed from the kt_weights that holds it. */
typedef struct kt_loaded {
    /* Packed runs (kt_weight_runs); or in [0] the f32 vector, the router or the table. NULL: an
     * optional vector that is not there. Of HEADS the count packed matrices lie one behind the
     * other, head_bytes apart. */
    const void *data[KT_WEIGHT_PARTS];
    size_t head_bytes;
    kt_weight_format format; /* of a router or table */
    kt_moe_layer experts;    /* of EXPERTS; its pointers are NULL when the nodes have them */
    const kt_moe_layer *node_experts; /* [nodes] each node's slices; NULL = not split */
} kt_loaded;

typedef struct kt_weights kt_weights; /* immutable once loaded */

typedef struct kt_weights_request {
    const kt_checkpoint *checkpoint;
    const kt_graph *graph;
    const kt_model_plan *plan;       /* borrowed, as the graph, for the life of the weights */
    const kt_checkpoint *importance; /* of inputs, for formats that search scales; or NULL */
    bool allow_nonfinite; /* load NaN and infinite numbers too, where the format can hold them */
    int (*cancel)(void *arg); /* NULL, or asked between layers: nonzero = stop (KT_E_CANCELLED) */
    void *cancel_arg;
    bool has_twins; /* experts may have the same stored bytes: pack one, copy the others */
    kt_pool *pool;  /* used during the call */
    const kt_node_plan *nodes; /* where experts go */
    /* Bytes that may be taken without swapping, asked before each layer, since other programs
     * take memory too; NULL = kt_memory_available_bytes. */
    uint64_t (*available)(void *arg);
    void *available_arg;
    const kt_log *log;
} kt_weights_request;

/* Can the experts of this plan be cut over so many nodes? Says which cannot. */
kt_status kt_weights_check_nodes(const kt_model_plan *plan, const kt_node_plan *nodes, kt_err *err);

/* Find every tensor and check its shape and type, then quantise and pack on all threads (that there
 * is memory for it is memory_plan.h's question), releasing the checkpoint's pages on the way. A
 * stored number that is not finite is refused by tensor, position and value. Stops with KT_E_NOMEM,
 * holding nothing, when memory that was there at the beginning is gone. */
kt_status kt_weights_load(const kt_weights_request *request, kt_weights **out, kt_err *err);
void kt_weights_destroy(kt_weights *w);

const kt_loaded *kt_weights_at(const kt_weights *w, int weight); /* index in the graph */
/* Embedding of a token: hidden floats into out. scratch: hidden doubles, used where rows are
 * blocks. */
void kt_weights_embed(const kt_weights *w, int32_t token, float *out, double *scratch);
size_t kt_weights_bytes(const kt_weights *w); /* memory held */

#endif
