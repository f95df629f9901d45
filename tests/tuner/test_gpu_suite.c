/* The suite of a device: on the emulated one with computed times, and on a pretended GPU, whose
 * launches are emulated, with a pretended cuBLASLt beside it.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/json.h"
#include "kernels/cuda/device_weights.h"
#include "kernels/formats/format.h"
#include "tests/libraries/fake_cuda.h"
#include "tests/support/temp.h"
#include "tuner/session/gpu_suite_impl.h"
#include "tuner/space/device_prior.h"

static const kt_device_options emulated = {.class = "emulated"};
static const kt_device_options gpu = {.class = "cuda"};

static kt_err err;
static kt_suite_row rows[KT_SUITE_ROWS];
static int n_rows;

typedef struct heard {
    int n_begun, n_measured, stop_after;
    kt_gpu_facts facts;
    char last[40];
} heard;

static bool stop(void *arg) {
    const heard *h = arg;
    return h->stop_after && h->n_measured >= h->stop_after;
}

static void begun(void *arg, const kt_gpu_facts *f) {
    heard *h = arg;
    h->n_begun++;
    h->facts = *f;
}

static void measured(void *arg, const kt_suite_row *row) {
    heard *h = arg;
    h->n_measured++;
    snprintf(h->last, sizeof h->last, "%s", row->name);
}

static kt_gpu_options options_of(const kt_device_options *device, const char *glob, heard *h) {
    return (kt_gpu_options){.device = device,
                            .is_pretended = device->class == emulated.class,
                            .is_small = true,
                            .threads = 1,
                            .seconds = device->class == emulated.class ? 60 : 8,
                            .seed = 1,
                            .rows = glob,
                            .stop = stop,
                            .begun = begun,
                            .measured = measured,
                            .arg = h};
}

static kt_status run(const kt_device_options *device, const char *glob, heard *h) {
    const kt_gpu_options o = options_of(device, glob, h);
    return kt_gpu_suite_run(&o, rows, &n_rows, &err);
}

/* ---- the table ---- */

Test(gpu_suite, the_table_is_complete) {
    cr_assert(kt_gpu_spec_count > 0 && kt_gpu_spec_count <= KT_SUITE_ROWS);
    for (int i = 0; i < kt_gpu_spec_count; i++) {
        const kt_gpu_spec *s = &kt_gpu_specs[i];
        cr_assert_lt(strlen(s->name), sizeof rows->name, "%s", s->name);
        for (int k = 0; k < i; k++) cr_assert_str_neq(s->name, kt_gpu_specs[k].name);
        cr_expect(s->wgmma_bar == 0 || s->wgmma_bar > s->bar, "%s", s->name);
        if (s->kind == KT_GPU_COPY || s->kind == KT_GPU_PEAK) continue;
        const int64_t block = kt_format_find(s->weights)->block;
        cr_assert(s->n % 32 == 0 && s->k % 32 == 0 && s->rows > 0, "%s", s->name);
        cr_assert(!block || (s->n % block == 0 && s->k % block == 0), "%s", s->name);
        cr_expect_eq(kt_device_weight_format(s->weights), s->weights, "%s", s->name);
        cr_expect((s->experts == 0) == (s->topk == 0), "%s", s->name);
        cr_expect(s->kind == KT_GPU_OF_COPY || s->experts > 0, "%s", s->name);
    }
}

