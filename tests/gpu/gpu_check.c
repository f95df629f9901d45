/* What tests/gpu/run asks of a GPU: every function of device code against the emulator, every
 * kernel compiled and loaded, and the rates of its link and memory. Needs no test framework.
 *
 * gpu_check [--class cuda|emulated] [--gpu N] [--seeds N] [--json FILE]
 * Exit code: 0 right, 1 something is wrong, 2 usage, 77 no GPU.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/cuda_driver.h"
#include "dispatch/device/nvml.h"
#include "tests/gpu/gpu_check.h"
#include "tests/support/conformance.h"

enum { NO_GPU = 77, REPEATS = 7, MOST_REGISTERS = 255 };

static kt_status conform(gpu_check *c, kt_err *err) {
    for (int i = 0; i < KT_CONFORM_COUNT; i++) {
        kt_conform_result r, all = {.name = ""};
        for (int seed = 1; seed <= c->seeds; seed++) {
            KT_TRY(kt_conform_check(c->d, (kt_conform_case)i, (uint64_t)seed, &r, err));
            if (all.n_wrong == 0) memcpy(all.first, r.first, sizeof all.first);
            all.n_wrong += r.n_wrong;
            all.n_values += r.n_values;
            if (r.worst > all.worst) all.worst = r.worst;
        }
        gpu_check_row(c, r.name, (double)all.n_wrong, 0, "values wrong", all.n_wrong == 0,
                      all.first);
        if (all.worst > 0)
            gpu_check_row(c, r.name, all.worst, 1, "of the bound", all.worst <= 1, "");
    }
    return KT_OK;
}

/* Kernels that are for this GPU: loaded with their first constants. A refusal is told, not wrong;
 * registers and spills are those that the driver sees. */
static void load_kernels(gpu_check *c) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        const kt_config config = kt_cuda_initial(k);
        const kt_device_code *code;
        int registers, local;
        kt_err err;
        const kt_status st = kt_device_code_of(c->d, k, &config, &code, &err);
        if (st != KT_OK) {
            gpu_check_row(c, k->name, 0, -1, "loaded", st == KT_E_UNSUPPORTED, err.message);
            continue;
        }
        for (int e = 0; e < k->entry_count; e++) {
            kt_device_code_facts(code, e, &registers, &local);
            gpu_check_row(c, k->entry[e].name, registers, MOST_REGISTERS, "registers",
                          registers <= MOST_REGISTERS, "");
            gpu_check_row(c, k->entry[e].name, local, 0, "bytes spilled", local == 0, "");
        }
    }
}

/* ---- rates ---- */

typedef enum way { UP, DOWN, BOTH, ACROSS } way;

typedef struct rates {
    size_t bytes;
    void *there[2], *pinned[2], *pageable[2];
    kt_device_event *begin, *end, *other;
} rates;

