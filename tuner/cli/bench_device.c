/* kttune bench --suite gpu. SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/cpu.h"
#include "base/err.h"
#include "dispatch/device/device_word.h"
#include "tuner/cli/bench_rows.h"
#include "tuner/cli/workbench.h"
#include "tuner/session/gpu_suite.h"

typedef struct report {
    const kt_verb_context *context;
    const kt_bench_device *ask;
    const char *machine; /* its class */
    kt_gpu_facts facts;
    kt_suite_row rows[KT_SUITE_ROWS];
    int n;
    kt_status written; /* of the file */
    kt_err why;
} report;

static bool stop_asked(void *arg) {
    const report *r = arg;
    return *r->context->stop != 0;
}

/* Times of an emulated device say nothing of any GPU. */
static kt_status read_device(const kt_bench_device *ask, kt_device_options *out, kt_err *err) {
    bool is_used, is_emulated;

    KT_TRY(kt_device_word_parse(ask->device, &is_used, out, err));
    if (!is_used) return kt_fail(err, KT_E_INVALID, "--device cpu: --suite cpu measures the CPU");
    is_emulated = strcmp(out->class, "emulated") == 0;
    if (is_emulated && !ask->pretend_clock)
        return kt_fail(err, KT_E_INVALID,
                       "--device %.40s: the time of an emulated launch is none of a GPU's; "
                       "--pretend-clock tries the way with computed times of small layers",
                       ask->device);
    if (!is_emulated && ask->pretend_clock)
        return kt_fail(err, KT_E_INVALID, "--pretend-clock: %.40s has a clock of its own",
                       ask->device);
    return KT_OK;
}

static void repeat_line(const kt_bench_device *ask, const char *row, char out[160]) {
    snprintf(out, 160, "kttune bench --suite gpu --device %.40s%s --rows '%.40s'", ask->device,
             ask->pretend_clock ? " --pretend-clock" : "", row);
}

/* ---- JSON ---- */

static void put_json(const report *r, kt_json_writer *w) {
    const kt_gpu_facts *f = &r->facts;
    char repeat[160];

    kt_json_begin_object(w);
    kt_json_add_string(w, "machine", r->machine);
    kt_json_add_string(w, "device", f->device);
    kt_json_add_string(w, "class", f->class);
    kt_json_add_string(w, "target", f->target);
    kt_json_add_int(w, "multiprocessors", f->multiprocessors);
    kt_json_add_int(w, "memory_bytes", (int64_t)f->memory_bytes);
    kt_json_add_int(w, "driver", f->driver);
    kt_json_add_int(w, "mhz", f->mhz);
    kt_json_add_string(w, "library", f->library);
    kt_json_add_bool(w, "pretended", r->ask->pretend_clock);
    kt_json_key(w, "rows");
    kt_json_begin_array(w);
    for (int i = 0; i < r->n; i++) {
        repeat_line(r->ask, r->rows[i].name, repeat);
        kt_bench_row_put(&r->rows[i], repeat, w);
    }
    kt_json_end_array(w);
    kt_json_end_object(w);
}

/* The caller frees it; it ends in a newline. */
static char *json_text(const report *r) {
    kt_json_writer w = {.indent = 2};
    size_t size = 0;
    char *text;

    put_json(r, &w);
    text = kt_json_writer_text(&w, &size) ? malloc(size + 2) : NULL;
    if (text) snprintf(text, size + 2, "%s\n", kt_json_writer_text(&w, NULL));
    kt_json_writer_deinit(&w);
    return text;
}

static void write_file(report *r) {
    char *text;

    if (!r->ask->out) return;
    text = json_text(r);
    r->written = text ? kt_file_write(r->ask->out, text, strlen(text), &r->why)
                      : kt_fail(&r->why, KT_E_NOMEM, "bench: no memory");
    free(text);
}

/* ---- what comes ---- */

static void begun(void *arg, const kt_gpu_facts *f) {
    report *r = arg;

    r->facts = *f;
    if (r->ask->json) return;
    printf("machine %s, %s (sm_%s), %d multiprocessors, %.1f GiB", r->machine, f->device, f->target,
           f->multiprocessors, (double)f->memory_bytes / (1 << 30));
    if (f->driver) printf(", CUDA %d.%d", f->driver / 1000, f->driver % 1000 / 10);
    if (f->mhz) printf(", up to %d MHz", f->mhz);
    printf("%s%s\n", *f->library ? ", " : "", f->library);
    if (r->ask->pretend_clock) puts("These times are computed, and the layers are small ones.");
}

static void measured(void *arg, const kt_suite_row *row) {
    report *r = arg;

    r->rows[r->n++] = *row;
    if (!r->ask->json) kt_bench_row_print(row);
    write_file(r);
}

static kt_status run_all(report *r, kt_err *err) {
    const kt_bench_device *ask = r->ask;
    kt_device_options device = {.log = NULL};
    kt_gpu_options o = {.device = &device,
                        .is_pretended = ask->pretend_clock,
                        .is_small = ask->pretend_clock,
                        .threads = ask->threads > 0 ? (int)ask->threads : kt_usable_cores(),
                        .seconds = ask->seconds,
                        .row_limit = ask->limit,
                        .seed = ask->seed,
                        .rows = ask->rows,
                        .stop = stop_asked,
                        .begun = begun,
                        .measured = measured,
                        .arg = r};
    static kt_suite_row rows[KT_SUITE_ROWS]; /* the report has them, too */
    int n = 0;

    KT_TRY(read_device(ask, &device, err));
    return kt_gpu_suite_run(&o, rows, &n, err);
}

int kt_bench_device_run(const kt_verb_context *context, const kt_bench_device *ask) {
    report *r = calloc(1, sizeof *r);
    kt_workbench b = {0};
    int code = KT_TUNE_OK;
    kt_err err;
    kt_status st;

    if (!r) {
        kt_fail(&err, KT_E_NOMEM, "bench: no memory");
        return kt_verb_fail(&err);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    r->context = context;
    r->ask = ask;
    st = kt_workbench_init(&b, false, &err);
    r->machine = b.class_name;
    if (st == KT_OK) st = run_all(r, &err);
    if (r->n > 0 && ask->json) {
        char *text = json_text(r);
        if (text) fputs(text, stdout);
        free(text);
    }
    if (r->n > 0 && !ask->json)
        printf("repeat: kttune bench --suite gpu --device %s; one row: --rows NAME\n", ask->device);
    code = r->written == KT_OK ? kt_bench_rows_code(r->rows, r->n) : kt_verb_fail(&r->why);
    kt_workbench_deinit(&b);
    free(r);
    return st == KT_OK ? code : kt_verb_fail(&err);
}
