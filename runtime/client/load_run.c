/* One poll loop over all connections. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/client/load_run.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/rng.h"

typedef struct load {
    const kt_target *target;
    const kt_load_options *o;
    const kt_load_prompt *prompts;
    kt_load_result r;
    kt_sse_stream *streams; /* [n], used from the left */
    char **requests;        /* [n], owned while under way */
    struct pollfd *polls;   /* [n] */
    size_t *active;         /* numbers of the requests under way */
    size_t n_active, n_started, n_done, n_failed;
    int64_t begin_ns, next_ns; /* next arrival of an open loop */
    kt_rng rng;
} load;

static void write_body(const kt_load_options *o, const kt_load_prompt *p, kt_json_writer *w) {
    kt_json_begin_object(w);
    if (o->model) kt_json_add_string(w, "model", o->model);
    if (o->chat) {
        kt_json_key(w, "messages");
        kt_json_begin_array(w);
        kt_json_begin_object(w);
        kt_json_add_string(w, "role", "user");
        kt_json_key(w, "content");
        kt_json_put_string_n(w, p->text, p->size);
        kt_json_end_object(w);
        kt_json_end_array(w);
    } else {
        kt_json_key(w, "prompt");
        kt_json_put_string_n(w, p->text, p->size);
    }
    kt_json_add_int(w, "max_tokens", p->max_tokens);
    kt_json_add_bool(w, "stream", true);
    kt_json_key(w, "stream_options");
    kt_json_begin_object(w);
    kt_json_add_bool(w, "include_usage", true);
    kt_json_end_object(w);
    if (!o->stop_early) kt_json_add_bool(w, "ignore_eos", true);
    if (o->temperature) {
        kt_json_key(w, "temperature");
        kt_json_put_raw(w, o->temperature, strlen(o->temperature));
    }
    kt_json_end_object(w);
}

/* The whole request as it goes over the wire, malloc'd; NULL without memory. */
static char *write_request(const load *l, const kt_load_prompt *p, size_t *size) {
    kt_json_writer w = {0};
    char path[300], *text = NULL;
    const char *body;
    size_t n = 0;

    write_body(l->o, p, &w);
    body = kt_json_writer_text(&w, &n);
    snprintf(path, sizeof path, "%s/v1/%s", l->target->base,
             l->o->chat ? "chat/completions" : "completions");
    if (body) text = kt_sse_write_request(l->target, path, l->o->api_key, body, n, size);
    kt_json_writer_deinit(&w);
    return text;
}

static bool start_one(load *l) {
    size_t i = l->n_started, size = 0;

    l->requests[i] = write_request(l, &l->prompts[i], &size);
    if (!l->requests[i]) return false;
    l->n_started++;
    kt_load_answer_begin(&l->r.answers[i]);
    kt_sse_start(&l->streams[i], l->target, l->requests[i], size, kt_load_answer_take,
                 &l->r.answers[i]);
    l->active[l->n_active++] = i;
    return true;
}

/* Start what is due now; false without memory. */
static bool start_due(load *l, int64_t now) {
    const int limit = l->o->concurrency;

    while (l->n_started < l->r.n && (limit <= 0 || l->n_active < (size_t)limit)) {
        if (l->o->rate > 0) {
            if (l->next_ns > now) break;
            l->next_ns += (int64_t)(-log(1 - kt_rng_double(&l->rng)) / l->o->rate * 1e9);
        }
        if (!start_one(l)) return false;
    }
    return true;
}

static void end_one(load *l, size_t place) {
    size_t i = l->active[place];

    kt_load_answer_end(&l->r.answers[i], &l->streams[i]);
    l->active[place] = l->active[--l->n_active];
    free(l->requests[i]);
    l->requests[i] = NULL;
    l->n_done++;
    l->n_failed += *l->r.answers[i].error != 0;
    if (l->o->progress) l->o->progress(l->o->progress_arg, l->n_done, l->n_failed);
}

