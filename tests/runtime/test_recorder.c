/* Recorded traces: what is written reads back by the tuner's reader, stays within its limit, and is what the
 * engine did. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/exec/engine.h"
#include "runtime/exec/recorder.h"
#include "tests/support/temp.h"
#include "tuner/space/trace.h"

#define TINY KT_SOURCE_DIR "/datasets/models/tiny-moe"

static char folder[512], path[600], older[610];

static void make_folder(void) {
    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/load.jsonl", folder);
    snprintf(older, sizeof older, "%s.1", path);
}

static void remove_folder(void) {
    kt_temp_remove(folder);
}

static kt_recorder_options options(void) {
    return (kt_recorder_options){.path = path,
                                 .model = "a \"model\"",
                                 .experts = 128,
                                 .topk = 8,
                                 .moe_layers = 3,
                                 .threads = 2,
                                 .max_rows = 512};
}

/* A step in which layer l has rows for experts l, l + 10, ... */
static void write_step(kt_recorder *r, int64_t rows, int64_t decode) {
    kt_recorded_step step = {decode, rows - decode, 1, 77, 1000 + rows};

    kt_recorder_begin(r);
    for (int64_t l = 0; l < 3; l++) {
        kt_recorder_layer(r);
        for (int64_t e = l; e < 80; e += 10) kt_recorder_expert(r, e, 1 + (e + rows) % rows);
    }
    kt_recorder_end(r, &step);
}

Test(recorder, writes_what_the_tuner_reads, .init = make_folder, .fini = remove_folder) {
    kt_recorder_options o = options();
    kt_recorder *r = NULL;
    kt_trace trace;
    int32_t counts[128];
    struct stat info;
    kt_err err = {0};

    cr_assert_eq(kt_recorder_open(&o, &r, &err), KT_OK, "%s", err.message);
    write_step(r, 512, 0);
    write_step(r, 1, 1);
    cr_assert(kt_recorder_steps(r) == 2 && kt_recorder_lost(r) == 0);
    /* at once, not when it is closed */
    cr_assert_eq(kt_trace_read(path, &trace, &err), KT_OK, "%s", err.message);
    cr_assert(trace.n_steps == 2 && trace.experts == 128 && trace.topk == 8 && trace.layers == 3);
    cr_assert_str_eq(trace.model, "a \"model\"");
    cr_assert(trace.steps[0].tokens == 512 && trace.steps[0].context == 77);
    cr_assert(trace.steps[1].tokens == 1 && trace.steps[1].time_ns == 1001 && !trace.cut);
    for (int64_t l = 0; l < 3; l++) {
        kt_trace_counts(&trace, 0, l, counts);
        for (int64_t e = 0; e < 128; e++)
            cr_assert_eq(counts[e], e < 80 && e % 10 == l ? 1 + (e + 512) % 512 : 0);
    }
    cr_assert_eq(stat(path, &info), 0);
    cr_assert_eq(info.st_mode & 0777, 0600); /* nobody else's to read */
    kt_trace_deinit(&trace);
    kt_recorder_close(r);
}

