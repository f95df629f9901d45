/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tuner/space/workload.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/err.h"

enum { PATH_BYTES = 1024, MAX_FILE_BYTES = 1 << 24, MAX_TOKENS = 65536 };

static const char *const cache_names[] = {"served", "cold", "warm"};

/* Used where only a model is named: half decode of one and a few users, half prompts. */
static const kt_mix standard_mix = {
    .name = "standard",
    .n = 5,
    .step = {{1, 2048, 0.4}, {8, 2048, 0.2}, {32, 2048, 0.1}, {512, 2048, 0.2}, {2048, 2048, 0.1}}};
static const kt_routing standard_routing = {.kind = KT_ROUTING_ZIPF, .value = 0.6, .seed = 1};

const char *kt_cache_state_name(kt_cache_state state) {
    return cache_names[state];
}

int kt_cache_state_parse(const char *name) {
    for (int i = 0; i < 3; i++)
        if (strcmp(cache_names[i], name) == 0) return i;
    return -1;
}

/* --- mixes --- */

static kt_status read_mix(const kt_json *list, const char *name, const char *where, kt_mix *mix,
                          kt_err *err) {
    size_t n = kt_json_length(list);
    double sum = 0;

    if (kt_json_type_of(list) != KT_JSON_ARRAY || n < 1 || n > KT_MAX_MIX_STEPS)
        return kt_fail(err, KT_E_FORMAT,
                       "%s: mix '%.31s' is %s of %zu, expected an array of 1 to %d steps", where,
                       name, kt_json_type_name(kt_json_type_of(list)), n, KT_MAX_MIX_STEPS);
    *mix = (kt_mix){.n = (int)n};
    snprintf(mix->name, sizeof mix->name, "%s", name);
    for (size_t i = 0; i < n; i++) {
        const kt_json *o = kt_json_at(list, i);
        kt_mix_step *step = &mix->step[i];
        KT_TRY(kt_json_need_int(o, "tokens", 1, MAX_TOKENS, where, &step->tokens, err));
        KT_TRY(kt_json_need_int(o, "context", 1, 1 << 24, where, &step->context, err));
        KT_TRY(kt_json_need_double(o, "share", where, &step->share, err));
        if (!(step->share > 0 && step->share <= 1))
            return kt_fail(err, KT_E_FORMAT, "%s: mix '%s': 'share' is %g, expected over 0 to 1",
                           where, name, step->share);
        sum += step->share;
    }
    if (fabs(sum - 1) <= 1e-6) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: shares of mix '%s' sum to %g, expected 1", where, name,
                   sum);
}

/* All mixes as one, each with the same share. */
static kt_status join_mixes(const kt_json *mixes, const char *where, kt_mix *out, kt_err *err) {
    size_t n = kt_json_length(mixes);

    *out = (kt_mix){.name = "all"};
    for (size_t i = 0; i < n; i++) {
        const char *name = NULL;
        const kt_json *list = kt_json_member(mixes, i, &name, NULL);
        kt_mix one;
        KT_TRY(read_mix(list, name, where, &one, err));
        if (out->n + one.n > KT_MAX_MIX_STEPS)
            return kt_fail(err, KT_E_FORMAT, "%s: more than %d steps in all mixes", where,
                           KT_MAX_MIX_STEPS);
        for (int s = 0; s < one.n; s++) {
            out->step[out->n] = one.step[s];
            out->step[out->n++].share /= (double)n;
        }
    }
    return KT_OK;
}

static void list_names(const kt_json *object, char *out, size_t out_bytes) {
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < kt_json_length(object) && used < out_bytes; i++) {
        const char *name = NULL;
        kt_json_member(object, i, &name, NULL);
        used += (size_t)snprintf(out + used, out_bytes - used, "%s%s", i ? ", " : "", name);
    }
}

static kt_status choose_mix(const kt_json *w, const char *asked, const char *where, kt_mix *out,
                            kt_err *err) {
    const kt_json *mixes = kt_json_get(w, "mixes");
    const char *name = asked;
    char names[200];

    if (kt_json_type_of(mixes) != KT_JSON_OBJECT || kt_json_length(mixes) == 0)
        return kt_fail(err, KT_E_FORMAT, "%s: 'mixes' is %s, expected an object of serving mixes",
                       where, mixes ? kt_json_type_name(kt_json_type_of(mixes)) : "missing");
    if (!name && kt_json_get(w, "mix")) KT_TRY(kt_json_need_string(w, "mix", where, &name, err));
    if (!name) return join_mixes(mixes, where, out, err);
    list_names(mixes, names, sizeof names);
    if (!kt_json_get(mixes, name))
        return kt_fail(err, asked ? KT_E_INVALID : KT_E_FORMAT, "%s: no mix '%.80s', expected %s",
                       where, name, names);
    return read_mix(kt_json_get(mixes, name), name, where, out, err);
}

/* --- routing --- */