/* Milliseconds until something is to be done without news from the sockets. */
static int patience(const load *l, int64_t now) {
    int64_t wait_ns = 100 * 1000000; /* cancelling and time-outs are looked at ten times a second */

    if (l->o->rate > 0 && l->n_started < l->r.n && l->next_ns - now < wait_ns)
        wait_ns = l->next_ns - now;
    return wait_ns <= 0 ? 0 : (int)(wait_ns / 1000000) + (wait_ns % 1000000 > 0);
}

static void serve_sockets(load *l, int64_t now) {
    const int64_t limit_ns = (int64_t)(l->o->timeout_s * 1e9);

    for (size_t k = l->n_active; k-- > 0;) { /* from the end: end_one moves the last one here */
        kt_sse_stream *s = &l->streams[l->active[k]];
        if (s->fd >= 0 && l->polls[k].revents) kt_sse_advance(s);
        if (s->fd >= 0 && limit_ns > 0 && now - l->r.answers[l->active[k]].start_ns > limit_ns)
            kt_sse_abort(s, "no whole answer within the time limit");
        if (s->fd < 0) end_one(l, k);
    }
}

static kt_status run_loop(load *l, kt_err *err) {
    l->begin_ns = l->next_ns = kt_clock_ns();
    while (l->n_done < l->r.n) {
        int64_t now = kt_clock_ns();
        if (!start_due(l, now)) return kt_fail(err, KT_E_NOMEM, "no memory for a request");
        for (size_t k = 0; k < l->n_active; k++) {
            const kt_sse_stream *s = &l->streams[l->active[k]];
            l->polls[k] = (struct pollfd){s->fd, s->is_sending ? POLLOUT : POLLIN, 0};
        }
        poll(l->polls, l->n_active, patience(l, now));
        serve_sockets(l, kt_clock_ns());
        if (l->o->cancelled && l->o->cancelled(l->o->cancelled_arg))
            return kt_fail(err, KT_E_CANCELLED, "interrupted after %zu of %zu answers", l->n_done,
                           l->r.n);
    }
    for (size_t i = 0; i < l->r.n; i++) {
        double s = (double)(l->r.answers[i].end_ns - l->begin_ns) * 1e-9;
        if (s > l->r.duration_s) l->r.duration_s = s;
    }
    return KT_OK;
}

void kt_load_result_deinit(kt_load_result *r) {
    for (size_t i = 0; i < r->n; i++) kt_load_answer_deinit(&r->answers[i]);
    free(r->answers);
    memset(r, 0, sizeof *r);
}

kt_status kt_load_run(const kt_target *target, const kt_load_options *o, const kt_load_data *data,
                      size_t from, size_t n, kt_load_result *out, kt_err *err) {
    load l = {.target = target, .o = o, .prompts = data->prompts + from};
    kt_status st = KT_E_NOMEM;

    memset(out, 0, sizeof *out);
    if (from > data->n || n > data->n - from || n == 0)
        return kt_fail(err, KT_E_INVALID, "%zu requests from number %zu of %zu prompts", n, from,
                       data->n);
    l.r.answers = calloc(n, sizeof *l.r.answers);
    l.streams = calloc(n, sizeof *l.streams);
    l.requests = calloc(n, sizeof *l.requests);
    l.polls = calloc(n, sizeof *l.polls);
    l.active = calloc(n, sizeof *l.active);
    kt_rng_seed(&l.rng, o->seed);
    if (l.r.answers) l.r.n = n;
    if (l.r.answers && l.streams && l.requests && l.polls && l.active)
        st = run_loop(&l, err);
    else
        kt_fail(err, st, "no memory for %zu requests", n);
    while (l.n_active) {
        kt_sse_abort(&l.streams[l.active[l.n_active - 1]], "broken off");
        free(l.requests[l.active[--l.n_active]]);
    }
    free(l.streams);
    free(l.requests);
    free(l.polls);
    free(l.active);
    if (st == KT_OK)
        *out = l.r;
    else
        kt_load_result_deinit(&l.r);
    return st;
}
