/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/device/device_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/model/bytes.h"
#include "runtime/model/model_dir.h"

#define SPARE 32 /* part of a device's memory that "auto" leaves */

/* A device that should have none of the experts: less than one of any model. */
static const double least_share = 1e-9;

/* What is known while planning. */
typedef struct maker {
    kt_device *device; /* the first one */
    kt_device *const *devices;
    int n;
    uint64_t free_bytes[KT_DEVICES_MOST], budget[KT_DEVICES_MOST];
    int *device_of; /* [weights] */
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

/* Buffers of a device, before it is known which experts lie there. */
static size_t most_staging(const maker *m, int device) {
    const kt_stream_plan *s = &m->out->stream;

    for (int i = 0; i < m->ask->graph->n_weights; i++)
        if (s->weight[i] && m->device_of[i] == device) return s->bytes;
    return 0;
}

/* Buffers as small as they must be for the rest to fit there. */
static void fit_buffers(maker *m, int device, uint64_t needed, uint64_t available) {
    kt_stream_plan *s = &m->out->stream;

    if (!most_staging(m, device)) return;
    while (needed + most_staging(m, device) > available && kt_stream_plan_shrink(s, m->ask))
        continue;
    if (needed + most_staging(m, device) <= available || !m->prefill.is_auto || s->learns) return;
    kt_stream_plan_drop(s, "the device has no room for their buffers");
    m->ask->streamed = NULL;
}

static kt_device_memory_request request_of(const maker *m, const kt_placement *p, int device) {
    return (kt_device_memory_request){.ask = m->ask,
                                      .placement = kt_placement_of(p, device),
                                      .kv_memory = m->wish->kv_memory,
                                      .logit_rows = m->wish->logit_rows,
                                      .available = m->free_bytes[device]};
}

/* What experts may take: the model is placed without any, and counted. The buffers are of one size,
 * that of the device with least room. */
static kt_status find_budget(maker *m, const kt_hot_experts *none, kt_err *err) {
    kt_device_memory_plan plan[KT_DEVICES_MOST] = {{0}};
    kt_status st = KT_OK;
    kt_placement bare;

    KT_TRY(kt_place(m->ask, none, m->wish->experts_only, &bare, err));
    for (int d = 0; d < m->n && st == KT_OK; d++) {
        const kt_device_memory_request request = request_of(m, &bare, d);
        st = kt_device_memory_count(&request, &plan[d], err);
        fit_buffers(m, d, plan[d].needed, plan[d].available);
    }
    for (int d = 0; d < m->n; d++) {
        const uint64_t needed = plan[d].needed + most_staging(m, d) +
                                plan[d].available / SPARE; /* drivers round up, others use some */
        m->budget[d] = needed < plan[d].available ? plan[d].available - needed : 0;
    }
    kt_placement_deinit(&bare);
    m->request.budget = m->budget[0];
    return st;
}

/* ---- several devices ---- */

static kt_status cut_layers(maker *m, kt_err *err) {
    kt_layer_cut_request cut = {.ask = m->ask,
                                .n = m->n,
                                .free_bytes = m->free_bytes,
                                .split = m->wish->split,
                                .expert_part = 1};
    const kt_graph *g = m->ask->graph;

    if (m->n == 1 && m->wish->split)
        return kt_fail(err, KT_E_INVALID, "--device-split is '%.60s' with one device",
                       m->wish->split);
    if (m->n == 1) return KT_OK;
    cut.expert_part = kt_hot_experts_part(&m->request, kt_model_count_experts(g).experts);
    KT_TRY(kt_layer_cut_make(&cut, m->out->first_layer, err));
    m->ask->n_devices = m->n;
    m->ask->first_layer = m->out->first_layer;
    for (int i = 0, layer = 0, d = 0; i < g->n_nodes; i++) {
        layer = kt_node_layer(&g->nodes[i], layer);
        while (d + 1 < m->n && m->out->first_layer[d + 1] <= layer) d++;
        if (g->nodes[i].weight >= 0) m->device_of[g->nodes[i].weight] = d;
        m->out->end_layer = layer + 1;
    }
    m->request.n_devices = m->n;
    m->request.budgets = m->budget;
    m->request.device_of = m->device_of;
    return KT_OK;
}

/* All pools have the same pages and slots: as many as the device has room for that has least. What
 * each has of them is counted again. */
static void find_pool(const maker *m) {
    kt_device_plan *p = m->out;

    for (int d = 0; d < p->n_devices; d++) {
        const kt_kv_plan *one = &p->memory[d].pool;
        if (one->pages == 0) continue;
        if (p->pool.pages == 0) p->pool = *one;
        if (one->pages < p->pool.pages) p->pool.pages = one->pages;
        if (one->slots < p->pool.slots) p->pool.slots = one->slots;
    }
    p->pool.bytes = 0;
    for (int d = 0; d < p->n_devices; d++) {
        const kt_device_memory_request request = request_of(m, &p->placement, d);
        if (p->memory[d].pool.pages == 0) continue;
        kt_device_memory_set_pool(&request, p->pool.pages, p->pool.slots, &p->memory[d]);
        p->pool.bytes = kt_bytes_add(p->pool.bytes, p->memory[d].cache);
    }
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
    kt_stream_plan *s = &m->out->stream;

    if (kt_stream_plan_is_for(s, m->ask->graph, &m->out->placement)) return;
    s->learns = false;
    if (s->group) kt_stream_plan_drop(s, "");
}

static kt_status make(maker *m, const size_t *bytes, const kt_hot_experts *none, kt_err *err) {
    kt_hot_experts *hot;

    m->request = (kt_hot_request){.amount = m->wish->gpu_experts,
                                  .strategy = m->wish->expert_placement,
                                  .load = m->wish->expert_load,
                                  .bytes = bytes,
                                  .share = find_share(m, bytes)};
    m->ask->keeps_all = kt_hot_experts_learn(&m->request);
    for (int d = 0; d < m->n; d++)
        KT_TRY(kt_device_memory(m->devices[d], &m->free_bytes[d], NULL, err));
    KT_TRY(cut_layers(m, err));
    KT_TRY(plan_stream(m, bytes, err));
    KT_TRY(find_budget(m, none, err));
    KT_TRY(kt_hot_experts_choose(m->ask->graph, &m->request, &m->out->hot, &hot, err));
    KT_TRY(kt_place(m->ask, hot, m->wish->experts_only, &m->out->placement, err));
    drop_idle_stream(m);
    for (int d = 0; d < m->n; d++) {
        kt_device_memory_request request = request_of(m, &m->out->placement, d);
        if (kt_stream_plan_is_for(&m->out->stream, m->ask->graph, request.placement))
            request.staging = m->out->stream.bytes;
        KT_TRY(kt_device_memory_count(&request, &m->out->memory[d], err));
    }
    find_pool(m);
    return KT_OK;
}

/* Code is chosen for the first device, and its targets are those that all can run. */
static kt_status check_targets(const maker *m, kt_err *err) {
    for (int d = 1; d < m->n; d++) {
        const kt_device_facts *a = kt_device_about(m->device), *b = kt_device_about(m->devices[d]);
        if (a->target != b->target)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%s is of sm_%s and %s of sm_%s, expected devices of one kind", a->name,
                           a->target->name, b->name, b->target->name);
    }
    return KT_OK;
}