static kt_status put(gpu_check *c, const rates *r, way w, void *const *host, kt_err *err) {
    if (w == ACROSS)
        return kt_device_copy(c->d, KT_STREAM_MAIN, r->there[1], r->there[0], r->bytes, err);
    if (w != DOWN)
        KT_TRY(kt_device_upload(c->d, KT_STREAM_MAIN, r->there[0], host[0], r->bytes, err));
    if (w == UP) return KT_OK;
    return kt_device_download(c->d, w == BOTH ? KT_STREAM_DOWNLOAD : KT_STREAM_MAIN, host[1],
                              r->there[1], r->bytes, err);
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static kt_status rate(gpu_check *c, const rates *r, const char *name, way w, void *const *host,
                      kt_err *err) {
    const double moved = (double)r->bytes * (w == BOTH || w == ACROSS ? 2 : 1);
    double ms[REPEATS];

    for (int i = -1; i < REPEATS; i++) { /* once to warm up */
        double took;
        KT_TRY(kt_device_record(c->d, KT_STREAM_MAIN, r->begin, err));
        KT_TRY(kt_device_wait(c->d, KT_STREAM_DOWNLOAD, r->begin, err));
        KT_TRY(put(c, r, w, host, err));
        KT_TRY(kt_device_record(c->d, KT_STREAM_DOWNLOAD, r->other, err));
        KT_TRY(kt_device_wait(c->d, KT_STREAM_MAIN, r->other, err));
        KT_TRY(kt_device_record(c->d, KT_STREAM_MAIN, r->end, err));
        KT_TRY(kt_device_sync(c->d, r->end, err));
        KT_TRY(kt_device_elapsed(c->d, r->begin, r->end, &took, err));
        if (i >= 0) ms[i] = took;
    }
    qsort(ms, REPEATS, sizeof *ms, by_value);
    gpu_check_row(c, name, ms[REPEATS / 2] > 0 ? moved / ms[REPEATS / 2] * 1e-6 : 0, -1, "GB/s",
                  true, "");
    return KT_OK;
}

static kt_status measure(gpu_check *c, rates *r, kt_err *err) {
    KT_TRY(kt_device_event_make(c->d, &r->begin, err));
    KT_TRY(kt_device_event_make(c->d, &r->end, err));
    KT_TRY(kt_device_event_make(c->d, &r->other, err));
    for (int i = 0; i < 2; i++) {
        KT_TRY(kt_device_alloc(c->d, r->bytes, &r->there[i], err));
        KT_TRY(kt_device_host_alloc(c->d, r->bytes, &r->pinned[i], err));
        if (!(r->pageable[i] = malloc(r->bytes)))
            return kt_fail(err, KT_E_NOMEM, "no memory for %zu bytes to copy", r->bytes);
        memset(r->pageable[i], i + 1, r->bytes);
        memset(r->pinned[i], i + 3, r->bytes);
        KT_TRY(kt_device_clear(c->d, KT_STREAM_MAIN, r->there[i], r->bytes, err));
    }
    KT_TRY(rate(c, r, "upload, pinned", UP, r->pinned, err));
    KT_TRY(rate(c, r, "download, pinned", DOWN, r->pinned, err));
    KT_TRY(rate(c, r, "both ways at once, pinned", BOTH, r->pinned, err));
    KT_TRY(rate(c, r, "upload, pageable", UP, r->pageable, err));
    KT_TRY(rate(c, r, "download, pageable", DOWN, r->pageable, err));
    return rate(c, r, "memory, read and written", ACROSS, NULL, err);
}

static kt_status measure_rates(gpu_check *c, kt_err *err) {
    const bool is_gpu = strcmp(kt_device_about(c->d)->class, "cuda") == 0;
    rates r = {.bytes = (size_t)(is_gpu ? 256 : 1) << 20};
    kt_status st = measure(c, &r, err);

    if (st == KT_OK) st = kt_device_sync(c->d, NULL, err);
    for (int i = 0; i < 2; i++) {
        kt_device_free(c->d, r.there[i]);
        kt_device_host_free(c->d, r.pinned[i]);
        free(r.pageable[i]);
    }
    return st;
}

/* What the GPU does right after the copies: figures of a throttled one are not to be trusted. */
static void look_at_state(gpu_check *c) {
    const kt_device_facts *f = kt_device_about(c->d);
    char text[256];
    kt_gpu_state s;
    kt_gpus gpus;
    kt_nvml *n;

    if (strcmp(f->class, "cuda") != 0) return;
    kt_gpus_probe(&gpus);
    n = f->ordinal < gpus.n ? kt_nvml_start(text, sizeof text) : NULL;
    if (!n) {
        printf("no clock, power and temperature: %s\n", f->ordinal < gpus.n ? text : gpus.why);
        return;
    }
    s = kt_nvml_look(n, gpus.gpu[f->ordinal].bus);
    gpu_check_row(c, "clock of the multiprocessors", s.sm_mhz, -1, "MHz", true,
                  kt_gpu_throttle_text(s.throttle, text, sizeof text));
    gpu_check_row(c, "highest clock", s.most_sm_mhz, -1, "MHz", true, "");
    gpu_check_row(c, "power", s.power_mw < 0 ? -1 : s.power_mw * 1e-3, -1, "W", true, "");
    gpu_check_row(c, "temperature", s.temperature_c, -1, "degrees C", true, "");
    kt_nvml_stop(n);
}

/* ---- the program ---- */

static void begin_report(gpu_check *c) {
    const kt_device_facts *f = kt_device_about(c->d);

    printf("%s: sm_%s, %d multiprocessors, %.1f of %.1f GiB are free\n", f->name, f->target->name,
           f->multiprocessors, (double)f->free_bytes / (1 << 30),
           (double)f->memory_bytes / (1 << 30));
    kt_json_begin_object(&c->w);
    kt_json_add_string(&c->w, "device", f->name);
    kt_json_add_string(&c->w, "class", f->class);
    kt_json_add_string(&c->w, "target", f->target->name);
    kt_json_add_int(&c->w, "multiprocessors", f->multiprocessors);
    kt_json_add_int(&c->w, "memory_bytes", (int64_t)f->memory_bytes);
    kt_json_key(&c->w, "rows");
    kt_json_begin_array(&c->w);
}

static int usage(void) {
    fprintf(stderr,
            "usage: gpu_check [--class cuda|emulated] [--gpu N] [--seeds N] [--json FILE]\n");
    return 2;
}

int main(int argc, char **argv) {
    kt_device_options o = {.class = "cuda"};
    gpu_check c = {.seeds = 20, .w = {.indent = 1, .line_at_depth = 1 << 2}};
    kt_status st;
    kt_err err;

    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--class") == 0)
            o.class = argv[i + 1];
        else if (strcmp(argv[i], "--gpu") == 0)
            o.ordinal = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--seeds") == 0)
            c.seeds = atoi(argv[i + 1]);
        else if (strcmp(argv[i], "--json") == 0)
            c.path = argv[i + 1];
        else
            return usage();
    }
    if (argc % 2 == 0 || c.seeds < 1) return usage();
    setvbuf(stdout, NULL, _IOLBF, 0); /* one that is killed has said how far it came */
    st = kt_device_open(&o, &c.d, &err);
    if (st != KT_OK) {
        fprintf(stderr, "gpu_check: %s\n", err.message);
        return st == KT_E_NOT_FOUND ? NO_GPU : 1;
    }
    begin_report(&c);
    st = conform(&c, &err);
    if (st == KT_OK) load_kernels(&c);
    if (st == KT_OK) st = measure_rates(&c, &err);
    if (st == KT_OK) st = gpu_check_letters(&c, &err);
    if (st == KT_OK) look_at_state(&c);
    kt_device_close(c.d);
    return gpu_check_end(&c, st, &err);
}
