/* The application behind the routes: one model, its queue and its scheduler, its counters.
 *
 * A request goes through three threads: the event thread reads it, the prepare thread parses and
 * tokenises it, the scheduler's thread computes and answers it. None waits for another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_APP_H
#define KT_RUNTIME_APP_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/json.h"
#include "base/log.h"
#include "runtime/http/api/chat_model.h"
#include "runtime/http/http_stats.h"
#include "runtime/sched/backend.h"
#include "runtime/sched/job_queue.h"
#include "runtime/sched/scheduler.h"

typedef struct kt_app_options {
    const kt_backend *backend; /* borrowed; NULL = not loaded yet, see kt_app_ready */
    const kt_chat_model *chat; /* borrowed; NULL = no chat, or see kt_app_ready */
    const char *model_name;    /* as clients call it; NULL = the backend's; borrowed */
    int queue;                 /* requests that may wait for the engine; 0 = 32 */
    int max_running;           /* choices computed side by side; 0 = 64 */
    int64_t itl_ns;            /* longest step beside a choice that is generating; 0 = 200 ms */
    kt_speculation speculate;  /* kt_scheduler_options has them */
    int draft;
    const kt_log *log; /* borrowed; may be NULL */
    void *owner;       /* borrowed; the program's, not looked at */
    /* NULL, or adds members about model, machine and kernels to the object of /props. Event thread.
     */
    void (*write_props)(void *owner, kt_json_writer *w);
    /* The same for /machine: kernels and experts. */
    void (*write_machine)(void *owner, kt_json_writer *w);
    /* NULL, or calls put for each kernel that runs, with the labels of its series in /metrics. */
    void (*write_metrics)(void *owner, void (*put)(void *arg, const char *labels), void *arg);
} kt_app_options;

typedef struct kt_app {
    atomic_bool is_ready; /* the next two may be read */
    const kt_backend *backend;
    const kt_chat_model *chat; /* NULL: the model has no way to write conversations */
    const char *model_name;
    const kt_log *log;
    void *owner;
    void (*write_props)(void *owner, kt_json_writer *w);
    void (*write_machine)(void *owner, kt_json_writer *w);
    void (*write_metrics)(void *owner, void (*put)(void *arg, const char *labels), void *arg);
    kt_stats stats;
    int64_t created_s; /* Unix time */
    kt_job_queue *prepare;
    kt_scheduler *scheduler;
    atomic_llong n_finished, n_cancelled;
} kt_app;

kt_status kt_app_create(const kt_app_options *options, kt_app **out, kt_err *err);
/* From now on there is a model, and, unless NULL, chat (both borrowed). Once, on the scheduler's
 * thread (kt_scheduler_call), when the app was created without one. */
kt_status kt_app_ready(kt_app *app, const kt_backend *backend, const kt_chat_model *chat,
                       kt_err *err);
/* For kt_http_options.why_not: what routes other than public ones answer until then; else NULL. */
const char *kt_app_why_not(void *app);

/* How busy the engine is. */
typedef struct kt_app_gauges {
    int running, waiting, queue; /* requests; queue: how many may wait */
} kt_app_gauges;

/* After the server's run returned, so that every client has left and work in progress stops. */
void kt_app_destroy(kt_app *app);

#endif
