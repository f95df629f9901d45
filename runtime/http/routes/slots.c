/* GET /slots: the requests in work, oldest first, without anything that was said in them.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/clock.h"
#include "runtime/http/model_card.h"

static const char *state_of(const kt_activity *a) {
    return !a->start_ns ? "waiting" : !a->first_ns ? "prompt" : "generating";
}

static void write_slot(kt_json_writer *w, const kt_activity *a, int64_t now) {
    double s = (double)(a->last_ns - a->first_ns) * 1e-9;

    kt_json_begin_object(w);
    kt_json_add_int(w, "id", a->number);
    kt_json_add_string(w, "request_id", a->id);
    kt_json_add_string(w, "route", a->route);
    kt_json_add_bool(w, "is_processing", a->start_ns != 0);
    kt_json_add_string(w, "state", state_of(a));
    kt_json_add_bool(w, "stream", a->is_stream);
    kt_json_add_fixed(w, "age_s", (double)(now - a->begin_ns) * 1e-9, 3);
    kt_json_add_int(w, "prompt_tokens", a->prompt_tokens);
    kt_json_add_int(w, "cached_tokens", a->cached_tokens);
    kt_json_add_int(w, "n_decoded", a->generated_tokens);
    kt_json_add_bool(w, "speculative", a->draft_tokens > 0);
    kt_json_add_int(w, "draft_n", a->draft_tokens);
    kt_json_add_int(w, "draft_n_accepted", a->draft_hits);
    kt_json_add_int(w, "max_tokens", a->max_tokens);
    kt_json_add_fixed(w, "tokens_per_second", s > 0 ? (double)(a->generated_tokens - 1) / s : 0, 2);
    kt_json_end_object(w);
}

static void handle(kt_http_exchange *x, void *arg) {
    kt_app *app = arg;
    kt_stats *s = &app->stats;
    const kt_activity *a;
    kt_json_writer w = {0};
    int64_t now = kt_clock_ns();

    kt_json_begin_array(&w);
    pthread_mutex_lock(&s->lock);
    for (a = s->first; a && a->next; a = a->next) {
    }
    for (; a; a = a->prev) write_slot(&w, a, now);
    pthread_mutex_unlock(&s->lock);
    kt_json_end_array(&w);
    kt_http_reply_writer(x, 200, &w);
}

const kt_route kt_route_slots = {.method = "GET", .path = "/slots", .handle = handle};
