/* Code of kernels: each is made once for a config. Threads may compile it behind the caller, into
 * the cache on disk, where loading finds it. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "dispatch/device/device_class.h"

static bool same_config(const kt_cuda_kernel *kernel, const kt_config *a, const kt_config *b) {
    for (int32_t i = 0; i < kernel->param_count; i++)
        if (a->value[i] != b->value[i]) return false;
    return true;
}

static kt_status check_kernel(const kt_device *d, const kt_cuda_kernel *kernel,
                              const kt_config *config, kt_err *err) {
    const kt_cuda_target *t = d->facts.target;
    const char *why;

    if (!(kernel->targets >> (t - kt_cuda_targets) & 1))
        return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s: it is not for sm_%s", d->facts.name,
                       kernel->name, t->name);
    why = kernel->refuse(config, t);
    if (why) return kt_fail(err, KT_E_UNSUPPORTED, "%s: %s: %s", d->facts.name, kernel->name, why);
    return KT_OK;
}

/* ---- behind the caller ---- */

static void *compile(void *arg) {
    const kt_device_code *c = arg;
    const kt_code_request request = {.kernel = c->kernel, .config = c->config};

    c->device->class->prepare(c->device, &request);
    return NULL;
}

static void join(kt_device *d, kt_device_code *c) {
    if (!c->is_behind) return;
    pthread_join(c->thread, NULL);
    c->is_behind = false;
    d->behind--;
}

static kt_status load(kt_device *d, kt_device_code *c, kt_err *err) {
    join(d, c);
    if (c->is_loaded) return KT_OK;
    KT_TRY(kt_device_check_idle(d, "code was to be loaded", err));
    KT_TRY(d->class->load(d, c, err));
    c->is_loaded = true;
    return KT_OK;
}

kt_status kt_device_code_ready(kt_device *d, const kt_device_code *code, kt_err *err) {
    kt_device_code *c = d->codes;

    if (code->is_loaded) return KT_OK;
    while (c != code) c = c->next;
    return load(d, c, err);
}

/* Waits for the code that has been compiled for longest. */
static void join_first(kt_device *d) {
    kt_device_code *first = NULL;

    for (kt_device_code *c = d->codes; c; c = c->next)
        if (c->is_behind) first = c;
    if (first) join(d, first);
}

/* Where no thread can be had the caller compiles. */
static kt_status make(kt_device *d, kt_device_code *c, kt_err *err) {
    if (d->threads == 0) return load(d, c, err);
    if (d->behind >= d->threads) join_first(d);
    c->device = d;
    c->is_behind = pthread_create(&c->thread, NULL, compile, c) == 0;
    d->behind += c->is_behind;
    return c->is_behind ? KT_OK : load(d, c, err);
}

void kt_device_codes_begin(kt_device *d, int threads) {
    if (d->class->prepare) d->threads = threads;
}

kt_status kt_device_codes_end(kt_device *d, kt_err *err) {
    d->threads = 0;
    for (kt_device_code *c = d->codes; c; c = c->next) KT_TRY(load(d, c, err));
    return KT_OK;
}

/* ---- asked for ---- */

kt_status kt_device_code_of(kt_device *d, const kt_cuda_kernel *kernel, const kt_config *config,
                            const kt_device_code **out, kt_err *err) {
    kt_device_code *c;
    kt_status st;

    *out = NULL;
    KT_TRY(kt_device_check_idle(d, "code was asked for", err));
    for (c = d->codes; c; c = c->next)
        if (c->kernel == kernel && same_config(kernel, &c->config, config)) break;
    if (!c) {
        KT_TRY(check_kernel(d, kernel, config, err));
        c = calloc(1, sizeof *c);
        if (!c)
            return kt_fail(err, KT_E_NOMEM, "%s: %s: no memory for its code", d->facts.name,
                           kernel->name);
        c->kernel = kernel;
        c->config = *config;
        st = make(d, c, err);
        if (st != KT_OK) {
            free(c);
            return st;
        }
        c->next = d->codes;
        d->codes = c;
    }
    *out = c;
    return KT_OK;
}

void kt_device_code_facts(const kt_device_code *code, int entry, int *registers, int *local_bytes) {
    *registers = code->registers[entry];
    *local_bytes = code->local_bytes[entry];
}

void kt_device_codes_free(kt_device *d) {
    while (d->codes) {
        kt_device_code *c = d->codes;
        d->codes = c->next;
        join(d, c);
        if (c->is_loaded) d->class->unload(d, c);
        free(c);
    }
}
