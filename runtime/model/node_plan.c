/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/node_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/topology/topology.h"

static void whole(kt_node_plan *plan, int n_threads) {
    plan->n = 1;
    plan->threads[0] = n_threads;
    plan->memory[0] = -1;
}

void kt_node_plan_undo(kt_node_plan *plan, int n_threads, const char *why) {
    whole(plan, n_threads);
    snprintf(plan->note, sizeof plan->note, "experts are not split over memory nodes: %s", why);
}

static void follow_machine(kt_node_plan *plan, const int *core_nodes, int n_known, int n_threads) {
    int n = 0;

    if (n_known >= n_threads)
        n = kt_topology_share_threads(core_nodes, n_threads, plan->memory, plan->threads,
                                      KT_MOE_MAX_NODES);
    plan->n = n;
    if (n > 1) return;
    whole(plan, n_threads);
    for (int i = 1; i < n_known; i++)
        if (core_nodes[i] != core_nodes[0] && n_known < n_threads)
            kt_node_plan_undo(plan, n_threads, "there are more threads than cores");
        else if (core_nodes[i] != core_nodes[0] && n == 0)
            kt_node_plan_undo(plan, n_threads, "the cores of a node do not lie together");
}

/* Equal groups, the first ones a thread larger. */
static void group(kt_node_plan *plan, int n, const int *core_nodes, int n_known, int n_threads) {
    int first = 0;

    plan->n = n;
    for (int i = 0; i < n; i++) {
        plan->threads[i] = n_threads / n + (i < n_threads % n);
        plan->memory[i] = first < n_known ? core_nodes[first] : -1;
        first += plan->threads[i];
    }
}

kt_status kt_node_plan_make(int numa, const int *core_nodes, int n_known, int n_threads,
                            kt_node_plan *out, kt_err *err) {
    memset(out, 0, sizeof *out);
    if (numa < 0 || numa > KT_MOE_MAX_NODES || (numa > 1 && numa > n_threads))
        return kt_fail(err, KT_E_INVALID,
                       "experts over %d memory nodes with %d threads: expected at most %d nodes "
                       "with a thread for each",
                       numa, n_threads, KT_MOE_MAX_NODES);
    if (numa == KT_NUMA_OFF)
        whole(out, n_threads);
    else if (numa == KT_NUMA_AUTO)
        follow_machine(out, core_nodes, n_known, n_threads);
    else
        group(out, numa, core_nodes, n_known, n_threads);
    return KT_OK;
}

kt_status kt_node_plan_cut(const kt_node_plan *nodes, const kt_moe_layer *whole, int64_t *begin,
                           kt_err *err) {
    double share[KT_MOE_MAX_NODES];

    for (int i = 0; i < nodes->n; i++) share[i] = nodes->has_equal_shares ? 1 : nodes->threads[i];
    return kt_moe_cut_channels(whole, share, nodes->n, begin, err);
}

char *kt_node_plan_format(const kt_node_plan *plan, char *out, size_t out_bytes) {
    size_t used;

    snprintf(out, out_bytes, "%s", plan->note);
    if (plan->n < 2) return out;
    snprintf(out, out_bytes, "experts cut over memory nodes:");
    for (int i = 0; i < plan->n; i++) {
        used = strlen(out);
        snprintf(out + used, out_bytes - used, "%s %d%s on node %d", i ? "," : "", plan->threads[i],
                 i                       ? ""
                 : plan->threads[0] == 1 ? " thread"
                                         : " threads",
                 plan->memory[i]);
    }
    return out;
}
