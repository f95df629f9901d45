/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/engine_device.h"

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
    kt_device_options options = {.log = &e->log};
    kt_stream_word prefill;

    KT_TRY(kt_device_word_parse(o->device, is_used, &options, err));
    if (!*is_used) return KT_OK;
    KT_TRY(kt_hot_request_check(&request, err));
    KT_TRY(kt_stream_word_parse(o->prefill_offload, &prefill, err));
    KT_TRY(check_options(o, err));
    if (e->model.checkpoint && kt_checkpoint_panels(e->model.checkpoint))
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: a converted model holds panels for CPUs; with --device expected "
                       "the folder that it was made of",
                       e->model.name);
    return kt_device_open(&options, &e->device, err);
}

/* ---- placing ---- */

static void tell(kt_engine *e) {
    const char *name = kt_device_about(e->device)->name;
    char line[1024];

    kt_log_write(&e->log, KT_LOG_INFO, "device", "%s",
                 kt_device_memory_line(&e->beside.memory, name, line, sizeof line));
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
                                 .is_cut = e->nodes.n > 1,
                                 .allow_nonfinite = o->allow_nonfinite,
                                 .kv_memory = o->kv_memory,
                                 .logit_rows = o->logit_rows,
                                 .table = e->table};
    bool is_used;

    KT_TRY(open_device(e, o, &is_used, err));
    if (!is_used) return KT_OK;
    KT_TRY(kt_device_plan_make(e->device, &ask, &wish, &e->beside, err));
    e->plan.away = e->beside.placement.away;
    if (kt_device_keeps_any(&e->beside.placement, ask.graph)) kt_model_plan_set_expand(&e->plan, 0);
    tell(e);
    return kt_device_memory_check(&e->beside.memory, kt_device_about(e->device)->name, err);
}

bool kt_engine_cache_is_away(const kt_engine *e) {
    return e->device && kt_device_keeps_all(&e->beside.placement, &e->model.graph);
}

void kt_engine_fit_pool(const kt_engine *e, kt_kv_plan *pool) {
    const kt_kv_plan *most = &e->beside.memory.pool;

    if (!e->step.device || most->pages == 0) return;
    if (kt_device_keeps_all(&e->beside.placement, &e->model.graph)) *pool = *most;
    if (pool->pages > most->pages) pool->pages = most->pages;
    if (pool->slots > most->slots) pool->slots = most->slots;
}

/* ---- loading ---- */

static void tell_kernels(kt_engine *e) {
    const kt_device_advice *a = kt_device_step_advice(e->step.device);

    if (kt_device_step_mailbox(e->step.device))
        kt_log_write(&e->log, KT_LOG_INFO, "device",
                     "steps of decoding are put whole, with letters to the host (KT_MAILBOX)");
    if (a->n_used)
        kt_log_write(&e->log, KT_LOG_INFO, "device", "%d rows of the table choose its kernels",
                     a->n_used);
    if (a->n_ignored) kt_log_write(&e->log, KT_LOG_WARN, "device", "%s", a->note);
    if (*kt_device_step_unpinned(e->step.device))
        kt_log_write(&e->log, KT_LOG_WARN, "device",
                     "experts cross more slowly, as their memory could not be pinned: %s",
                     kt_device_step_unpinned(e->step.device));
}

kt_status kt_engine_load_device(kt_engine *e, const kt_engine_options *o,
                                const kt_checkpoint *importance, kt_err *err) {
    kt_device_setup setup = {.device = e->device,
                             .step = &e->step,
                             .placement = &e->beside.placement,
                             .stream = &e->beside.stream,
                             .weights = e->weights,
                             .checkpoint = e->model.checkpoint,
                             .importance = importance,
                             .allow_nonfinite = o->allow_nonfinite,
                             .table = e->table,
                             .is_exact = o->exact_acts,
                             .pool = e->pool,
                             .logit_rows = o->logit_rows,
                             .cancel = o->cancel,
                             .cancel_arg = o->cancel_arg};

    if (!e->device) return KT_OK;
    e->device = NULL; /* the step's, also when that fails */
    KT_TRY(kt_device_step_create(&setup, &e->step.device, err));
    tell_kernels(e);
    e->step.cold_sum = kt_device_step_sum(e->step.device);
    return KT_OK;
}

kt_status kt_engine_keep_on_device(kt_engine *e, kt_err *err) {
    if (!e->step.device) return KT_OK;
    return kt_device_step_keep(e->step.device, &e->pages, e->state_floats ? &e->states : NULL, err);
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
    kt_device_step_destroy(e->step.device);
    e->step.device = NULL;
    if (e->device) kt_device_close(e->device);
    e->device = NULL;
    kt_device_plan_deinit(&e->beside);
}
