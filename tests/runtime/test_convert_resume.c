/* Conversions that are ended half-way, or may not begin. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/clock.h"
#include "base/json.h"
#include "base/rng.h"
#include "dispatch/model/checkpoint.h"
#include "runtime/model/convert.h"
#include "tests/support/folder.h"
#include "tests/support/random_model.h"
#include "tests/support/temp.h"

enum { KILLS = 50 };

static const kt_model_shape shape = {.layers = 5,
                                     .hidden = 128,
                                     .vocab = 200,
                                     .heads = 2,
                                     .kv_heads = 1,
                                     .head_dim = 64,
                                     .experts = 8,
                                     .topk = 2,
                                     .expert_size = 128,
                                     .dense_size = 256,
                                     .dense_layer = 0,
                                     .is_normalised = 1,
                                     .dtype = KT_DTYPE_BF16};

static struct {
    char model[256], whole[256]; /* the source; its conversion, never ended */
    uint64_t sum;
    int64_t time_ns;
} base;

static kt_status convert_as(const char *out, kt_quant quant, size_t max_ram,
                            kt_convert_result *result, kt_err *err) {
    const kt_convert_request request = {
        .model = base.model, .out = out, .quant = quant, .max_ram = max_ram, .n_threads = 2};
    return kt_convert(&request, result, err);
}

static kt_status convert(const char *out, kt_convert_result *result, kt_err *err) {
    return convert_as(out, KT_QUANT_INT4, 0, result, err);
}

static void make_base(void) {
    kt_convert_result result;
    kt_err err = {KT_OK, ""};

    kt_temp_make(base.model, sizeof base.model);
    kt_temp_make(base.whole, sizeof base.whole);
    kt_random_model(&shape, 11, base.model);
    base.time_ns = kt_clock_ns();
    cr_assert_eq(convert(base.whole, &result, &err), KT_OK, "%s", err.message);
    base.time_ns = kt_clock_ns() - base.time_ns;
    base.sum = kt_folder_checksum(base.whole);
    cr_assert_eq(result.shards, 6);
    cr_assert_eq(result.resumed, 0);
    cr_assert_eq(result.tensors, 5 * 4 + 3 + 4 * 8 * 3 + 1); /* a dense layer, head */
    cr_assert(result.error > 0.001 && result.error < 0.2, "error %g", result.error);
    cr_assert_geq(result.worst, result.error);
}

static void remove_base(void) {
    kt_temp_remove(base.model);
    kt_temp_remove(base.whole);
}
TestSuite(convert_resume, .init = make_base, .fini = remove_base, .timeout = 300);

static void kill_one(const char *out, int64_t after_ns) {
    const struct timespec pause = {after_ns / 1000000000, after_ns % 1000000000};
    int status;
    pid_t child = fork();

    cr_assert_geq(child, 0);
    if (child == 0) {
        kt_convert_result result;
        _exit(convert(out, &result, NULL) == KT_OK ? 0 : 1);
    }
    nanosleep(&pause, NULL);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_expect(WIFSIGNALED(status) || WEXITSTATUS(status) == 0, "the child failed by itself");
}

Test(convert_resume, killed_anywhere_it_goes_on_to_the_same_bytes) {
    char out[256], index[300];
    kt_rng rng;
    int n_resumed = 0, n_half = 0;

    kt_rng_seed(&rng, 77);
    for (int i = 0; i < KILLS; i++) {
        kt_convert_result result;
        kt_err err = {KT_OK, ""};
        kt_checkpoint *c = NULL;
        kt_temp_make(out, sizeof out);
        kill_one(out, (int64_t)(kt_rng_double(&rng) * 1.1 * (double)base.time_ns));
        snprintf(index, sizeof index, "%s/model.safetensors.index.json", out);
        if (access(index, F_OK) != 0) { /* half a folder is no model */
            n_half++;
            cr_expect_neq(kt_checkpoint_open(out, &c, &err), KT_OK);
            kt_checkpoint_close(c);
        }
        cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
        n_resumed += result.resumed > 0 && !result.was_complete;
        cr_expect_eq(kt_folder_checksum(out), base.sum, "kill %d: other bytes", i);
        kt_temp_remove(out);
    }
    cr_expect_geq(n_half, KILLS / 4, "only %d of %d kills came in time", n_half, KILLS);
    cr_expect_geq(n_resumed, KILLS / 10, "only %d of %d went on", n_resumed, KILLS);
}