/* A trace lies beside the workload that names it, unless the path is absolute. */
static kt_status read_trace_name(const kt_json *o, const char *where, kt_routing *r, kt_err *err) {
    const char *file, *slash = strrchr(where, '/');
    int n;

    KT_TRY(kt_json_need_string(o, "file", where, &file, err));
    n = *file == '/' || !slash
            ? snprintf(r->file, sizeof r->file, "%s", file)
            : snprintf(r->file, sizeof r->file, "%.*s%s", (int)(slash + 1 - where), where, file);
    if (n > 0 && (size_t)n < sizeof r->file) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: 'file' of the routing is too long", where);
}

static kt_status read_routing(const kt_json *o, const char *where, kt_routing *out, kt_err *err) {
    static const char *const generators[] = {"uniform", "zipf", "dirichlet", "trace"};
    static const char *const keys[] = {NULL, "exponent", "alpha", NULL};
    kt_routing r = {.seed = 1};
    const char *name;
    int64_t seed = 1;
    int kind = 0;

    KT_TRY(kt_json_need_string(o, "generator", where, &name, err));
    while (kind < 4 && strcmp(generators[kind], name) != 0) kind++;
    if (kind == 4)
        return kt_fail(err, KT_E_FORMAT,
                       "%s: routing generator '%.40s', expected uniform, zipf, dirichlet or trace",
                       where, name);
    if (keys[kind]) {
        char text[80];
        KT_TRY(kt_json_need_double(o, keys[kind], where, &r.value, err));
        snprintf(text, sizeof text, "%s:%.17g", name, r.value);
        if (kt_routing_parse(text, &r, err) != KT_OK) {
            kt_fail_prefix(err, KT_E_FORMAT, "%s: '%s'", where, keys[kind]);
            if (err) err->status = KT_E_FORMAT;
            return KT_E_FORMAT;
        }
    }
    if (kt_json_get(o, "seed"))
        KT_TRY(kt_json_need_int(o, "seed", 0, INT64_MAX, where, &seed, err));
    r.kind = (kt_routing_kind)kind;
    r.seed = (uint64_t)seed;
    if (r.kind == KT_ROUTING_TRACE) KT_TRY(read_trace_name(o, where, &r, err));
    *out = r;
    return KT_OK;
}

/* --- a trace's own mix --- */

/* Steps of a trace by the bucket of their tokens, weighted by their time, or by their number when no step
 * has one. */
static kt_status mix_of_trace(const kt_trace *t, kt_mix *out, kt_err *err) {
    double total = 0;
    bool has_times = true;

    for (size_t i = 0; i < t->n_steps; i++) has_times &= t->steps[i].time_ns > 0;
    *out = (kt_mix){.name = "trace"};
    for (size_t i = 0; i < t->n_steps; i++) {
        const kt_trace_step *s = &t->steps[i];
        double time = has_times ? s->time_ns : 1;
        int64_t tokens = kt_bucket_of(s->tokens);
        int j = 0;
        while (j < out->n && out->step[j].tokens != tokens) j++;
        if (j == KT_MAX_MIX_STEPS) return kt_fail(err, KT_E_INTERNAL, "trace: too many buckets");
        if (j == out->n)
            out->step[out->n++] = (kt_mix_step){tokens, s->context > 0 ? s->context : 1, 0};
        out->step[j].share += time;
        total += time;
    }
    for (int i = 0; i < out->n; i++) out->step[i].share /= total;
    return KT_OK;
}

/* --- files --- */

static kt_status read_threads(const kt_json *list, const char *where, kt_workload *w, kt_err *err) {
    size_t n = kt_json_length(list);

    if (!list) return KT_OK;
    if (kt_json_type_of(list) != KT_JSON_ARRAY || n < 1 || n > KT_MAX_THREAD_COUNTS)
        return kt_fail(err, KT_E_FORMAT, "%s: 'threads' is %s of %zu, expected an array of 1 to %d",
                       where, kt_json_type_name(kt_json_type_of(list)), n, KT_MAX_THREAD_COUNTS);
    for (size_t i = 0; i < n; i++) {
        int64_t v = kt_json_int(kt_json_at(list, i), 0);
        if (v < 1 || v > 1024)
            return kt_fail(err, KT_E_FORMAT, "%s: 'threads' has %lld, expected 1 to 1024", where,
                           (long long)v);
        w->threads[w->n_threads++] = (int)v;
    }
    return KT_OK;
}

static kt_status read_cache(const kt_json *value, const char *where, kt_workload *w, kt_err *err) {
    const char *name = kt_json_string(value, NULL);
    int state = name ? kt_cache_state_parse(name) : -1;

    if (!value) return KT_OK;
    if (state < 0)
        return kt_fail(err, KT_E_FORMAT, "%s: 'cache' is %.40s, expected served, cold or warm",
                       where, name ? name : kt_json_type_name(kt_json_type_of(value)));
    w->cache = (kt_cache_state)state;
    return KT_OK;
}

