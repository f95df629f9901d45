/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/node_bytes.h"

#include <string.h>

#include "base/err.h"
#include "dispatch/model/family.h"
#include "runtime/model/bytes.h"

#define HUGE_PAGE ((size_t)2 << 20) /* what base/buffer.c maps by */

static kt_status add_layer(const kt_problem_plan *part, const kt_node_plan *nodes, size_t *out,
                           kt_err *err) {
    const kt_moe_layer whole = kt_problem_plan_layer(part);
    int64_t begin[KT_MOE_MAX_NODES + 1];

    KT_TRY(kt_node_plan_cut(nodes, &whole, begin, err));
    for (int i = 0; i < nodes->n; i++) {
        const kt_moe_layer slice = kt_moe_slice_layer(&whole, begin[i], begin[i + 1], NULL);
        const size_t bytes =
            kt_bytes_times(kt_bytes_round(kt_moe_expert_bytes(&slice)), part->problem.experts);
        out[i] = kt_bytes_add(out[i], bytes);
        out[i] = kt_bytes_add(out[i], (HUGE_PAGE - bytes % HUGE_PAGE) % HUGE_PAGE);
    }
    return KT_OK;
}

kt_status kt_node_bytes_count(const kt_model_plan *plan, const kt_node_plan *nodes,
                              size_t out[KT_MOE_MAX_NODES], kt_err *err) {
    const kt_graph *g = plan->graph;

    memset(out, 0, KT_MOE_MAX_NODES * sizeof *out);
    for (int i = 0; nodes->n > 1 && i < g->n_weights; i++)
        if (g->weights[i].kind == KT_WEIGHT_EXPERTS)
            KT_TRY(add_layer(kt_model_plan_run(plan, i, 0), nodes, out, err));
    for (int i = 0; i < nodes->n; i++)
        if (out[i] == SIZE_MAX)
            return kt_fail(err, KT_E_UNSUPPORTED, "%s: its memory is too large to count",
                           g->family->name);
    return KT_OK;
}