/* The least memory that is enough gives the same bytes; less is refused with that number. */
Test(convert_resume, memory_does_not_change_the_bytes) {
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    char out[256], *number;
    long least;

    kt_temp_make(out, sizeof out);
    cr_assert_eq(convert_as(out, KT_QUANT_INT4, 1000, &result, &err), KT_E_INVALID);
    number = strstr(err.message, "expected at least ");
    cr_assert(number, "%s", err.message);
    least = atol(number + strlen("expected at least "));
    cr_assert(least > 0 && least < 64, "%s", err.message);
    cr_assert_eq(convert_as(out, KT_QUANT_INT4, (size_t)least << 20, &result, &err), KT_OK, "%s",
                 err.message);
    cr_expect_eq(kt_folder_checksum(out), base.sum);
    kt_temp_remove(out);
}

static int stop_at(void *arg) {
    static int left = 9;
    (void)arg;
    return --left == 0;
}

Test(convert_resume, interrupted_it_says_where_and_goes_on) {
    const kt_convert_request request = {
        .model = base.model, .quant = KT_QUANT_INT4, .n_threads = 2, .cancel = stop_at};
    kt_convert_request with = request;
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    char out[256], path[400];

    kt_temp_make(out, sizeof out);
    with.out = out;
    cr_assert_eq(kt_convert(&with, &result, &err), KT_E_CANCELLED);
    cr_expect(strstr(err.message, "goes on behind shard 1 of 6"), "%s", err.message);
    snprintf(path, sizeof path, "%s/model-00002-of-00006.safetensors.part", out);
    cr_expect_neq(access(path, F_OK), 0, "half a shard was left");
    cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
    cr_expect_eq(result.resumed, 1);
    cr_expect_eq(kt_folder_checksum(out), base.sum);
    cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
    cr_expect(result.was_complete);
    kt_temp_remove(out);
}

/* A shard that was damaged after it was finished is written again, with all behind it. */
Test(convert_resume, damaged_shards_are_written_again) {
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    char out[256], path[400], *text;
    size_t size;

    kt_temp_make(out, sizeof out);
    cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
    snprintf(path, sizeof path, "%s/model-00003-of-00006.safetensors", out);
    cr_assert_eq(kt_file_read(path, 1 << 26, &text, &size, &err), KT_OK);
    text[size / 2] ^= 1;
    kt_temp_write(out, "model-00003-of-00006.safetensors", text, size);
    free(text);
    cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
    cr_expect_eq(result.resumed, 2);
    cr_expect_eq(kt_folder_checksum(out), base.sum);
    kt_temp_remove(out);
}

/* The disk is full at some size: the message names the file, and with room the work goes on. */
Test(convert_resume, full_disks_end_it_cleanly) {
    static const rlim_t limits[] = {100, 3000, 20000, 70000, 150000};
    struct rlimit old;
    kt_convert_result result;
    kt_err err = {KT_OK, ""};
    char out[256];

    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old);
    kt_temp_make(out, sizeof out);
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const struct rlimit limit = {limits[i], old.rlim_max};
        kt_status st;
        setrlimit(RLIMIT_FSIZE, &limit);
        st = convert(out, &result, &err);
        setrlimit(RLIMIT_FSIZE, &old);
        cr_assert_eq(st, KT_E_IO, "%d: %s", (int)st, err.message);
        cr_expect(strstr(err.message, out) && strstr(err.message, "File too large"), "%s",
                  err.message);
    }
    cr_assert_eq(convert(out, &result, &err), KT_OK, "%s", err.message);
    cr_expect_eq(kt_folder_checksum(out), base.sum);
    kt_temp_remove(out);
}

