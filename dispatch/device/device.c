/* The front of device.h: arguments are checked here, once for all members.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/device.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/device_class.h"

static const kt_device_class *const classes[] = {&kt_device_class_cuda, &kt_device_class_emulated};

static const kt_cuda_target *target_of(const kt_device *d) {
    return d->facts.target;
}

/* ---- the state of the device ---- */

kt_status kt_device_lose(kt_device *d, kt_status status, const char *why, kt_err *err) {
    if (d->fault.status == KT_OK) {
        kt_fail(&d->fault, status, "%s: the device is lost: %s", d->facts.name, why);
        kt_log_write(d->log, KT_LOG_ERROR, "device", "%s", d->fault.message);
    }
    if (err) *err = d->fault;
    return d->fault.status;
}

static kt_status check_alive(const kt_device *d, kt_err *err) {
    if (d->fault.status == KT_OK) return KT_OK;
    if (err) *err = d->fault;
    return d->fault.status;
}

static kt_status check_stream(const kt_device *d, kt_stream s, kt_err *err) {
    KT_TRY(check_alive(d, err));
    if ((int)s < 0 || s >= KT_STREAM_COUNT)
        return kt_fail(err, KT_E_INVALID, "%s: stream %d, expected 0 to %d", d->facts.name, (int)s,
                       KT_STREAM_COUNT - 1);
    return KT_OK;
}

kt_status kt_device_check_idle(const kt_device *d, const char *what, kt_err *err) {
    KT_TRY(check_alive(d, err));
    if (!d->is_capturing) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "%s: %s while a graph is captured", d->facts.name, what);
}

/* ---- opening ---- */

kt_status kt_device_open(const kt_device_options *options, kt_device **out, kt_err *err) {
    const char *name = options->class ? options->class : "";
    kt_device *d = NULL;
    kt_status st = KT_OK;

    *out = NULL;
    d = calloc(1, sizeof *d);
    if (!d) return kt_fail(err, KT_E_NOMEM, "%s device: no memory for it", name);
    for (size_t i = 0; i < sizeof classes / sizeof *classes; i++)
        if (strcmp(classes[i]->name, name) == 0) d->class = classes[i];
    if (!d->class) st = kt_fail(err, KT_E_INVALID, "device '%s': expected cuda or emulated", name);
    d->log = options->log;
    if (st == KT_OK) st = d->class->open(d, options, err);
    if (st != KT_OK) {
        free(d);
        return st;
    }
    d->facts.class = d->class->name;
    *out = d;
    return KT_OK;
}

void kt_device_close(kt_device *d) {
    if (!d) return;
    if (d->is_capturing) kt_device_capture_end(d, &(kt_device_graph *){NULL}, NULL);
    d->class->finish(d);
    kt_gather_close(d);
    while (d->graphs) kt_device_graph_free(d, d->graphs);
    while (d->events) {
        kt_device_event *e = d->events;
        d->events = e->next;
        d->class->event_drop(d, e);
        free(e);
    }
    kt_device_codes_free(d);
    d->class->close(d);
    free(d);
}

const kt_device_facts *kt_device_about(const kt_device *d) {
    return &d->facts;
}

/* ---- memory ---- */

kt_status kt_device_alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    *out = NULL;
    KT_TRY(check_alive(d, err));
    return bytes ? d->class->alloc(d, bytes, out, err) : KT_OK;
}

/* What was put, or kept to be put, uses it until then. */
static void give_back(kt_device *d, void *p, void (*back)(kt_device *d, void *p)) {
    if (!p) return;
    kt_gather_flush(d, KT_STREAM_COUNT, NULL);
    back(d, p);
}

void kt_device_free(kt_device *d, void *p) {
    give_back(d, p, d->class->free);
}

kt_status kt_device_host_alloc(kt_device *d, size_t bytes, void **out, kt_err *err) {
    *out = NULL;
    KT_TRY(check_alive(d, err));
    return bytes ? d->class->host_alloc(d, bytes, out, err) : KT_OK;
}

void kt_device_host_free(kt_device *d, void *p) {
    give_back(d, p, d->class->host_free);
}

kt_status kt_device_pin(kt_device *d, void *p, size_t bytes, kt_err *err) {
    KT_TRY(check_alive(d, err));
    return bytes ? d->class->pin(d, p, bytes, err) : KT_OK;
}

void kt_device_unpin(kt_device *d, void *p) {
    give_back(d, p, d->class->unpin);
}

kt_status kt_device_memory(kt_device *d, uint64_t *free_bytes, uint64_t *bytes, kt_err *err) {
    uint64_t left = 0, all = 0;

    KT_TRY(check_alive(d, err));
    KT_TRY(d->class->memory(d, &left, &all, err));
    if (free_bytes) *free_bytes = left;
    if (bytes) *bytes = all;
    return KT_OK;
}

static kt_status copy(kt_device *d, kt_stream s, kt_device_way way, void *to, const void *from,
                      size_t bytes, kt_err *err) {
    const kt_device_command c = {
        .kind = KT_PUT_COPY, .way = way, .to = to, .from = from, .bytes = bytes};
    kt_status st;

    KT_TRY(check_stream(d, s, err));
    if (!bytes || kt_gather_keep(d, s, &c, NULL, &st, err)) return bytes ? st : KT_OK;
    return d->class->copy(d, s, way, to, from, bytes, err);
}

