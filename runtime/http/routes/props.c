/* GET /props: what is served, by what, with which defaults; llama-server's names where it has them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kt/version.h"
#include "runtime/http/model_card.h"

static void write_sampling(kt_json_writer *w, const kt_sampling *s) {
    kt_json_key(w, "params");
    kt_json_begin_object(w);
    kt_json_add_double(w, "temperature", (double)s->temperature);
    kt_json_add_int(w, "top_k", s->top_k);
    kt_json_add_double(w, "top_p", (double)s->top_p);
    kt_json_add_double(w, "min_p", (double)s->min_p);
    kt_json_add_double(w, "repetition_penalty", (double)s->repetition_penalty);
    kt_json_add_double(w, "presence_penalty", (double)s->presence_penalty);
    kt_json_add_double(w, "frequency_penalty", (double)s->frequency_penalty);
    kt_json_end_object(w);
}

static void handle(kt_http_exchange *x, void *arg) {
    const kt_app *app = arg;
    const kt_scheduler_counts counts = kt_scheduler_count(app->scheduler);
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model_alias", app->model_name);
    kt_json_add_string(&w, "build_info", "kt " KT_VERSION);
    kt_json_add_string(&w, "system_fingerprint", app->backend->fingerprint);
    kt_json_add_int(&w, "total_slots", counts.places);
    kt_json_key(&w, "default_generation_settings");
    kt_json_begin_object(&w);
    kt_json_add_int(&w, "n_ctx", app->backend->max_context);
    write_sampling(&w, &app->backend->defaults);
    kt_json_end_object(&w);
    kt_json_add_int(&w, "vocab_size", app->backend->vocab);
    if (app->chat) kt_json_add_string(&w, "chat_template", app->chat->template_text);
    if (app->write_props) app->write_props(app->owner, &w);
    kt_json_end_object(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_props = {.method = "GET", .path = "/props", .handle = handle};
