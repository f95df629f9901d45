/* One MoE layer over the memory nodes of a machine: every expert is cut along its intermediate dimension, each
 * node holds one slice of all experts in its own memory and computes with its own threads, and the nodes'
 * partial outputs are added in the order of the nodes.
 *
 * A slice is an expert in its own right (gate and up rows, down columns of its channels), so the layer of a
 * node is a plain kt_moe_layer with a smaller intermediate size. Only the outputs cross between nodes.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_MOE_NODES_H
#define KT_KERNELS_MOE_NODES_H

#include "kernels/moe_ffn/moe_layer.h"

#define KT_MOE_MAX_NODES 16
#define KT_MOE_NODES_PHASES 4

/* Cut the intermediate channels of a layer over n_nodes nodes in proportion to share[] (threads, or measured
 * bandwidth; > 0), in blocks of 64 channels or of the formats' blocks where those are larger. Node i gets channels
 * begin[i] .. begin[i + 1], at least one block. The sizes depend on the shares alone, not on threads, and
 * with them the results' bits. Refuses fewer blocks than nodes. */
kt_status kt_moe_cut_channels(const kt_moe_layer *whole, const double *share, int n_nodes,
                              int64_t *begin, kt_err *err);

/* The layer of one node: problem and formats of the whole with channels begin .. end. experts is [experts]
 * slices, see below; choices and encode are those of the whole, or the caller's own. */
kt_moe_layer kt_moe_slice_layer(const kt_moe_layer *whole, int64_t begin, int64_t end,
                                const void *const *experts);

/* Copy the slice of one packed expert to dst: kt_moe_expert_bytes of the node's layer, 64-byte aligned. */
void kt_moe_slice_pack(const kt_moe_layer *whole, const void *expert, int64_t begin, int64_t end,
                       void *dst);

/* One call over all nodes. Set the members down to `workspace`, then kt_moe_nodes_init. Threads are numbered
 * node by node: the first threads[0] of the pool run on node 0. The workspaces are best in their nodes'
 * memory. Everything is borrowed. */
typedef struct kt_moe_nodes {
    int n_nodes;
    const kt_moe_layer *layer[KT_MOE_MAX_NODES]; /* of each node */
    int threads[KT_MOE_MAX_NODES];               /* at least one each */
    const float *x;                              /* these as in kt_moe_job */
    int64_t ldx, tokens;
    const int32_t *expert_id;
    const float *route_weight;
    float *out;
    int64_t ldo;
    int accumulate;
    void *workspace[KT_MOE_MAX_NODES]; /* kt_moe_nodes_bytes each, 64-byte aligned */

    kt_moe_job job[KT_MOE_MAX_NODES]; /* the rest is set by init */
    kt_phase part[KT_MOE_MAX_NODES][KT_MOE_PHASES];
    struct kt_nodes_phase {
        struct kt_moe_nodes *nodes;
        int phase;
        int64_t tasks[KT_MOE_MAX_NODES]; /* of each node in this phase */
        int64_t per_thread;              /* tasks of the pool per thread */
        int64_t grain;                   /* of them, the largest of the nodes */
    } phase[KT_MOE_PHASES];
    int n_threads;
} kt_moe_nodes;

/* Bytes of the workspace of a node whose layer this is; n_threads = of all nodes. */
size_t kt_moe_nodes_bytes(const kt_moe_layer *layer, int64_t max_tokens, int n_threads);

kt_status kt_moe_nodes_init(kt_moe_nodes *nodes, int64_t max_tokens, kt_err *err);

/* The phases of a run on a pool of exactly the threads given; x, tokens and the like may change between runs.
 * A thread's own tasks are its node's; what it steals at the end may be another's. The same bits for any
 * number of threads. */
void kt_moe_nodes_phases(kt_moe_nodes *nodes, kt_phase phases[KT_MOE_NODES_PHASES]);

#endif