kt_status kt_device_plan_make(kt_device *const *devices, int n, kt_device_ask *ask,
                              const kt_device_wish *wish, kt_device_plan *out, kt_err *err) {
    maker m = {
        .device = devices[0], .devices = devices, .n = n, .ask = ask, .wish = wish, .out = out};
    const size_t weights = (size_t)ask->graph->n_weights + 1;
    size_t *bytes = calloc(weights, sizeof *bytes);
    kt_hot_experts *none = calloc(weights, sizeof *none);
    kt_status st;

    memset(out, 0, sizeof *out);
    out->n_devices = n;
    m.device_of = calloc(weights, sizeof *m.device_of);
    ask->target = kt_device_about(devices[0])->target;
    st = bytes && none && m.device_of ? kt_stream_word_parse(wish->prefill_offload, &m.prefill, err)
                                      : kt_fail(err, KT_E_NOMEM, "no memory to place the model");
    if (st == KT_OK) st = check_targets(&m, err);
    if (st == KT_OK) {
        find_sizes(ask, bytes);
        st = make(&m, bytes, none, err);
    }
    free(bytes);
    free(none);
    free(m.device_of);
    if (st != KT_OK) kt_device_plan_deinit(out);
    return st;
}

char *kt_device_plan_name(const kt_device_plan *p, kt_device *const *devices, int i, char *out,
                          size_t out_bytes) {
    const char *name = kt_device_about(devices[i])->name;
    const int end = i + 1 < p->n_devices ? p->first_layer[i + 1] : p->end_layer;

    if (p->n_devices == 1)
        snprintf(out, out_bytes, "%.60s", name);
    else
        snprintf(out, out_bytes, "device %d of %d, layers %d to %d (%.40s)", i, p->n_devices,
                 p->first_layer[i], end - 1, name);
    return out;
}

kt_status kt_device_plan_check(const kt_device_plan *p, kt_device *const *devices, kt_err *err) {
    char name[160];

    for (int i = 0; i < p->n_devices; i++)
        KT_TRY(kt_device_memory_check(&p->memory[i],
                                      kt_device_plan_name(p, devices, i, name, sizeof name), err));
    return KT_OK;
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
