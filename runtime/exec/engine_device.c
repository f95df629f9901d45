/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/engine_device.h"

#include <stdio.h>

#include "base/err.h"
#include "runtime/device/device_run.h"
#include "runtime/kv/page_tier.h"
#include "dispatch/device/device_word.h"

/* ---- what the options allow ---- */

static kt_status check_options(const kt_engine_options *o, kt_err *err) {
    if (!o->deterministic) return KT_OK;
    return kt_fail(
        err, KT_E_UNSUPPORTED,
        "the same bits on any number of threads are promised for the CPU alone, expected "
        "--deterministic or --device %.60s, not both",
        o->device);
}

static kt_status open_device(kt_engine *e, const kt_engine_options *o, bool *is_used, kt_err *err) {
    const kt_hot_request request = {
        .amount = o->gpu_experts, .strategy = o->expert_placement, .load = o->expert_load};
    kt_device_options options[KT_DEVICES_MOST] = {{0}};
    kt_stream_word prefill;

    int n;

    KT_TRY(kt_device_words_parse(o->device, options, &n, err));
    *is_used = n > 0;
    if (!*is_used) return KT_OK;
    KT_TRY(kt_hot_request_check(&request, err));
    KT_TRY(kt_stream_word_parse(o->prefill_offload, &prefill, err));
    KT_TRY(check_options(o, err));
    if (e->model.checkpoint && kt_checkpoint_panels(e->model.checkpoint))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: a converted model holds panels for CPUs; with --device expected "
                       "the folder that it was made of",
                       e->model.name);
    return kt_devices_open(o->device, &e->log, e->device, &e->n_devices, err);
}

/* ---- placing ---- */

static void tell(kt_engine *e) {
    char line[1024], name[160];

    for (int i = 0; i < e->n_devices; i++) {
        kt_device_plan_name(&e->beside, e->device, i, name, sizeof name);
        kt_log_write(&e->log, KT_LOG_INFO, "device", "%s",
                     kt_device_memory_line(&e->beside.memory[i], name, line, sizeof line));
    }
    if (*kt_placement_line(&e->beside.placement, &e->model.graph, line, sizeof line))
        kt_log_write(&e->log, KT_LOG_INFO, "device", "%s", line);
    if (*kt_stream_plan_line(&e->beside.stream, line, sizeof line))
        kt_log_write(&e->log, *e->beside.stream.note ? KT_LOG_WARN : KT_LOG_INFO, "device", "%s",
                     line);
}

kt_status kt_engine_place(kt_engine *e, const kt_engine_options *o, kt_err *err) {
    kt_device_ask ask = {.graph = &e->model.graph,
                         .plan = &e->plan,
                         .kv = e->kv,
                         .max_rows = e->max_chunk,
                         .max_context = e->max_context};
    const kt_device_wish wish = {.gpu_experts = o->gpu_experts,
                                 .expert_placement = o->expert_placement,
                                 .expert_load = o->expert_load,
                                 .prefill_offload = o->prefill_offload,
                                 .experts_only = o->experts_only,
                                 .split = o->device_split,
                                 .is_cut = e->nodes.n > 1,
                                 .allow_nonfinite = o->allow_nonfinite,
                                 .kv_memory = o->kv_memory,
                                 .logit_rows = o->logit_rows,
                                 .table = e->table};
    bool is_used;

    KT_TRY(open_device(e, o, &is_used, err));
    if (!is_used) return KT_OK;
    KT_TRY(kt_device_plan_make(e->device, e->n_devices, &ask, &wish, &e->beside, err));
    e->plan.away = e->beside.placement.away;
    if (kt_device_keeps_any(&e->beside.placement, ask.graph)) kt_model_plan_set_expand(&e->plan, 0);
    tell(e);
    return kt_device_plan_check(&e->beside, e->device, err);
}

void kt_engine_device_line(const kt_engine *e, char *out, size_t out_bytes) {
    const kt_device_plan *p = &e->beside;
    size_t used = 0;

    *out = '\0';
    for (int i = 0; i < p->n_devices && used < out_bytes; i++) {
        char line[256], name[160];
        snprintf(name, sizeof name, "%.60s", kt_device_step_name(e->step.devices[i]));
        kt_device_memory_line(&p->memory[i], name, line, sizeof line);
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i ? "; " : "", line);
    }
}

kt_status kt_engine_leave_out(kt_engine *e, kt_left_out side, kt_err *err) {
    if (!e->step.place)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: no device computes beside the CPU",
                       e->model.name);
    if (!e->expert_map)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: it has no routed experts", e->model.name);
    e->step.left_out = side;
    return KT_OK;
}

bool kt_engine_cache_is_away(const kt_engine *e) {
    return e->n_devices && kt_device_keeps_all(&e->beside.placement, &e->model.graph);
}

