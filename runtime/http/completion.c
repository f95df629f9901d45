/* A completion's way through the queues. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/completion.h"

#include <stdlib.h>

#include "base/clock.h"

void kt_completion_destroy(kt_completion *c) {
    kt_stats_end(&c->app->stats, &c->activity, c->outcome);
    kt_http_release(c->x);
    for (size_t i = 0; c->echoed && i < c->request.n_prompts; i++) free(c->echoed[i].data);
    for (size_t i = 0; c->choices && i < kt_request_choices(&c->request); i++) {
        free(c->choices[i].text.data);
        free(c->choices[i].logprobs);
    }
    free(c->echoed);
    free(c->choices);
    kt_request_deinit(&c->request);
    free(c);
}

static bool abandoned(const kt_job *job) {
    return kt_http_gone(((const kt_completion *)(const void *)job)->x);
}

/* The client left, or the server is going down. */
static void drop(kt_job *job) {
    kt_completion *c = (kt_completion *)(void *)job;

    atomic_fetch_add(&c->app->n_cancelled, 1);
    c->outcome = KT_ENDING_ABORT;
    kt_http_fail(c->x, 503, "server_error", NULL, "shutting_down", "the server is shutting down");
    kt_completion_destroy(c);
}

static void run_prepare(kt_job *job) {
    kt_completion *c = (kt_completion *)(void *)job;
    kt_api_error error = {0};
    size_t size;
    const char *body = kt_http_body(c->x, &size);

    if (!kt_completion_parse(c, body, size, &error)) {
        kt_http_fail(c->x, error.status, error.type, error.param[0] ? error.param : NULL,
                     error.code, "%s", error.message);
        kt_completion_destroy(c);
        return;
    }
    kt_http_drop_body(c->x);
    if (!kt_completion_submit(c)) kt_completion_destroy(c);
}

void kt_completion_start(kt_app *app, kt_http_exchange *x) {
    kt_completion *c = calloc(1, sizeof *c);

    if (!c) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the request");
        return;
    }
    kt_http_keep(x);
    c->app = app;
    c->x = x;
    kt_request_init(&c->request);
    c->outcome = KT_ENDING_ERROR;
    kt_stats_begin(&app->stats, &c->activity, "completions", kt_http_request_id(x));
    c->created_s = kt_clock_unix_ms() / 1000;
    c->job.run = run_prepare;
    c->job.drop = drop;
    c->job.abandoned = abandoned;
    if (kt_job_queue_push(app->prepare, &c->job)) return;
    kt_http_fail(x, 429, "rate_limit_error", NULL, "queue_full",
                 "the queue is full: %d requests are waiting",
                 kt_job_queue_count(app->prepare).capacity);
    kt_completion_destroy(c);
}
