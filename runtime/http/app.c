/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/app.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/err.h"

enum { default_queue = 32, prepare_surplus = 64 };

static void show_backend(kt_app *app, const kt_backend *backend, const kt_chat_model *chat) {
    app->backend = backend;
    app->chat = chat;
    if (!app->model_name) app->model_name = backend->model_name;
    atomic_store_explicit(&app->is_ready, true, memory_order_release);
}

kt_status kt_app_create(const kt_app_options *options, kt_app **out, kt_err *err) {
    kt_app *app = calloc(1, sizeof *app);
    int queue = options->queue ? options->queue : default_queue;
    const kt_scheduler_options scheduler = {.backend = options->backend,
                                            .queue = queue,
                                            .max_running = options->max_running,
                                            .itl_ns = options->itl_ns,
                                            .speculate = options->speculate,
                                            .draft = options->draft};
    kt_status st;

    *out = NULL;
    if (!app) return kt_fail(err, KT_E_NOMEM, "no memory for the server");
    app->model_name = options->model_name;
    app->log = options->log;
    app->owner = options->owner;
    app->write_props = options->write_props;
    app->write_machine = options->write_machine;
    app->write_metrics = options->write_metrics;
    kt_stats_init(&app->stats);
    app->created_s = kt_clock_unix_ms() / 1000;
    st = kt_scheduler_create(&scheduler, &app->scheduler, err);
    if (st == KT_OK && options->backend) show_backend(app, options->backend, options->chat);
    /* Preparing is quick; a request is refused for the scheduler's queue, not for this one. */
    if (st == KT_OK) st = kt_job_queue_create(queue + prepare_surplus, &app->prepare, err);
    if (st != KT_OK) {
        kt_app_destroy(app);
        return st;
    }
    *out = app;
    return KT_OK;
}

kt_status kt_app_ready(kt_app *app, const kt_backend *backend, const kt_chat_model *chat,
                       kt_err *err) {
    KT_TRY(kt_scheduler_ready(app->scheduler, backend, err));
    show_backend(app, backend, chat);
    return KT_OK;
}

const char *kt_app_why_not(void *app) {
    bool is_ready = atomic_load_explicit(&((kt_app *)app)->is_ready, memory_order_acquire);
    return is_ready ? NULL : "the model is being loaded";
}

void kt_app_destroy(kt_app *app) {
    if (!app) return;
    kt_job_queue_destroy(app->prepare); /* it feeds the other */
    kt_scheduler_destroy(app->scheduler);
    kt_stats_deinit(&app->stats);
    free(app);
}