static void expect_refused(const char *out, kt_quant quant, kt_status status, const char *words) {
    kt_convert_result result;
    kt_err err = {KT_OK, ""};

    cr_expect_eq(convert_as(out, quant, 0, &result, &err), status, "%s: %s", out, err.message);
    cr_expect(strstr(err.message, words), "'%s' lacks '%s'", err.message, words);
}

Test(convert_resume, nothing_foreign_is_written_over) {
    const uint64_t before = kt_folder_checksum(base.model);
    char out[256];

    kt_temp_make(out, sizeof out);
    kt_temp_write(out, "thesis.tex", "x", 1);
    expect_refused(out, KT_QUANT_INT4, KT_E_INVALID, "holds 'thesis.tex'");
    expect_refused(base.model, KT_QUANT_INT4, KT_E_INVALID, "is the source's folder");
    expect_refused(base.whole, KT_QUANT_INT8, KT_E_INVALID, "another conversion, of '");
    expect_refused("/proc/none", KT_QUANT_INT4, KT_E_IO, "cannot create the folder");
    expect_refused("/dev/null", KT_QUANT_INT4, KT_E_IO, "/dev/null");
    expect_refused(out, KT_QUANT_FORMAT + KT_W_Q4_0, KT_E_UNSUPPORTED, "GGUF blocks");
    cr_expect_eq(kt_folder_checksum(base.model), before);
    cr_expect_eq(kt_folder_checksum(base.whole), base.sum);
    kt_temp_remove(out);
}

/* ---- the command ---- */

static void expect(const char *arguments, int code, const char *words) {
    char line[2000], out[8192];
    size_t size;
    FILE *pipe;
    int status;

    snprintf(line, sizeof line, "KT_LOG=off %s/kt convert %s 2>&1", KT_BUILD_DIR, arguments);
    pipe = popen(line, "r");
    cr_assert(pipe);
    size = fread(out, 1, sizeof out - 1, pipe);
    out[size] = '\0';
    status = pclose(pipe);
    cr_expect_eq(WEXITSTATUS(status), code, "%s: %d: %s", arguments, WEXITSTATUS(status), out);
    cr_expect(strstr(out, words), "%s: '%s' lacks '%s'", arguments, out, words);
}

Test(convert_resume, the_command_says_what_is_wrong) {
    char out[256], line[1200];

    kt_temp_make(out, sizeof out);
    expect("", 2, "no model given");
    expect("m", 2, "--out is missing");
    expect("m -o d", 2, "--to is missing, expected");
    expect("m -o d --to q9", 2, "--to is 'q9', expected");
    expect("m -o d --to int4 --max-ram big", 2, "--max-ram is 'big', expected a size");
    expect("m -o d --to int4 --max-ram 8X", 2, "--max-ram is '8X'");
    expect("/none -o /tmp --to int4", 1, "no such folder");
    snprintf(line, sizeof line, "%s -o %s --to AMXINT4 --max-ram 1.5GiB", base.model, out);
    expect(line, 0, "as int4 in 6 shards");
    cr_expect_eq(kt_folder_checksum(out), base.sum);
    snprintf(line, sizeof line, "%s -o %s --to int4", base.model, out);
    expect(line, 0, "was complete");
    snprintf(line, sizeof line, "%s -o %s --to int4 --json", base.model, out);
    expect(line, 0, "\"tensors_encoded\":120");
    snprintf(line, sizeof line, "%s -o %s --to native --importance x", base.model, out);
    expect(line, 1, "are not quantised");
    kt_temp_remove(out);
}