void kt_engine_fit_pool(const kt_engine *e, kt_kv_plan *pool) {
    const kt_kv_plan *most = &e->beside.pool;

    if (!e->step.device || most->pages == 0) return;
    if (kt_device_keeps_all(&e->beside.placement, &e->model.graph)) *pool = *most;
    if (pool->pages > most->pages) pool->pages = most->pages;
    if (pool->slots > most->slots) pool->slots = most->slots;
}

/* ---- loading ---- */

static void tell_kernels(kt_engine *e) {
    const kt_device_advice *a = kt_device_step_advice(e->step.device);
    bool is_whole = true;

    for (int i = 0; i < e->n_devices; i++)
        is_whole = is_whole && kt_device_step_mailbox(e->step.devices[i]);
    if (is_whole)
        kt_log_write(&e->log, KT_LOG_INFO, "device",
                     "steps of decoding are put %s letters to the host (KT_MAILBOX)",
                     kt_mailbox_is_led(kt_device_step_mailbox(e->step.device)) ? "in pieces between"
                                                                               : "whole, with");
    if (a->n_used)
        kt_log_write(&e->log, KT_LOG_INFO, "device", "%d rows of the table choose its kernels",
                     a->n_used);
    if (a->n_ignored) kt_log_write(&e->log, KT_LOG_WARN, "device", "%s", a->note);
    for (int i = 0; i < e->n_devices; i++)
        if (*kt_device_step_unpinned(e->step.devices[i]))
            kt_log_write(&e->log, KT_LOG_WARN, "device",
                         "experts cross more slowly, as their memory could not be pinned: %s",
                         kt_device_step_unpinned(e->step.devices[i]));
}

/* A device is the step's from here on, also where that fails. */
static kt_status load_one(kt_engine *e, kt_device_setup *setup, int i, kt_err *err) {
    setup->device = e->device[i];
    setup->number = i;
    setup->placement = kt_placement_of(&e->beside.placement, i);
    e->device[i] = NULL;
    return kt_device_step_create(setup, &e->step.devices[i], err);
}

kt_status kt_engine_load_device(kt_engine *e, const kt_engine_options *o,
                                const kt_checkpoint *importance, kt_err *err) {
    kt_device_setup setup = {.step = &e->step,
                             .stream = &e->beside.stream,
                             .weights = e->weights,
                             .checkpoint = e->model.checkpoint,
                             .importance = importance,
                             .allow_nonfinite = o->allow_nonfinite,
                             .table = e->table,
                             .is_exact = o->exact_acts,
                             .has_twins = e->is_synthetic,
                             .pool = e->pool,
                             .logit_rows = o->logit_rows,
                             .cancel = o->cancel,
                             .cancel_arg = o->cancel_arg};

    if (!e->n_devices) return KT_OK;
    for (int i = 0; i < e->n_devices; i++) KT_TRY(load_one(e, &setup, i, err));
    e->step.device = e->step.devices[0];
    tell_kernels(e);
    e->step.cold_sum = kt_device_step_sum(e->step.device);
    return KT_OK;
}

kt_status kt_engine_keep_on_device(kt_engine *e, kt_err *err) {
    for (int i = 0; i < e->n_devices; i++)
        KT_TRY(kt_device_step_keep(e->step.devices[i], &e->pages,
                                   e->state_floats ? &e->states : NULL, err));
    return KT_OK;
}

kt_status kt_engine_add_tier(kt_engine *e, size_t bytes, kt_err *err) {
    const size_t page = kt_kv_page_bytes(&e->kv);
    kt_err why = {KT_OK, ""};
    kt_buffer *memory;
    kt_status st;

    if (!bytes || !e->step.device) return KT_OK;
    st = kt_page_tier_create(&e->pages, (int64_t)(bytes / page), &why);
    if (st == KT_E_UNSUPPORTED) {
        kt_log_write(&e->log, KT_LOG_WARN, "device", "%s", why.message);
        return KT_OK;
    }
    if (st != KT_OK) return kt_fail(err, st, "%s", why.message);
    memory = kt_page_tier_memory(e->pages.tier);
    kt_device_step_pin(e->step.device, memory->data, memory->bytes);
    return KT_OK;
}

void kt_engine_close_device(kt_engine *e) {
    for (int i = 0; i < e->n_devices; i++) {
        if (e->step.devices) kt_device_step_destroy(e->step.devices[i]);
        if (e->step.devices) e->step.devices[i] = NULL;
        kt_device_close(e->device[i]);
        e->device[i] = NULL;
    }
    e->step.device = NULL;
    e->n_devices = 0;
    kt_device_plan_deinit(&e->beside);
}
