/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/api/body_job.h"

#include <stdlib.h>

#include "runtime/http/model_card.h"

typedef struct body_job {
    kt_job job; /* first: the queue hands back this pointer */
    kt_app *app;
    kt_http_exchange *x; /* kept */
    kt_body_handler *handler;
} body_job;

void kt_api_fail(kt_http_exchange *x, const kt_api_error *e) {
    kt_http_fail(x, e->status, e->type, e->param[0] ? e->param : NULL, e->code, "%s", e->message);
}

kt_json_doc *kt_api_parse_body(kt_http_exchange *x, kt_api_error *e) {
    const kt_json_limits limits = {.max_depth = KT_MAX_BODY_DEPTH,
                                   .max_values = KT_MAX_BODY_VALUES};
    size_t size;
    const char *text = kt_http_body(x, &size);
    kt_json_doc *doc = NULL;
    kt_err err = {0};
    kt_status st = kt_json_parse(text, size, &limits, &doc, &err);
    kt_json_type type;

    if (st == KT_E_NOMEM) {
        kt_api_no_memory(e);
        return NULL;
    }
    if (st != KT_OK) {
        kt_api_refuse(e, 400, NULL, "invalid_json", "the body is not valid JSON: %s", err.message);
        return NULL;
    }
    type = kt_json_type_of(kt_json_root(doc));
    if (type == KT_JSON_OBJECT) return doc;
    kt_api_refuse(e, 400, NULL, "invalid_type", "the body is of type %s, expected an object",
                  kt_json_type_name(type));
    kt_json_destroy(doc);
    return NULL;
}

static void destroy(body_job *j) {
    kt_http_release(j->x);
    free(j);
}

static void run(kt_job *job) {
    body_job *j = (body_job *)(void *)job;
    kt_api_error e = {0};
    kt_json_doc *doc = kt_api_parse_body(j->x, &e);
    kt_json_writer w = {0};

    if (doc && j->handler(j->app, kt_json_root(doc), &w, &e))
        kt_http_reply_writer(j->x, 200, &w);
    else
        kt_api_fail(j->x, &e);
    kt_json_writer_deinit(&w);
    kt_json_destroy(doc);
    destroy(j);
}

static void drop(kt_job *job) {
    body_job *j = (body_job *)(void *)job;

    kt_http_fail(j->x, 503, "server_error", NULL, "shutting_down", "the server is shutting down");
    destroy(j);
}

static bool abandoned(const kt_job *job) {
    return kt_http_gone(((const body_job *)(const void *)job)->x);
}

void kt_body_job_start(kt_app *app, kt_http_exchange *x, kt_body_handler *handler) {
    body_job *j = calloc(1, sizeof *j);

    if (!j) {
        kt_http_fail(x, 503, "server_error", NULL, "out_of_memory", "no memory for the request");
        return;
    }
    kt_http_keep(x);
    *j = (body_job){.job = {.run = run, .drop = drop, .abandoned = abandoned},
                    .app = app,
                    .x = x,
                    .handler = handler};
    if (kt_job_queue_push(app->prepare, &j->job)) return;
    kt_http_fail(x, 429, "rate_limit_error", NULL, "queue_full",
                 "the queue is full: %d requests are waiting",
                 kt_job_queue_count(app->prepare).capacity);
    destroy(j);
}
