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
    kt_device_ask *ask;
    kt_stream_word prefill;
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

/* The first weight of experts that run there; -1 = none. */
static int first_experts(const maker *m, const size_t *bytes) {
    for (int i = 0; i < m->ask->graph->n_weights; i++)
        if (bytes[i]) return i;
    return -1;
}

/* Which experts may cross, and from how many rows of a step on. */
static kt_status plan_stream(maker *m, const size_t *bytes, kt_err *err) {
    const kt_model_plan *plan = m->ask->plan;
    const int weight = first_experts(m, bytes);
    kt_stream_request request = {.ask = m->ask,
                                 .word = &m->prefill,
                                 .rows = -1,
                                 .is_cut = m->wish->is_cut,
                                 .allow_nonfinite = m->wish->allow_nonfinite,
                                 .learns = m->ask->keeps_all};

    if (weight >= 0 && m->wish->table)
        request.rows =
            kt_plan_device_crossover(m->wish->table, kt_device_about(m->device),
                                     &kt_model_plan_run(plan, weight, 0)->problem, plan->threads);
    KT_TRY(kt_stream_plan_make(&request, &m->out->stream, err));
    if (m->out->stream.from_rows > m->ask->max_rows && m->out->stream.from_rows < INT64_MAX)
        kt_stream_plan_drop(&m->out->stream, "steps have fewer rows (--chunk)");
    m->ask->streamed = m->out->stream.from_rows < INT64_MAX ? m->out->stream.weight : NULL;
    return KT_OK;
}

/* Buffers as small as they must be for the rest to fit. */
static void fit_buffers(maker *m, uint64_t needed, uint64_t available) {
    kt_stream_plan *s = &m->out->stream;

    while (needed + s->bytes > available && kt_stream_plan_shrink(s, m->ask)) continue;
    if (needed + s->bytes <= available || !m->prefill.is_auto || s->learns) return;
    kt_stream_plan_drop(s, "the device has no room for their buffers");
    m->ask->streamed = NULL;
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
    fit_buffers(m, plan.needed, plan.available);
    plan.needed += m->out->stream.bytes;
    plan.needed += plan.available / SPARE; /* drivers round up, and others use the device, too */
    m->request.budget = plan.needed < plan.available ? plan.available - plan.needed : 0;
    return st;
}

/* What the table says of the first expert layer that runs there; 0 = nothing. */
static double find_share(const maker *m, const size_t *bytes) {
    const kt_model_plan *plan = m->ask->plan;

    const int weight = first_experts(m, bytes);
    double share;

    if (weight < 0 || !m->wish->table) return 0;
    share = kt_plan_device_share(m->wish->table, kt_device_about(m->device),
                                 &kt_model_plan_run(plan, weight, 0)->problem, plan->threads);
    return share < 0 ? 0 : share > 0 ? share : least_share;
}

/* Nothing is left to cross where every expert that could lies there. */
static void drop_idle_stream(maker *m) {
    const kt_graph *g = m->ask->graph;
    kt_stream_plan *s = &m->out->stream;

    for (int i = 0; i < g->n_nodes; i++)
        if (g->nodes[i].kind == KT_NODE_EXPERTS && g->nodes[i].is_routed &&
            s->weight[g->nodes[i].weight] && m->out->placement.side[i] == KT_SIDE_BOTH)
            return;
    s->learns = false;
    if (s->group) kt_stream_plan_drop(s, "");
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
    m->ask->keeps_all = kt_hot_experts_learn(&m->request);
    KT_TRY(plan_stream(m, bytes, err));
    KT_TRY(find_budget(m, none, err));
    KT_TRY(kt_hot_experts_choose(m->ask->graph, &m->request, &m->out->hot, &hot, err));
    KT_TRY(kt_place(m->ask, hot, m->wish->experts_only, &m->out->placement, err));
    drop_idle_stream(m);
    request.available = m->out->memory.available;
    request.staging = m->out->stream.bytes;
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
    st = bytes && none ? kt_stream_word_parse(wish->prefill_offload, &m.prefill, err)
                       : kt_fail(err, KT_E_NOMEM, "no memory to place the model");
    if (st == KT_OK) {
        find_sizes(ask, bytes);
        st = make(&m, bytes, none, err);
    }
    free(bytes);
    free(none);
    if (st != KT_OK) kt_device_plan_deinit(out);
    return st;
}

void kt_device_plan_deinit(kt_device_plan *p) {
    kt_placement_deinit(&p->placement);
    kt_stream_plan_deinit(&p->stream);
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