kt_status kt_device_upload(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                           kt_err *err) {
    return copy(d, s, KT_WAY_UP, to, from, bytes, err);
}

kt_status kt_device_download(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                             kt_err *err) {
    return copy(d, s, KT_WAY_DOWN, to, from, bytes, err);
}

kt_status kt_device_copy(kt_device *d, kt_stream s, void *to, const void *from, size_t bytes,
                         kt_err *err) {
    return copy(d, s, KT_WAY_ACROSS, to, from, bytes, err);
}

/* Of calls that two devices take part in. */
static kt_status check_pair(const kt_device *d, kt_stream s, const kt_device *other, kt_err *err) {
    KT_TRY(check_stream(d, s, err));
    KT_TRY(check_alive(other, err));
    KT_TRY(kt_device_check_idle(d, "another device was to be met", err));
    if (d->class == other->class) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%s: it cannot meet %s, a device of another kind",
                   d->facts.name, other->facts.name);
}

kt_status kt_device_copy_from(kt_device *d, kt_stream s, void *to, kt_device *other,
                              const void *from, size_t bytes, kt_err *err) {
    KT_TRY(check_pair(d, s, other, err));
    KT_TRY(kt_gather_flush(d, s, err));
    return bytes ? d->class->copy_from(d, s, to, other, from, bytes, err) : KT_OK;
}

kt_status kt_device_clear(kt_device *d, kt_stream s, void *p, size_t bytes, kt_err *err) {
    const kt_device_command c = {.kind = KT_PUT_CLEAR, .to = p, .bytes = bytes};
    kt_status st;

    KT_TRY(check_stream(d, s, err));
    if (!bytes || kt_gather_keep(d, s, &c, NULL, &st, err)) return bytes ? st : KT_OK;
    return d->class->clear(d, s, p, bytes, err);
}

kt_status kt_device_call(kt_device *d, kt_stream s, kt_device_function *f, void *arg, kt_err *err) {
    const kt_device_command c = {.kind = KT_PUT_CALL, .to = arg, .function = f};
    kt_status st;

    KT_TRY(check_stream(d, s, err));
    if (kt_gather_keep(d, s, &c, NULL, &st, err)) return st;
    return d->class->call(d, s, f, arg, err);
}

kt_status kt_device_poke(kt_device *d, kt_stream s, bool *is_idle, kt_err *err) {
    *is_idle = false;
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_device_check_idle(d, "it was poked", err));
    KT_TRY(kt_gather_flush(d, s, err));
    return d->class->poke(d, s, is_idle, err);
}

kt_status kt_device_driver_stream(kt_device *d, kt_stream s, void **out, kt_err *err) {
    *out = NULL;
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_gather_flush(d, s, err));
    if (d->class->driver_stream) return d->class->driver_stream(d, s, out, err);
    return kt_fail(err, KT_E_UNSUPPORTED, "%s: its streams are none of a driver's", d->facts.name);
}

/* ---- code ---- */

static kt_status check_launch(const kt_device *d, const kt_device_launch *l, kt_err *err) {
    kt_emulated_entry *emulated;
    const char *name;
    size_t takes;

    name = l->code->kernel->name;
    if (l->entry < 0 || l->entry >= l->code->kernel->entry_count)
        return kt_fail(err, KT_E_INVALID, "%s: %s: entry %d, it has %d", d->facts.name, name,
                       l->entry, (int)l->code->kernel->entry_count);
    name = l->code->kernel->entry[l->entry].name;
    if (l->grid_x < 0 || l->grid_y < 0 || l->grid_y > 65535)
        return kt_fail(err, KT_E_INVALID,
                       "%s: %s: %d x %d blocks, expected up to 2147483647 x 65535", d->facts.name,
                       name, l->grid_x, l->grid_y);
    emulated = l->code->kernel->entry[l->entry].emulated;
    takes = emulated ? kt_emulated_parameter_bytes(emulated) : l->parameter_bytes;
    if (l->parameter_bytes != takes || takes > KT_DEVICE_PARAMETERS)
        return kt_fail(err, KT_E_INVALID, "%s: %s: %zu bytes of parameters, it takes %zu",
                       d->facts.name, name, l->parameter_bytes, takes);
    if (l->shared_bytes > (size_t)target_of(d)->shared_bytes)
        return kt_fail(err, KT_E_INVALID,
                       "%s: %s: %zu bytes of shared memory, a block of sm_%s has at most %d",
                       d->facts.name, name, l->shared_bytes, target_of(d)->name,
                       target_of(d)->shared_bytes);
    return KT_OK;
}