Test(recorder, keeps_the_latest_steps_within_its_limit, .init = make_folder,
     .fini = remove_folder) {
    kt_recorder_options o = options();
    kt_recorder *r = NULL;
    kt_trace trace, before;
    kt_err err = {0};
    struct stat a, b;

    o.max_bytes = 1; /* the least there is */
    cr_assert_eq(kt_recorder_open(&o, &r, &err), KT_OK, "%s", err.message);
    for (int64_t i = 0; i < 12000; i++) {
        write_step(r, 1 + i % 500, 0);
        if (i % 1000) continue;
        cr_assert_eq(stat(path, &a), 0);
        cr_assert(a.st_size <= 1 << 19);
    }
    cr_assert(kt_recorder_steps(r) == 12000 && kt_recorder_lost(r) == 0);
    cr_assert(stat(path, &a) == 0 && stat(older, &b) == 0 && a.st_size + b.st_size <= 1 << 20);
    cr_assert_eq(kt_trace_read(older, &before, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_trace_read(path, &trace, &err), KT_OK, "%s", err.message);
    cr_assert(!before.cut && !trace.cut);
    /* no step between the two is missing, and the last is the last */
    cr_assert_eq(before.steps[before.n_steps - 1].tokens % 500 + 1, trace.steps[0].tokens);
    cr_assert_eq(trace.steps[trace.n_steps - 1].tokens, 1 + 11999 % 500);
    kt_trace_deinit(&trace);
    kt_trace_deinit(&before);
    kt_recorder_close(r);
}

/* A disk that is full: the server goes on, steps are counted as lost. */
Test(recorder, survives_a_full_disk, .init = make_folder, .fini = remove_folder) {
    kt_recorder_options o = options();
    struct rlimit limit = {4096, RLIM_INFINITY};
    kt_recorder *r = NULL;
    kt_trace trace;
    kt_err err = {0};

    cr_assert_eq(kt_recorder_open(&o, &r, &err), KT_OK, "%s", err.message);
    signal(SIGXFSZ, SIG_IGN);
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
    for (int i = 0; i < 50; i++) write_step(r, 100, 0);
    cr_assert(kt_recorder_steps(r) > 0 && kt_recorder_lost(r) > 0);
    cr_assert_eq(kt_recorder_steps(r) + kt_recorder_lost(r), 50);
    cr_assert_eq(kt_trace_read(path, &trace, &err), KT_OK, "%s", err.message);
    cr_assert_eq((int64_t)trace.n_steps, kt_recorder_steps(r));
    kt_trace_deinit(&trace);
    kt_recorder_close(r);
}

Test(recorder, refuses_what_it_cannot_record, .init = make_folder, .fini = remove_folder) {
    kt_recorder_options o = options();
    kt_recorder *r = NULL;
    kt_err err = {0};

    o.moe_layers = 0;
    cr_assert_eq(kt_recorder_open(&o, &r, &err), KT_E_UNSUPPORTED);
    cr_assert(strstr(err.message, "no layers with routed experts"), "%s", err.message);
    o = options();
    o.path = "/nonexistent/load.jsonl";
    cr_assert_eq(kt_recorder_open(&o, &r, &err), KT_E_IO);
    cr_assert(strstr(err.message, "/nonexistent/load.jsonl: No such file"), "%s", err.message);
    cr_assert_null(r);
}

/* Every row goes to topk experts in every layer, whatever the chunks; recording changes no logit. */
Test(recorder, engine_records_its_steps, .init = make_folder, .fini = remove_folder,
     .timeout = 180) {
    kt_engine_options o = {.model_dir = TINY, .table_path = "", .n_threads = 2};
    kt_engine *e = NULL;
    kt_engine_info info;
    kt_sequence *s = NULL;
    kt_trace trace;
    kt_err err = {0};
    int32_t tokens[40];
    float *logits[2];
    int64_t steps, lost;

    cr_assert_eq(kt_engine_create(&o, &e, &err), KT_OK, "%s", err.message);
    kt_engine_describe(e, &info);
    for (int i = 0; i < 40; i++) tokens[i] = (i * 37 + 11) % (int)info.vocab;
    for (int again = 0; again < 2; again++) {
        logits[again] = malloc((size_t)info.vocab * sizeof **logits);
        if (again) cr_assert_eq(kt_engine_record(e, path, 0, &err), KT_OK, "%s", err.message);
        kt_engine_set_chunk(e, 16);
        cr_assert_eq(kt_sequence_create(e, 64, &s, &err), KT_OK);
        cr_assert_eq(kt_engine_forward(e, s, tokens, 37, 0, NULL, NULL, NULL, NULL, &err), KT_OK);
        for (int i = 37; i < 40; i++)
            cr_assert_eq(
                kt_engine_forward(e, s, tokens + i, 1, 1, logits[again], NULL, NULL, NULL, &err),
                KT_OK);
        kt_sequence_destroy(s);
    }
    cr_assert(memcmp(logits[0], logits[1], (size_t)info.vocab * sizeof **logits) == 0);
    kt_engine_recorded(e, &steps, &lost);
    cr_assert(steps == 6 && lost == 0);
    cr_assert_eq(kt_engine_record(e, NULL, 0, &err), KT_OK);
    cr_assert_eq(kt_trace_read(path, &trace, &err), KT_OK, "%s", err.message);
    cr_assert_eq(trace.n_steps, 6);
    cr_assert_eq(trace.steps[2].tokens, 5);   /* 16 + 16 + 5 of the prompt */
    cr_assert_eq(trace.steps[5].context, 40); /* the last row meets all 40 */
    for (size_t i = 0; i < 6; i++)
        for (int64_t l = 0; l < trace.layers; l++) {
            int32_t counts[1024], sum = 0;
            cr_assert_eq(trace.steps[i].layers, trace.layers);
            kt_trace_counts(&trace, i, l, counts);
            for (int64_t x = 0; x < trace.experts; x++) sum += counts[x];
            cr_assert_eq(sum, trace.steps[i].tokens * trace.topk, "step %zu layer %lld", i,
                         (long long)l);
        }
    kt_trace_deinit(&trace);
    free(logits[0]);
    free(logits[1]);
    kt_engine_destroy(e);
}
