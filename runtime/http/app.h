/* The application behind the routes: one model, its two queues, its counters.
 *
 * A request goes through three threads: the event thread reads it, the prepare thread parses and tokenises
 * it, the engine thread answers it. None waits for another.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_APP_H
#define KT_RUNTIME_APP_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/log.h"
#include "runtime/http/backend.h"
#include "runtime/sched/job_queue.h"

typedef struct kt_app_options {
    const kt_backend *backend; /* borrowed */
    const char *model_name;    /* as clients call it; NULL = the backend's; borrowed */
    int queue;                 /* requests that may wait for the engine; 0 = 32 */
    const kt_log *log;         /* borrowed; may be NULL */
} kt_app_options;

typedef struct kt_app {
    const kt_backend *backend;
    const char *model_name;
    const kt_log *log;
    int64_t created_s; /* Unix time */
    kt_job_queue *prepare, *engine;
    atomic_llong n_finished, n_cancelled;
} kt_app;

kt_status kt_app_create(const kt_app_options *options, kt_app **out, kt_err *err);
/* After the server's run returned, so that every client has left and work in progress stops. */
void kt_app_destroy(kt_app *app);

#endif
