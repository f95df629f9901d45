/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/engine_device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "runtime/device/device_run.h"
#include "runtime/device/device_word.h"
#include "runtime/device/hot_experts.h"

/* ---- what the options allow ---- */

static kt_status check_options(const kt_engine_options *o, kt_err *err) {
    if (!o->deterministic) return KT_OK;
    return kt_fail(
        err, KT_E_UNSUPPORTED,
        "the same bits on any number of threads are promised for the CPU alone, expected "
        "--deterministic or --device %.60s, not both",
        o->device);
}

static kt_hot_request hot_request(const kt_engine_options *o) {
    return (kt_hot_request){
        .amount = o->gpu_experts, .strategy = o->expert_placement, .load = o->expert_load};
}

static kt_status open_device(kt_engine *e, const kt_engine_options *o, bool *is_used, kt_err *err) {
    kt_device_options options = {.log = &e->log};
    const kt_hot_request request = hot_request(o);

    KT_TRY(kt_device_word_parse(o->device, is_used, &options, err));
    if (!*is_used) return KT_OK;
    KT_TRY(kt_hot_request_check(&request, err));
    KT_TRY(check_options(o, err));
    if (e->model.checkpoint && kt_checkpoint_panels(e->model.checkpoint))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: a converted model holds panels for CPUs; with --device expected "
                       "the folder that it was made of",
                       e->model.name);
    return kt_device_open(&options, &e->device, err);
}

/* ---- placing ---- */

static bool is_any(const bool *away, int n) {
    for (int i = 0; i < n; i++)
        if (away[i]) return true;
    return false;
}

/* Experts that no operation of the device runs take no room there: they are not to be chosen. */
static kt_status find_sizes(const kt_device_ask *ask, size_t *bytes, kt_err *err) {
    const kt_device_op *op = kt_device_op_find(KT_NODE_EXPERTS);

    (void)err;
    for (int i = 0; i < ask->graph->n_nodes; i++) {
        const kt_node *n = &ask->graph->nodes[i];
        if (n->kind != KT_NODE_EXPERTS || !n->is_routed || !op) continue;
        if (!op->refuse || !op->refuse(ask, n))
            bytes[n->weight] = kt_device_expert_bytes(ask->plan, n->weight);
    }
    return KT_OK;
}

/* Without experts first: what they may take is what is left. */
static kt_status choose(kt_engine *e, const kt_engine_options *o, const kt_device_ask *ask,
                        kt_hot_request *request, kt_err *err) {
    const kt_graph *g = ask->graph;
    const kt_hot_experts *none = calloc((size_t)g->n_weights + 1, sizeof *none);
    kt_device_memory_request memory = {
        .ask = ask, .kv_memory = o->kv_memory, .logit_rows = o->logit_rows};
    kt_device_memory_plan plan;
    kt_placement bare = {0};
    kt_hot_experts *hot;
    kt_status st;

    st = none ? kt_place(ask, none, o->experts_only, &bare, err)
              : kt_fail(err, KT_E_NOMEM, "no memory to place the model");
    if (st == KT_OK) st = kt_device_memory(e->device, &memory.available, NULL, err);
    memory.placement = &bare;
    if (st == KT_OK) st = kt_device_memory_count(&memory, &plan, err);
    if (st == KT_OK) {
        request->budget = plan.needed < plan.available ? plan.available - plan.needed : 0;
        st = kt_hot_experts_choose(g, request, &e->hot, &hot, err);
    }
    if (st == KT_OK) st = kt_place(ask, hot, o->experts_only, &e->placement, err);
    memory.placement = &e->placement;
    if (st == KT_OK) st = kt_device_memory_count(&memory, &e->device_memory, err);
    kt_placement_deinit(&bare);
    free((void *)(uintptr_t)none);
    return st;
}

static void tell(kt_engine *e) {
    const char *name = kt_device_about(e->device)->name;
    char line[1024];

    kt_log_write(&e->log, KT_LOG_INFO, "device", "%s",
                 kt_device_memory_line(&e->device_memory, name, line, sizeof line));
    if (*kt_placement_line(&e->placement, &e->model.graph, line, sizeof line))
        kt_log_write(&e->log, KT_LOG_INFO, "device", "%s", line);
}

kt_status kt_engine_place(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    kt_hot_request request = hot_request(o);
    kt_device_ask ask = {.graph = &e->model.graph,
                         .plan = &e->plan,
                         .kv = e->kv,
                         .max_rows = e->max_chunk,
                         .max_context = e->max_context};
    size_t *bytes;
    bool is_used;
    kt_status st;

    KT_TRY(open_device(e, o, &is_used, err));
    if (!is_used) return KT_OK;
    ask.target = kt_device_about(e->device)->target;
    bytes = calloc((size_t)ask.graph->n_weights + 1, sizeof *bytes);
    if (!bytes) return kt_fail(err, KT_E_NOMEM, "no memory to place the model");
    request.bytes = bytes;
    st = find_sizes(&ask, bytes, err);
    if (st == KT_OK) st = choose(e, o, &ask, &request, err);
    free(bytes);
    if (st != KT_OK) return st;
    e->plan.away = e->placement.away;
    if (is_any(e->placement.is_plane_away, ask.graph->n_planes))
        kt_model_plan_set_expand(&e->plan, 0);
    tell(e);
    return kt_device_memory_check(&e->device_memory, kt_device_about(e->device)->name, err);
}

bool kt_engine_cache_is_away(const kt_engine *e) {
    return e->device && kt_device_keeps_all(&e->placement, &e->model.graph);
}

void kt_engine_fit_pool(const kt_engine *e, kt_kv_plan *pool) {
    const kt_kv_plan *most = &e->device_memory.pool;

    if (!e->step.device || most->pages == 0) return;
    if (kt_device_keeps_all(&e->placement, &e->model.graph)) *pool = *most;
    if (pool->pages > most->pages) pool->pages = most->pages;
    if (pool->slots > most->slots) pool->slots = most->slots;
}

/* ---- loading ---- */

kt_status kt_engine_load_device(kt_engine *e, const kt_engine_options *o,
                                const kt_checkpoint *importance, kt_err *err) {
    kt_device_setup setup = {.device = e->device,
                             .step = &e->step,
                             .placement = &e->placement,
                             .checkpoint = e->model.checkpoint,
                             .importance = importance,
                             .allow_nonfinite = o->allow_nonfinite,
                             .pool = e->pool,
                             .logit_rows = o->logit_rows,
                             .cancel = o->cancel,
                             .cancel_arg = o->cancel_arg};

    if (!e->device) return KT_OK;
    e->device = NULL; /* the step's, also when that fails */
    KT_TRY(kt_device_step_create(&setup, &e->step.device, err));
    e->step.cold_sum = kt_device_step_sum(e->step.device);
    return KT_OK;
}

kt_status kt_engine_keep_on_device(kt_engine *e, kt_err *err) {
    if (!e->step.device) return KT_OK;
    return kt_device_step_keep(e->step.device, &e->pages, e->state_floats ? &e->states : NULL, err);
}

void kt_engine_close_device(kt_engine *e) {
    kt_device_step_destroy(e->step.device);
    e->step.device = NULL;
    if (e->device) kt_device_close(e->device);
    e->device = NULL;
    kt_placement_deinit(&e->placement);
    kt_arena_deinit(&e->hot);
}
