/* GET /health: alive, and how busy; 503 while the model is being loaded.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/http/model_card.h"

static void handle(kt_http_exchange *x, void *arg) {
    kt_app *app = arg;
    static const char loading[] = "{\"status\":\"loading\"}";
    kt_scheduler_counts counts = kt_scheduler_count(app->scheduler);
    kt_json_writer w = {0};

    if (kt_app_why_not(app)) {
        kt_http_reply(x, 503, "Retry-After: 1\r\n", "application/json", loading,
                      sizeof loading - 1);
        return;
    }
    kt_json_begin_object(&w);
    kt_json_add_string(&w, "status", "ok");
    kt_json_add_int(&w, "running", counts.running);
    kt_json_add_int(&w, "waiting", counts.waiting);
    kt_json_add_int(&w, "queue", counts.capacity);
    kt_json_add_int(&w, "finished", atomic_load(&app->n_finished));
    kt_json_add_int(&w, "cancelled", atomic_load(&app->n_cancelled));
    kt_json_end_object(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_health = {
    .method = "GET", .path = "/health", .is_public = true, .handle = handle};
