/* Which memory node holds which part of the experts. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_NODE_PLAN_H
#define KT_RUNTIME_NODE_PLAN_H

#include "kernels/moe_ffn/moe_nodes.h"
#include "kt/status.h"

/* --numa: over the nodes that the threads' cores belong to, not at all, or (n > 1) over so many
 * groups of threads, for machines that hide their nodes and for tests. */
#define KT_NUMA_AUTO 0
#define KT_NUMA_OFF 1

typedef struct kt_node_plan {
    int n;                         /* 1 = experts whole, wherever memory is */
    int threads[KT_MOE_MAX_NODES]; /* the pool's first threads are node 0's, and so on */
    int memory[KT_MOE_MAX_NODES];  /* number for kt_buffer_create; -1 = any */
    int has_equal_shares; /* of experts, whatever the threads: cuts change the order of sums */
    char note[160];       /* why auto leaves a machine of several nodes whole; "" = it does not */
} kt_node_plan;

/* core_nodes: the memory node of each of the pool's threads (kt_topology_core_nodes), n_known of
 * them; with fewer than n_threads, threads share cores and auto does not split. Refuses more
 * groups than threads or than KT_MOE_MAX_NODES. */
kt_status kt_node_plan_make(int numa, const int *core_nodes, int n_known, int n_threads,
                            kt_node_plan *out, kt_err *err);

/* Where each node's channels of an expert begin (kt_moe_cut_channels): nodes->n + 1 numbers. */
kt_status kt_node_plan_cut(const kt_node_plan *nodes, const kt_moe_layer *whole, int64_t *begin,
                           kt_err *err);

/* Leave the experts whole after all, because of `why`. */
void kt_node_plan_undo(kt_node_plan *plan, int n_threads, const char *why);

/* "experts cut over memory nodes: 32 threads on node 0, 32 on node 1", or the note, or "". */
char *kt_node_plan_format(const kt_node_plan *plan, char *out, size_t out_bytes);

#endif
