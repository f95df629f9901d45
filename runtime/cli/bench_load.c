/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/bench_load.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "kt/version.h"
#include "runtime/cli/command.h"
#include "runtime/model/model_dir.h"
#include "runtime/model/read_rate.h"

typedef enum way { WAY_READ, WAY_COPY, WAY_LOAD, WAYS } way;

typedef struct turns {
    double *seconds[WAYS]; /* [repetitions] */
    int64_t n;
    size_t bytes, copied, weight_bytes;
    kt_engine_info info;
} turns;

/* One load; the engine's threads then read the same files. */
static int take_turn(const kt_engine_flags *flags, const kt_usage *usage, const char *model,
                     const kt_log *log, double seconds[WAYS], turns *t) {
    kt_engine *e = NULL;
    kt_model_dir dir;
    kt_read_rate rate = {0};
    kt_err err = {KT_OK, ""};
    kt_pool *pool = NULL;
    const kt_pool_options options = {.n_threads = (int)flags->threads};
    kt_status st = kt_model_dir_read(model, &dir, &err);
    int code;

    if (st == KT_OK && !dir.checkpoint) st = kt_fail(&err, dir.why.status, "%s", dir.why.message);
    if (st == KT_OK) st = kt_pool_create(&options, &pool, &err);
    if (st == KT_OK) st = kt_read_rate_measure(dir.checkpoint, pool, &rate, &err);
    kt_pool_destroy(pool);
    kt_model_dir_deinit(&dir);
    if (st != KT_OK) return kt_command_fail(&err);
    code = kt_engine_flags_load(flags, usage, model, log, &e);
    if (code != 0) return code;
    kt_engine_describe(e, &t->info);
    t->info.model_name = NULL; /* the engine's */
    t->bytes = rate.bytes;
    t->copied = rate.copied;
    seconds[WAY_READ] = rate.read_seconds;
    seconds[WAY_COPY] = rate.copy_seconds;
    seconds[WAY_LOAD] = (double)t->info.load_ns * 1e-9;
    kt_engine_destroy(e);
    return 0;
}

static int by_size(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;

    return x < y ? -1 : x > y;
}

/* GB/s of the median turn. */
static double rate_of(const turns *t, way w) {
    const double bytes = (double)(w == WAY_COPY ? t->copied : t->bytes) * 1e-9;
    double *s = t->seconds[w];

    qsort(s, (size_t)t->n, sizeof *s, by_size);
    return bytes / (t->n % 2 ? s[t->n / 2] : (s[t->n / 2 - 1] + s[t->n / 2]) / 2);
}

static void print_text(const turns *t, const char *model, const char *weights,
                       const double rate[WAYS]) {
    printf("%s, weights %s: %.2f GB stored, %.2f GB packed, %lld threads, kt %s\n", model, weights,
           (double)t->bytes * 1e-9, (double)t->info.weight_bytes * 1e-9,
           (long long)t->info.n_threads, KT_VERSION);
    printf("read    %7.2f GB/s  (median of %lld turns; as the page cache or the disk gives it)\n",
           rate[WAY_READ], (long long)t->n);
    printf("copied  %7.2f GB/s  %3.0f %% of reading  (into memory that had no pages yet)\n",
           rate[WAY_COPY], 100 * rate[WAY_COPY] / rate[WAY_READ]);
    printf("loaded  %7.2f GB/s  %3.0f %% of reading, %.0f %% of copying; %.2f s\n", rate[WAY_LOAD],
           100 * rate[WAY_LOAD] / rate[WAY_READ], 100 * rate[WAY_LOAD] / rate[WAY_COPY],
           (double)t->bytes * 1e-9 / rate[WAY_LOAD]);
}

static void print_json(const turns *t, const char *model, const char *weights,
                       const double rate[WAYS]) {
    kt_json_writer w = {0};

    kt_json_begin_object(&w);
    kt_json_add_string(&w, "model", model);
    kt_json_add_string(&w, "weights", weights);
    kt_json_add_int(&w, "stored_bytes", (int64_t)t->bytes);
    kt_json_add_int(&w, "weight_bytes", (int64_t)t->info.weight_bytes);
    kt_json_add_int(&w, "threads", t->info.n_threads);
    kt_json_add_int(&w, "turns", t->n);
    kt_json_add_string(&w, "version", KT_VERSION);
    kt_json_add_double(&w, "read_gbs", rate[WAY_READ]);
    kt_json_add_double(&w, "copied_gbs", rate[WAY_COPY]);
    kt_json_add_double(&w, "loaded_gbs", rate[WAY_LOAD]);
    kt_json_end_object(&w);
    kt_json_writer_print(&w, stdout);
}

int kt_bench_load(const kt_engine_flags *flags, const kt_usage *usage, const char *model,
                  int64_t repetitions, bool json, const kt_log *log) {
    turns t = {.n = repetitions};
    double *all = calloc((size_t)(WAYS * repetitions), sizeof *all), seconds[WAYS], rate[WAYS];
    kt_err err = {KT_OK, ""};
    int code = 0;

    if (!all) {
        kt_fail(&err, KT_E_NOMEM, "no memory for %lld turns", (long long)repetitions);
        return kt_command_fail(&err);
    }
    for (int w = 0; w < WAYS; w++) t.seconds[w] = all + w * repetitions;
    for (int64_t i = -1; i < repetitions && code == 0; i++) {
        code = take_turn(flags, usage, model, log, seconds, &t);
        for (int w = 0; i >= 0 && w < WAYS; w++) t.seconds[w][i] = seconds[w];
    }
    if (code == 0) {
        for (int w = 0; w < WAYS; w++) rate[w] = rate_of(&t, (way)w);
        (json ? print_json : print_text)(&t, model, flags->weights, rate);
    }
    free(all);
    return code;
}
