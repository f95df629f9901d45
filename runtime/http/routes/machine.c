/* GET /machine: the engine live, for the page: requests, batch, pages, kernels, experts.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "runtime/http/model_card.h"
#include "runtime/kv/pages.h"

static void put_totals(kt_json_writer *w, kt_stats *stats) {
    const kt_stats s = kt_stats_read(stats);

    kt_json_add_int(w, "prompt_tokens", s.prompt_tokens);
    kt_json_add_int(w, "cached_tokens", s.cached_tokens);
    kt_json_add_int(w, "generated_tokens", s.generated_tokens);
}

static void put_requests(kt_json_writer *w, const kt_scheduler_counts *c) {
    kt_json_key(w, "requests");
    kt_json_begin_object(w);
    kt_json_add_int(w, "running", c->running);
    kt_json_add_int(w, "waiting", c->waiting);
    kt_json_add_int(w, "queue", c->capacity);
    kt_json_end_object(w);
}

static void put_batch(kt_json_writer *w, const kt_scheduler_counts *c) {
    kt_json_key(w, "batch");
    kt_json_begin_object(w);
    kt_json_add_int(w, "choices", c->choices);
    kt_json_add_int(w, "resting", c->resting);
    kt_json_add_int(w, "rows", c->choices ? c->last_rows : 0);
    kt_json_add_fixed(w, "step_ms", (double)c->last_step_ns * 1e-6, 3);
    kt_json_add_int(w, "steps", c->steps);
    kt_json_add_int(w, "preemptions", c->preemptions);
    kt_json_end_object(w);
}

static void put_pool(kt_json_writer *w, const char *name, int64_t all, int64_t used,
                     int64_t cached) {
    kt_json_key(w, name);
    kt_json_begin_object(w);
    kt_json_add_int(w, "all", all);
    kt_json_add_int(w, "used", used);
    kt_json_add_int(w, "cached", cached);
    kt_json_end_object(w);
}

static void handle(kt_http_exchange *x, void *arg) {
    kt_app *app = arg;
    const kt_scheduler_counts c = kt_scheduler_count(app->scheduler);
    const kt_kv_usage *kv = &c.kv;
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", app->model_name);
    kt_json_add_int(&w, "time_ms", kt_clock_ns() / 1000000);
    put_totals(&w, &app->stats);
    put_requests(&w, &c);
    put_batch(&w, &c);
    kt_json_add_int(&w, "page_tokens", KT_PAGE_TOKENS);
    put_pool(&w, "pages", kv->pages, kv->pages_used, kv->pages_cached);
    put_pool(&w, "states", kv->slots, kv->slots_used, kv->slots_cached);
    if (app->write_machine) app->write_machine(app->owner, &w);
    kt_json_end_object(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_machine = {.method = "GET", .path = "/machine", .handle = handle};
