/* What both ways to load weights share: packing them (weights.c), and using panels of a file as
 * they lie (packed_weights.c). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_WEIGHTS_IMPL_H
#define KT_RUNTIME_WEIGHTS_IMPL_H

#include "base/arena.h"
#include "base/buffer.h"
#include "runtime/model/packer.h"
#include "runtime/model/weights.h"

struct kt_weights {
    const kt_graph *graph;
    kt_arena arena;
    kt_loaded *loaded;
    kt_buffer *buffers;    /* [layers + 1]: one per layer, the last for what is outside */
    kt_buffer *slices;     /* [weights][nodes] of the experts, when they are split */
    kt_checkpoint *panels; /* files whose bytes are used as they lie, or NULL */
    int n_nodes;
    size_t bytes;
};

/* The memory of a layer's experts: whole they lie at base, one behind the other; cut (base is not
 * looked at) each node gets a buffer of its own. */
kt_status kt_weights_place(kt_weights *w, const kt_weights_request *request, int weight,
                           uint8_t *base, kt_placing *out, kt_err *err);

/* The layers as they run. */
kt_status kt_weights_finish_experts(kt_weights *w, int weight, const kt_placing *place,
                                    kt_err *err);

/* Are `bytes` and a reserve for everything else still there? The error says for what they are:
 * "layer 3 of 48". */
kt_status kt_weights_watch(const kt_weights_request *request, size_t bytes, const char *what,
                           kt_err *err);

/* Memory that all threads of the pool give its pages. */
kt_status kt_weights_take(kt_weights *w, kt_pool *pool, size_t bytes, int node, kt_buffer *out,
                          kt_err *err);

/* Fill w from the panels of request->checkpoint: in place where the plan's kernels read p64, else
 * repacked. */
kt_status kt_weights_map_panels(kt_weights *w, const kt_weights_request *request, kt_err *err);

#endif