static const kt_cuda_kernel *find_kernel(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

Test(gpu_suite, bars_follow_the_kernel_and_the_peaks) {
    const kt_gpu_spec bf16 = {.name = "x", .bar = 0.75, .wgmma_bar = 0.85},
                      fp8 = {.name = "y", .bar = 0.70};

    cr_expect_eq(kt_gpu_bar_of(&bf16, find_kernel("moe_wgmma")), 0.85);
    cr_expect_eq(kt_gpu_bar_of(&bf16, find_kernel("moe_tiles")), 0.75);
    cr_expect_eq(kt_gpu_bar_of(&fp8, find_kernel("moe_fp8_wgmma")), 0.70);
    cr_expect_eq(kt_gpu_bar_over_bf16(1.5, 884, 773), 0, "as an H100 has it");
    cr_expect_eq(kt_gpu_bar_over_bf16(1.5, 560, 280), 1.5);
}

Test(gpu_suite, a_row_is_kept_missed_skipped_or_failed) {
    kt_suite_row row = {.measured = 0.8, .bar = 0.75};
    kt_err why = {KT_OK, ""};

    kt_gpu_row_settle(&row, KT_OK, &why);
    cr_expect(row.ok && !row.skipped && !*row.note);
    row.bar = 0.85;
    kt_gpu_row_settle(&row, KT_OK, &why);
    cr_expect(!row.ok && !row.skipped && !*row.note);
    snprintf(why.message, sizeof why.message, "no library");
    kt_gpu_row_settle(&row, KT_E_UNSUPPORTED, &why);
    cr_expect(!row.ok && row.skipped);
    cr_expect_str_eq(row.note, "no library");
    row.bar = 0;
    kt_gpu_row_settle(&row, KT_E_IO, &why);
    cr_expect(!row.ok && !row.skipped, "a failure without a bar is one");
}

/* ---- the emulated device ---- */

/* Two experts of three small matrices in BF16, of which a call of one token reads two. */
Test(gpu_suite, a_figure_is_bytes_by_time_over_copies, .timeout = 60) {
    const kt_problem p = {.op = KT_OP_MOE_FFN,
                          .weights = KT_W_BF16,
                          .m = 1,
                          .n = 32,
                          .k = 64,
                          .experts = 4,
                          .topk = 2};
    const kt_device_job job = kt_device_job_of(&p, false);
    kt_device_choice choice;
    char kernel[64], *config;
    heard h = {0};
    double ns;

    cr_assert_eq(run(&emulated, "decode_bf16_1", &h), KT_OK, "%s", err.message);
    cr_assert(n_rows == 1 && h.n_begun == 1 && h.n_measured == 1);
    cr_expect_str_eq(h.facts.class, "emulated");
    cr_expect_str_eq(rows[0].note, "");
    snprintf(kernel, sizeof kernel, "%.63s", rows[0].contender);
    config = strchr(kernel, ' ');
    cr_assert_not_null(config, "%s", rows[0].contender);
    *config++ = 0;
    config[strlen(config) - strlen(", best of 2")] = 0;
    cr_assert_eq(kt_device_choice_parse(kernel, config, &job, &choice, &err), KT_OK, "%s",
                 err.message);
    ns = kt_device_prior_ns(&choice, &job, 1, h.facts.multiprocessors);
    cr_expect_float_eq(rows[0].rate, 2 * 3 * 32 * 64 * 2 / ns, 1e-9, "%g", rows[0].rate);
    cr_expect_float_eq(rows[0].ceiling, 1500, 1e-9);
    cr_expect_float_eq(rows[0].measured, rows[0].rate / 1500, 1e-12);
    cr_expect(rows[0].is_gbs && !rows[0].ok && rows[0].bar == 0.75 && rows[0].rounds == 3);
}

Test(gpu_suite, rows_of_a_missing_library_are_skipped_by_name, .timeout = 60) {
    heard h = {0};

    cr_assert_eq(run(&emulated, "p*_*8*", &h), KT_OK, "%s", err.message);
    cr_assert_gt(n_rows, 4);
    for (int i = 0; i < n_rows; i++) {
        const bool is_int4 = strstr(rows[i].name, "int4") != NULL;
        cr_expect_eq(rows[i].skipped, !is_int4, "%s: %s", rows[i].name, rows[i].note);
        cr_expect(is_int4 || strstr(rows[i].note, "none of a driver's"), "%s", rows[i].note);
        cr_expect(!is_int4 || (rows[i].ok && strstr(rows[i].detail, "no bar")), "%s",
                  rows[i].detail);
    }
    cr_expect_eq(h.n_measured, n_rows);
    cr_expect_eq(run(&emulated, "bird*", &h), KT_E_INVALID);
    cr_expect_not_null(strstr(err.message, "'bird*'"));
}

/* Every process has so many launches until its device is lost, and ends with the row. */
Test(gpu_suite, a_lost_device_costs_its_row_alone, .timeout = 60) {
    const kt_device_options fragile = {.class = "emulated", .fail_after = 40};
    const kt_device_options hopeless = {.class = "emulated", .fail_after = 2};
    int n_failed = 0;
    heard h = {0};

    cr_assert_eq(run(&fragile, "decode_*_8", &h), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 7);
    cr_expect_eq(h.n_begun, 1);
    cr_expect_str_eq(h.last, rows[6].name);
    for (int i = 0; i < 7; i++) {
        n_failed += strstr(rows[i].note, "the device is lost") != NULL;
        cr_expect(!strstr(rows[i].note, "ended its process"), "%s", rows[i].note);
    }
    cr_expect(n_failed > 0 && n_failed < 7, "%d of 7 rows failed", n_failed);
    cr_assert_eq(run(&hopeless, "dense_bf16", &h), KT_OK, "%s", err.message);
    cr_expect(*rows[0].note && !rows[0].ok && !rows[0].skipped, "%s", rows[0].note);
}

Test(gpu_suite, time_that_is_over_is_said, .timeout = 60) {
    heard h = {0};
    kt_gpu_options o = options_of(&emulated, "dense*", &h);

    o.seconds = 1e-6;
    cr_assert_eq(kt_gpu_suite_run(&o, rows, &n_rows, &err), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 3);
    for (int i = 0; i < 3; i++) {
        cr_expect(rows[i].skipped && !rows[i].ok, "%s", rows[i].name);
        cr_expect_str_eq(rows[i].note, "no time is left for it");
    }
}

Test(gpu_suite, a_stopped_run_keeps_its_rows, .timeout = 60) {
    heard h = {.stop_after = 2};

    cr_expect_eq(run(&emulated, "decode*", &h), KT_E_CANCELLED);
    cr_expect_eq(n_rows, 2);
    cr_expect_str_eq(rows[1].name, "decode_int4_g32_8");
}

/* ---- the pretended GPU ---- */

static char cache[512];
static void (*on_launch)(fake_cuda_launched *f);

/* What a GPU would do: the constants are in the code's options, the entry in its name. */
static int emulate(const char *name, const char *options, int grid_x, int grid_y, int threads,
                   size_t shared_bytes, const void *parameters, size_t parameter_bytes) {
    int32_t constant[KT_MAX_PARAMS] = {0};
    (void)parameter_bytes;

    if (strcmp(name, "hold_stream") == 0) return 0;
    for (int i = 0; i < KT_MAX_PARAMS; i++) {
        char word[24];
        const char *at;
        snprintf(word, sizeof word, "-DKT_C%d=", i);
        if ((at = strstr(options, word))) constant[i] = atoi(at + strlen(word));
    }
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        for (int e = 0; e < kt_builtin_cuda_kernels[i]->entry_count; e++) {
            const kt_launch l = {.name = name,
                                 .entry = kt_builtin_cuda_kernels[i]->entry[e].emulated,
                                 .parameters = parameters,
                                 .grid_x = grid_x,
                                 .grid_y = grid_y,
                                 .threads = threads,
                                 .shared_bytes = shared_bytes,
                                 .constant = constant};
            if (strcmp(kt_builtin_cuda_kernels[i]->entry[e].name, name) == 0)
                return kt_emulate(&l, &(kt_emulator_options){.seed = 1}, NULL) == KT_OK ? 0 : 719;
        }
    return 500;
}

static int hang_or_crash(const char *name, const char *options, int grid_x, int grid_y, int threads,
                         size_t shared_bytes, const void *parameters, size_t parameter_bytes) {
    if (strncmp(name, "moe_decode", 10) == 0)
        for (;;) sleep(1);
    if (strncmp(name, "gemm_decode", 11) == 0) raise(SIGKILL);
    return emulate(name, options, grid_x, grid_y, threads, shared_bytes, parameters,
                   parameter_bytes);
}

static void set_up(void) {
    void *driver, *f;

    kt_temp_make(cache, sizeof cache);
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("KT_NVRTC", KT_BUILD_DIR "/tests/libfake_nvrtc_new.so", 1);
    setenv("KT_CUDA_DRIVER", KT_BUILD_DIR "/tests/libfake_cuda_right.so", 1);
    setenv("KT_CUBLASLT", KT_BUILD_DIR "/tests/libfake_cublas_lt_right.so", 1);
    driver = dlopen(KT_BUILD_DIR "/tests/libfake_cuda_right.so", RTLD_NOW);
    cr_assert_not_null(driver, "%s", dlerror());
    f = dlsym(driver, "fake_cuda_on_launch");
    memcpy(&on_launch, &f, sizeof f);
    on_launch(emulate);
}

static void tear_down(void) {
    kt_temp_remove(cache);
}

TestSuite(gpu_suite_of_a_gpu, .init = set_up, .fini = tear_down);

/* Whatever is timed takes 1.5 ms by the pretended driver's clock, in samples of one call. */
Test(gpu_suite_of_a_gpu, prefill_is_held_against_products, .timeout = 60) {
    const double layer = 2 * 12.0 * 2 * 3 * 32 * 64, large = 2 * 64.0 * 64 * 64;
    heard h = {0};

    cr_assert_eq(run(&gpu, "prefill_[bf]*_512", &h), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 2);
    cr_expect_str_eq(h.facts.library, "cuBLASLt 13.1");
    cr_expect(h.facts.driver == 13000 && strcmp(h.facts.device, "Pretended Large") == 0);
    cr_expect_str_eq(rows[0].note, "");
    cr_expect_float_eq(rows[0].measured, 2, 1e-6, "two products: %g", rows[0].measured);
    cr_expect_float_eq(rows[0].rate, layer / 1.5e6, 1e-9, "%g", rows[0].rate);
    cr_expect_float_eq(rows[0].ceiling, layer / 3e6, 1e-9, "%g", rows[0].ceiling);
    cr_expect(rows[0].ok && rows[0].bar == 0.75 && rows[0].rounds >= 5);
    cr_expect_not_null(strstr(rows[0].detail, "products of cuBLASLt 13.1 3000.0 us"), "%s",
                       rows[0].detail);
    cr_expect_str_eq(rows[1].note, "");
    cr_expect_float_eq(rows[1].measured, layer / large, 1e-6, "at the peak: %g", rows[1].measured);
    cr_expect_eq(rows[1].bar, 0.70);
}

Test(gpu_suite_of_a_gpu, int4_is_held_against_bf16, .timeout = 60) {
    heard h = {0};

    cr_assert_eq(run(&gpu, "prefill_int4_g32_512", &h), KT_OK, "%s", err.message);
    cr_expect_str_eq(rows[0].note, "");
    cr_expect_float_eq(rows[0].measured, 1, 1e-6);
    cr_expect(rows[0].ok && rows[0].bar == 0, "%s", rows[0].detail);
    cr_expect_not_null(strstr(rows[0].detail, " 100 %: no bar"), "%s", rows[0].detail);
}

Test(gpu_suite_of_a_gpu, copies_and_peaks_are_rates, .timeout = 60) {
    heard h = {0};

    cr_assert_eq(run(&gpu, "[cp][oe]*", &h), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 4);
    cr_expect_float_eq(rows[0].measured, 2 * 65536 / 1.5e6, 1e-9, "%g", rows[0].measured);
    for (int i = 1; i < 4; i++) {
        cr_expect_float_eq(rows[i].measured, 2 * 64.0 * 64 * 64 / 1.5e6 / 1e3, 1e-12, "%s",
                           rows[i].name);
        cr_expect(rows[i].ok && strstr(rows[i].contender, "cuBLASLt 13.1"), "%s: %s", rows[i].name,
                  rows[i].note);
    }
    setenv("KT_CUBLASLT", KT_BUILD_DIR "/tests/libfake_cublas_lt_wrong.so", 1);
    cr_assert_eq(run(&gpu, "peak_int8", &h), KT_OK, "%s", err.message);
    cr_expect(!rows[0].ok && !rows[0].skipped && strstr(rows[0].note, "is off by"), "%s",
              rows[0].note);
}

Test(gpu_suite_of_a_gpu, one_that_hangs_and_one_that_crashes_end_alone, .timeout = 60) {
    heard h = {0};
    kt_gpu_options o = options_of(&gpu, "dec*_fp8_block_1", &h);

    on_launch(hang_or_crash);
    o.row_limit = 2;
    o.seconds = 60;
    cr_assert_eq(kt_gpu_suite_run(&o, rows, &n_rows, &err), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 2);
    for (int i = 0; i < 2; i++)
        cr_expect_str_eq(rows[i].note, "took longer than 2 s", "%s", rows[i].name);
    o.rows = "*_bf16";
    o.seconds = 3;
    cr_assert_eq(kt_gpu_suite_run(&o, rows, &n_rows, &err), KT_OK, "%s", err.message);
    cr_assert_eq(n_rows, 3);
    cr_expect_str_eq(rows[0].note, "", "peaks need none of these kernels");
    cr_expect_str_eq(rows[1].note, "ended its process, signal 9");
    cr_expect_str_eq(rows[2].note, "ended its process, signal 9");
}

Test(gpu_suite_of_a_gpu, a_machine_without_one_says_so, .timeout = 60) {
    heard h = {0};

    setenv("KT_CUDA_DRIVER", "/nowhere/libcuda.so", 1);
    cr_expect_eq(run(&gpu, "copy", &h), KT_E_NOT_FOUND);
    cr_expect(n_rows == 0 && h.n_begun == 0);
    cr_expect_not_null(strstr(err.message, "/nowhere"), "%s", err.message);
}

/* ---- the program ---- */

/* Exit code of a command; what it printed goes to out. */
static int shell(const char *command, char *out, size_t bytes) {
    FILE *from = popen(command, "r");
    size_t n;

    cr_assert_not_null(from);
    n = fread(out, 1, bytes - 1, from);
    out[n] = 0;
    return WEXITSTATUS(pclose(from));
}

/* What is printed, row by row, and what the file has are the same rows. */
Test(gpu_suite, the_program_prints_and_files_its_rows, .timeout = 60) {
    char folder[512], command[2048], path[600], out[8192], *text;
    const kt_json *list;
    kt_json_doc *doc;
    size_t size;

    kt_temp_make(folder, sizeof folder);
    snprintf(path, sizeof path, "%s/bench-gpu.json", folder);
    snprintf(command, sizeof command,
             "XDG_DATA_HOME=%s " KT_BUILD_DIR "/kttune bench --suite gpu --device emulated "
             "--pretend-clock --rows '[cd]*_bf16*' --seconds 30s --out %s 2>&1",
             folder, path);
    cr_expect_eq(shell(command, out, sizeof out), 5, "two bars are missed: %s", out);
    cr_expect_not_null(strstr(out, "times are computed"), "%s", out);
    cr_expect_not_null(strstr(out, "decode_bf16_8 "), "%s", out);
    cr_expect_not_null(strstr(out, "bar 0.75 MISSED"), "%s", out);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, &err), KT_OK, "%s", err.message);
    cr_assert_eq(kt_json_parse(text, size, NULL, &doc, &err), KT_OK, "%s", err.message);
    cr_expect_str_eq(kt_json_text(kt_json_root(doc), "class"), "emulated");
    cr_expect(kt_json_bool(kt_json_get(kt_json_root(doc), "pretended"), false));
    list = kt_json_get(kt_json_root(doc), "rows");
    cr_assert_eq(kt_json_length(list), 3);
    for (size_t i = 0; i < 3; i++) {
        static const char *const members[] = {"measured", "bar", "ok", "rate", "ceiling"};
        const kt_json *row = kt_json_at(list, i);
        cr_expect_not_null(strstr(out, kt_json_text(row, "name")));
        cr_expect_str_eq(kt_json_text(row, "unit"), "of copy");
        cr_expect_not_null(strstr(kt_json_text(row, "repeat"), "--suite gpu --device emulated"));
        for (size_t m = 0; m < sizeof members / sizeof *members; m++)
            cr_expect_not_null(kt_json_get(row, members[m]), "%s", members[m]);
    }
    kt_json_destroy(doc);
    free(text);
    kt_temp_remove(folder);
}
