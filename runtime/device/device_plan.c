/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"

#define SPARE 32 /* part of a device's memory that "auto" leaves */

/* A device that should have none of the experts: less than one of any model. */
static const double least_share = 1e-9;

/* What is known while planning. */
typedef struct maker {
    kt_device *device;
    const kt_device_ask *ask;
    const kt_device_wish *wish;
    kt_hot_request request;
    kt_device_plan *out;
} maker;

/* Experts that no operation of the device runs are not to be chosen: they have no size there. */
static void find_sizes(const kt_device_ask *ask, size_t *bytes) {
    const kt_device_op *op = kt_device_op_find(KT_NODE_EXPERTS);

    for (int i = 0; i < ask->graph->n_nodes && op; i++) {
        const kt_node *n = &ask->graph->nodes[i];
        if (n->kind != KT_NODE_EXPERTS || !n->is_routed) continue;
        if (!op->refuse || !op->refuse(ask, n))
            bytes[n->weight] = kt_device_expert_bytes(ask->plan, n->weight);
    }
}

/* What experts may take: the model is placed without any, and counted. */
static kt_status find_budget(maker *m, const kt_hot_experts *none, kt_err *err) {
    kt_placement bare;
    kt_device_memory_plan plan = {0};
    kt_device_memory_request request = {.ask = m->ask,
                                        .placement = &bare,
                                        .kv_memory = m->wish->kv_memory,
                                        .logit_rows = m->wish->logit_rows};
    kt_status st;

    KT_TRY(kt_device_memory(m->device, &request.available, NULL, err));
    KT_TRY(kt_place(m->ask, none, m->wish->experts_only, &bare, err));
    st = kt_device_memory_count(&request, &plan, err);
    kt_placement_deinit(&bare);
    m->out->memory.available = request.available;
    plan.needed += plan.available / SPARE; /* drivers round up, and others use the device, too */
    m->request.budget = plan.needed < plan.available ? plan.available - plan.needed : 0;
    return st;
}

/* What the table says of the first expert layer that runs there; 0 = nothing. */
static double find_share(const maker *m, const size_t *bytes) {
    const kt_model_plan *plan = m->ask->plan;

    for (int i = 0; i < m->ask->graph->n_weights && m->wish->table; i++) {
        double share;
        if (bytes[i] == 0) continue;
        share = kt_plan_device_share(m->wish->table, kt_device_about(m->device),
                                     &kt_model_plan_run(plan, i, 0)->problem, plan->threads);
        return share < 0 ? 0 : share > 0 ? share : least_share;
    }
    return 0;
}

static kt_status make(maker *m, const size_t *bytes, const kt_hot_experts *none, kt_err *err) {
    kt_hot_experts *hot;
    kt_device_memory_request request = {.ask = m->ask,
                                        .placement = &m->out->placement,
                                        .kv_memory = m->wish->kv_memory,
                                        .logit_rows = m->wish->logit_rows};

    m->request = (kt_hot_request){.amount = m->wish->gpu_experts,
                                  .strategy = m->wish->expert_placement,
                                  .load = m->wish->expert_load,
                                  .bytes = bytes,
                                  .share = find_share(m, bytes)};
    KT_TRY(find_budget(m, none, err));
    KT_TRY(kt_hot_experts_choose(m->ask->graph, &m->request, &m->out->hot, &hot, err));
    KT_TRY(kt_place(m->ask, hot, m->wish->experts_only, &m->out->placement, err));
    request.available = m->out->memory.available;
    return kt_device_memory_count(&request, &m->out->memory, err);
}

kt_status kt_device_plan_make(kt_device *device, kt_device_ask *ask, const kt_device_wish *wish,
                              kt_device_plan *out, kt_err *err) {
    maker m = {.device = device, .ask = ask, .wish = wish, .out = out};
    const size_t n = (size_t)ask->graph->n_weights + 1;
    size_t *bytes = calloc(n, sizeof *bytes);
    kt_hot_experts *none = calloc(n, sizeof *none);
    kt_status st;

    memset(out, 0, sizeof *out);
    ask->target = kt_device_about(device)->target;
    if (bytes && none) {
        find_sizes(ask, bytes);
        st = make(&m, bytes, none, err);
    } else {
        st = kt_fail(err, KT_E_NOMEM, "no memory to place the model");
    }
    free(bytes);
    free(none);
    if (st != KT_OK) kt_device_plan_deinit(out);
    return st;
}

void kt_device_plan_deinit(kt_device_plan *p) {
    kt_placement_deinit(&p->placement);
    kt_arena_deinit(&p->hot);
    memset(p, 0, sizeof *p);
}

static bool is_any(const bool *away, int n) {
    for (int i = 0; i < n; i++)
        if (away[i]) return true;
    return false;
}

static bool is_all(const bool *away, int n) {
    for (int i = 0; i < n; i++)
        if (!away[i]) return false;
    return true;
}

bool kt_device_keeps_all(const kt_placement *p, const kt_graph *g) {
    return g->n_planes && is_all(p->is_plane_away, g->n_planes) &&
           is_all(p->is_slot_away, g->n_slots);
}

bool kt_device_keeps_any(const kt_placement *p, const kt_graph *g) {
    return is_any(p->is_plane_away, g->n_planes) || is_any(p->is_slot_away, g->n_slots);
}