static kt_status read_workload(const kt_json *o, const char *where,
                               const kt_workload_request *request, kt_workload *w, kt_err *err) {
    const char *name;

    KT_TRY(kt_shapes_from_workload(o, where, &w->shapes, err));
    KT_TRY(kt_json_need_string(o, "model", where, &name, err));
    snprintf(w->shapes.name, sizeof w->shapes.name, "%s", name);
    KT_TRY(choose_mix(o, request->mix, where, &w->mix, err));
    KT_TRY(read_routing(kt_json_get(o, "routing"), where, &w->routing, err));
    KT_TRY(read_threads(kt_json_get(o, "threads"), where, w, err));
    return read_cache(kt_json_get(o, "cache"), where, w, err);
}

/* A file, or the name of a shipped one. */
static kt_status path_of(const char *workload, char *out, kt_err *err) {
    int n = snprintf(out, PATH_BYTES, "%s", workload);

    if (n > 0 && n < PATH_BYTES && access(out, R_OK) == 0) return KT_OK;
    if (!strchr(workload, '/')) {
        n = snprintf(out, PATH_BYTES, KT_SOURCE_DIR "/datasets/workloads/%s.json", workload);
        if (n > 0 && n < PATH_BYTES && access(out, R_OK) == 0) return KT_OK;
    }
    return kt_fail(err, KT_E_NOT_FOUND,
                   "workload '%.200s': no such file, and no workload of that name in "
                   "datasets/workloads (`kttune list models` shows them)",
                   workload);
}

static kt_status read_file(const kt_workload_request *request, kt_workload *w, kt_err *err) {
    char path[PATH_BYTES], *text = NULL;
    size_t size = 0;
    kt_json_doc *doc = NULL;
    kt_status st;

    KT_TRY(path_of(request->workload, path, err));
    KT_TRY(kt_file_read(path, MAX_FILE_BYTES, &text, &size, err));
    st = kt_json_parse(text, size, NULL, &doc, err);
    if (st != KT_OK)
        kt_fail_prefix(err, st, "%s", path);
    else
        st = read_workload(kt_json_root(doc), path, request, w, err);
    kt_json_destroy(doc);
    free(text);
    return st;
}

/* A recorded load says all of a workload but the matrices, and whose those are. */
static kt_status read_recorded(const kt_workload_request *request, kt_workload *w, kt_err *err) {
    if (strlen(request->workload) >= sizeof w->routing.file)
        return kt_fail(err, KT_E_INVALID, "workload '%.80s...': path too long", request->workload);
    if (request->routing)
        return kt_fail(err, KT_E_INVALID,
                       "workload '%.200s' is a recorded load: it has its routing",
                       request->workload);
    w->routing.kind = KT_ROUTING_TRACE;
    snprintf(w->routing.file, sizeof w->routing.file, "%s", request->workload);
    if (request->model) return KT_OK;
    KT_TRY(kt_trace_read(request->workload, &w->trace, err));
    if (kt_shapes_find(w->trace.model, &w->shapes, NULL, 0, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_NOT_FOUND,
                              "workload '%.200s' was recorded of a model that must be named "
                              "with --model DIR",
                              request->workload);
    kt_trace_deinit(&w->trace);
    return KT_OK;
}

static kt_status fill(const kt_workload_request *request, kt_workload *w, kt_err *err) {
    const char *workload = request->workload;

    w->mix = standard_mix;
    w->routing = standard_routing;
    if (workload && kt_trace_is(workload)) {
        KT_TRY(read_recorded(request, w, err));
        workload = NULL;
    }
    if (workload) KT_TRY(read_file(request, w, err));
    if (request->model) KT_TRY(kt_shapes_find(request->model, &w->shapes, NULL, 0, err));
    if (!workload && request->mix && strcmp(request->mix, standard_mix.name) != 0)
        return kt_fail(err, KT_E_INVALID, "mix '%.80s': without a workload there is only '%s'",
                       request->mix, standard_mix.name);
    if (request->routing) KT_TRY(kt_routing_parse(request->routing, &w->routing, err));
    if (w->routing.kind != KT_ROUTING_TRACE) return KT_OK;
    KT_TRY(kt_trace_read(w->routing.file, &w->trace, err));
    w->routing.trace = &w->trace;
    if (w->trace.experts != w->shapes.experts || w->trace.topk != w->shapes.topk)
        return kt_fail(err, KT_E_INVALID, "%s: %lld of %lld experts, '%s' has %lld of %lld",
                       w->routing.file, (long long)w->trace.topk, (long long)w->trace.experts,
                       w->shapes.name, (long long)w->shapes.topk, (long long)w->shapes.experts);
    return request->mix ? KT_OK : mix_of_trace(&w->trace, &w->mix, err);
}

kt_status kt_workload_find(const kt_workload_request *request, kt_workload *out, kt_err *err) {
    kt_status st;

    memset(out, 0, sizeof *out);
    if (!request->workload && !request->model)
        return kt_fail(err, KT_E_INVALID, "neither a workload nor a model is named");
    st = fill(request, out, err);
    if (st != KT_OK) kt_workload_deinit(out);
    return st;
}

void kt_workload_deinit(kt_workload *w) {
    if (!w) return;
    kt_trace_deinit(&w->trace);
    memset(w, 0, sizeof *w);
}