kt_status kt_device_run(kt_device *d, kt_stream s, const kt_device_launch *l, kt_err *err) {
    const kt_device_command c = {.kind = KT_PUT_LAUNCH,
                                 .bytes = l->shared_bytes,
                                 .code = l->code,
                                 .entry = l->entry,
                                 .grid_x = l->grid_x,
                                 .grid_y = l->grid_y,
                                 .parameter_bytes = (int32_t)l->parameter_bytes};
    kt_status st;

    KT_TRY(check_stream(d, s, err));
    KT_TRY(check_launch(d, l, err));
    if (!l->grid_x || !l->grid_y) return KT_OK;
    KT_TRY(kt_device_code_ready(d, l->code, err));
    if (kt_gather_keep(d, s, &c, l->parameters, &st, err)) return st;
    return d->class->run(d, s, l, err);
}

/* ---- order ---- */

kt_status kt_device_event_make(kt_device *d, kt_device_event **out, kt_err *err) {
    kt_device_event *e;
    kt_status st;

    *out = NULL;
    KT_TRY(check_alive(d, err));
    e = calloc(1, sizeof *e);
    if (!e) return kt_fail(err, KT_E_NOMEM, "%s: no memory for an event", d->facts.name);
    st = d->class->event_make(d, e, err);
    if (st != KT_OK) {
        free(e);
        return st;
    }
    e->next = d->events;
    d->events = e;
    *out = e;
    return KT_OK;
}

kt_status kt_device_record(kt_device *d, kt_stream s, kt_device_event *e, kt_err *err) {
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_gather_flush(d, s, err));
    KT_TRY(d->class->record(d, s, e, err));
    e->is_recorded = true;
    return KT_OK;
}

kt_status kt_device_wait(kt_device *d, kt_stream s, const kt_device_event *e, kt_err *err) {
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_gather_flush(d, s, err));
    return e->is_recorded ? d->class->wait(d, s, d, e, err) : KT_OK;
}

kt_status kt_device_wait_for(kt_device *d, kt_stream s, kt_device *other, const kt_device_event *e,
                             kt_err *err) {
    KT_TRY(check_pair(d, s, other, err));
    KT_TRY(kt_gather_flush(d, s, err));
    return e->is_recorded ? d->class->wait(d, s, other, e, err) : KT_OK;
}

kt_status kt_device_sync(kt_device *d, const kt_device_event *e, kt_err *err) {
    KT_TRY(kt_device_check_idle(d, "the host was to wait", err));
    KT_TRY(kt_gather_flush(d, KT_STREAM_COUNT, err));
    return !e || e->is_recorded ? d->class->sync(d, e, err) : KT_OK;
}

kt_status kt_device_passed(kt_device *d, const kt_device_event *e, bool *out, kt_err *err) {
    *out = true;
    KT_TRY(kt_device_check_idle(d, "an event was asked for", err));
    return e->is_recorded ? d->class->passed(d, e, out, err) : KT_OK;
}

kt_status kt_device_elapsed(kt_device *d, const kt_device_event *from, const kt_device_event *to,
                            double *ms, kt_err *err) {
    *ms = 0;
    KT_TRY(kt_device_check_idle(d, "a time was asked for", err));
    if (!from->is_recorded || !to->is_recorded)
        return kt_fail(err, KT_E_INVALID,
                       "%s: the time between events of which one was never "
                       "recorded",
                       d->facts.name);
    return d->class->elapsed(d, from, to, ms, err);
}

/* ---- graphs ---- */

kt_status kt_device_capture_begin(kt_device *d, kt_stream s, kt_err *err) {
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_device_check_idle(d, "a capture was begun", err));
    KT_TRY(kt_gather_flush(d, KT_STREAM_COUNT, err));
    KT_TRY(d->class->capture_begin(d, s, err));
    d->is_capturing = true;
    d->captured = s;
    return KT_OK;
}

kt_status kt_device_capture_end(kt_device *d, kt_device_graph **out, kt_err *err) {
    kt_device_graph *g = calloc(1, sizeof *g), none = {0};
    kt_status st;

    *out = NULL;
    if (!d->is_capturing) {
        free(g);
        return kt_fail(err, KT_E_INVALID, "%s: no capture was begun", d->facts.name);
    }
    d->is_capturing = false;
    st = d->class->capture_end(d, d->captured, g ? g : &none, err);
    if (st == KT_OK && (!g || d->fault.status != KT_OK)) {
        d->class->graph_drop(d, g ? g : &none);
        st = g ? check_alive(d, err)
               : kt_fail(err, KT_E_NOMEM, "%s: no memory for a graph", d->facts.name);
    }
    if (st != KT_OK) {
        free(g);
        return st;
    }
    g->next = d->graphs;
    d->graphs = g;
    *out = g;
    return KT_OK;
}

kt_status kt_device_replay(kt_device *d, kt_stream s, const kt_device_graph *graph, kt_err *err) {
    KT_TRY(check_stream(d, s, err));
    KT_TRY(kt_device_check_idle(d, "a graph was replayed", err));
    KT_TRY(kt_gather_flush(d, s, err));
    return d->class->replay(d, s, graph, err);
}

void kt_device_graph_free(kt_device *d, kt_device_graph *graph) {
    kt_device_graph **at = &d->graphs;

    if (!graph) return;
    while (*at != graph) at = &(*at)->next;
    *at = graph->next;
    d->class->finish(d);
    d->class->graph_drop(d, graph);
    free(graph);
}
