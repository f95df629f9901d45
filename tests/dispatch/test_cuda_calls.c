/* The member `cuda` of devices, on a driver and a compiler that only pretend: launches run under
 * the emulator. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/mailbox.h"
#include "kernels/cuda/permute_calls.h"
#include "tests/libraries/fake_cuda.h"
#include "tests/support/temp.h"

enum { ROWS = 3, K = 200, SLOTS = 2 };

static struct {
    void (*fail)(const char *function, int after, int code);
    void (*on_launch)(fake_cuda_launched *f);
    const char *(*calls)(void);
    void (*forget)(void);
    int (*live)(void);
    int (*overlapped)(void);
} fake;

static kt_err err;
static char cache[512], last_options[512];

#define OK(call) cr_assert_eq(call, KT_OK, "%s", err.message)
#define FAILS(status, text, call)                                                          \
    do {                                                                                   \
        const kt_status st_ = call;                                                        \
        cr_expect_eq(st_, status, "%s: %d, %s", #call, st_, st_ ? err.message : "");       \
        cr_expect(st_ == KT_OK || strstr(err.message, text), "%s: '%s' lacks '%s'", #call, \
                  err.message, text);                                                      \
    } while (0)

static const kt_cuda_kernel *find_kernel(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

/* What a GPU would do: the constants are in the code's options, the entry in its name. */
static int emulate(const char *name, const char *options, int grid_x, int grid_y, int threads,
                   size_t shared_bytes, const void *parameters, size_t parameter_bytes) {
    const kt_emulator_options how = {.seed = 3, .lazy = true, .races = true};
    int32_t constant[KT_MAX_PARAMS] = {0};

    snprintf(last_options, sizeof last_options, "%s", options);
    if (strcmp(name, "mailbox_post") != 0) cr_expect_eq(parameter_bytes, sizeof(kt_moe_combine));
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
                return kt_emulate(&l, &how, NULL) == KT_OK ? 0 : 719;
        }
    return 500;
}

static void set_up(const char *compiler) {
    static const char *const names[] = {"fake_cuda_fail",  "fake_cuda_on_launch",
                                        "fake_cuda_calls", "fake_cuda_forget",
                                        "fake_cuda_live",  "fake_cuda_overlapped"};
    char path[600];
    void *library;

    kt_temp_make(cache, sizeof cache);
    setenv("XDG_CACHE_HOME", cache, 1);
    snprintf(path, sizeof path, KT_BUILD_DIR "/tests/libfake_nvrtc_%s.so", compiler);
    setenv("KT_NVRTC", path, 1);
    setenv("KT_CUDA_DRIVER", KT_BUILD_DIR "/tests/libfake_cuda_right.so", 1);
    library = dlopen(KT_BUILD_DIR "/tests/libfake_cuda_right.so", RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(library, names[i]);
        cr_assert_not_null(f, "%s", names[i]);
        memcpy((char *)&fake + i * sizeof f, &f, sizeof f);
    }
    fake.on_launch(emulate);
}

static void tear_down(void) {
    cr_expect_eq(fake.live(), 0, "%d objects are left", fake.live());
    kt_temp_remove(cache);
}

static kt_status open_gpu(int ordinal, kt_device **out) {
    const kt_device_options o = {.class = "cuda", .ordinal = ordinal};
    return kt_device_open(&o, out, &err);
}

/* Sums of rows by the last entry of moe_permute, from values on the host to values on the host. */
typedef struct sums {
    kt_device *d;
    float *y, *out;
    int32_t *row_of;
    kt_device_launch launch;
    kt_moe_combine p;
    float values[ROWS * SLOTS * K], back[ROWS * K];
    int32_t rows[ROWS * SLOTS];
} sums;

static kt_status prepare(sums *t) {
    const kt_cuda_kernel *kernel = find_kernel("moe_permute");
    kt_config config = kt_cuda_initial(kernel);

    memset(t->back, 0, sizeof t->back);
    for (int i = 0; i < ROWS * SLOTS * K; i++) t->values[i] = (float)(i % 1000);
    for (int i = 0; i < ROWS * SLOTS; i++) t->rows[i] = i % 4 == 3 ? -1 : ROWS * SLOTS - 1 - i;
    config.value[0] = 4;
    t->launch = (kt_device_launch){.entry = 3,
                                   .grid_x = (K + 127) / 128,
                                   .grid_y = ROWS,
                                   .parameters = &t->p,
                                   .parameter_bytes = sizeof t->p};
    KT_TRY(kt_device_code_of(t->d, kernel, &config, &t->launch.code, &err));
    KT_TRY(kt_device_alloc(t->d, sizeof t->values, (void **)&t->y, &err));
    KT_TRY(kt_device_alloc(t->d, sizeof t->back, (void **)&t->out, &err));
    KT_TRY(kt_device_host_alloc(t->d, sizeof t->rows, (void **)&t->row_of, &err));
    memcpy(t->row_of, t->rows, sizeof t->rows);
    t->p = (kt_moe_combine){
        .y = t->y, .row_of = t->row_of, .out = t->out, .ldo = K, .k = K, .slots = SLOTS};
    return KT_OK;
}

static kt_status put(sums *t) {
    KT_TRY(kt_device_upload(t->d, KT_STREAM_MAIN, t->y, t->values, sizeof t->values, &err));
    KT_TRY(kt_device_clear(t->d, KT_STREAM_MAIN, t->out, sizeof t->back, &err));
    KT_TRY(kt_device_run(t->d, KT_STREAM_MAIN, &t->launch, &err));
    KT_TRY(kt_device_copy(t->d, KT_STREAM_MAIN, t->y, t->out, sizeof t->back, &err));
    return kt_device_download(t->d, KT_STREAM_MAIN, t->back, t->y, sizeof t->back, &err);
}

static void count_call(void *arg) {
    ++*(int *)arg;
}

/* Everything that a device can do, once. */
static kt_status do_all(sums *t) {
    kt_device_event *a, *b;
    kt_device_graph *g;
    uint64_t left;
    double ms;
    bool did;
    int n_called = 0;

    KT_TRY(prepare(t));
    KT_TRY(kt_device_memory(t->d, &left, NULL, &err));
    KT_TRY(kt_device_pin(t->d, t->values, sizeof t->values, &err));
    KT_TRY(kt_device_event_make(t->d, &a, &err));
    KT_TRY(kt_device_event_make(t->d, &b, &err));
    KT_TRY(kt_device_record(t->d, KT_STREAM_UPLOAD, a, &err));
    KT_TRY(kt_device_wait(t->d, KT_STREAM_MAIN, a, &err));
    KT_TRY(put(t));
    KT_TRY(kt_device_record(t->d, KT_STREAM_MAIN, b, &err));
    KT_TRY(kt_device_sync(t->d, b, &err));
    KT_TRY(kt_device_passed(t->d, b, &did, &err));
    KT_TRY(kt_device_elapsed(t->d, a, b, &ms, &err));
    cr_expect(did && ms == 1.5);
    KT_TRY(kt_device_capture_begin(t->d, KT_STREAM_MAIN, &err));
    KT_TRY(put(t));
    KT_TRY(kt_device_capture_end(t->d, &g, &err));
    KT_TRY(kt_device_replay(t->d, KT_STREAM_MAIN, g, &err));
    KT_TRY(kt_device_poke(t->d, KT_STREAM_MAIN, &did, &err));
    cr_expect(did, "the pretended driver does all at once");
    for (int i = 0; i < 3; i++) { /* as it is, captured and replayed, replayed */
        KT_TRY(kt_device_gather_begin(t->d, KT_STREAM_MAIN, false, &err));
        KT_TRY(put(t));
        KT_TRY(kt_device_call(t->d, KT_STREAM_MAIN, count_call, &n_called, &err));
        KT_TRY(kt_device_gather_end(t->d, &err));
    }
    cr_expect_eq(n_called, 3);
    return kt_device_sync(t->d, NULL, &err);
}

static int count_wrong(const sums *t) {
    int n = 0;

    for (int r = 0; r < ROWS; r++)
        for (int i = 0; i < K; i++) {
            float want = 0;
            for (int s = 0; s < SLOTS; s++)
                if (t->rows[r * SLOTS + s] >= 0) want += t->values[t->rows[r * SLOTS + s] * K + i];
            n += t->back[r * K + i] != want;
        }
    return n;
}

Test(cuda_calls, a_kernel_runs_from_upload_to_download) {
    static sums t;
    const kt_device_facts *facts;
    int registers, local;

    set_up("new");
    OK(open_gpu(0, &t.d));
    facts = kt_device_about(t.d);
    cr_expect_str_eq(facts->name, "Pretended Large");
    cr_expect_str_eq(facts->class, "cuda");
    cr_expect_str_eq(facts->target->name, "120");
    cr_expect_eq(facts->multiprocessors, 170);
    cr_expect_eq(facts->memory_bytes, UINT64_C(32) << 30);
    cr_expect_eq(facts->free_bytes, UINT64_C(30) << 30);
    OK(prepare(&t));
    kt_device_code_facts(t.launch.code, 3, &registers, &local);
    cr_expect(registers == 77 && local == 8);
    OK(put(&t));
    cr_expect_eq(count_wrong(&t), 0);
    cr_expect_str_eq(last_options,
                     "moe_permute.cu --gpu-architecture=sm_120 --std=c++17 -DKT_C0=4");
    t.launch.shared_bytes = 100 * 1024; /* over 48 KiB takes the opt-in, over 99 there is none */
    FAILS(KT_E_INVALID, "shared memory", kt_device_run(t.d, KT_STREAM_MAIN, &t.launch, &err));
    t.launch.shared_bytes = 90 * 1024;
    OK(kt_device_run(t.d, KT_STREAM_MAIN, &t.launch, &err));
    kt_device_close(t.d);
    tear_down();
}

/* Launches that may begin before what is in front of them is done, of one run of the kernel. */
static int count_overlapped(int ordinal) {
    static sums t;
    int n;

    OK(open_gpu(ordinal, &t.d));
    fake.overlapped();
    OK(do_all(&t));
    n = fake.overlapped();
    kt_device_close(t.d);
    return n;
}

/* Code of sm_90 and newer waits for what is before it (KT_LAUNCH_WAIT), other code does not: the
 * pretended driver refuses to overlap that. */
Test(cuda_calls, launches_overlap_where_kernels_wait) {
    set_up("new");
    cr_expect_gt(count_overlapped(0), 0);
    cr_expect_eq(count_overlapped(1), 0, "an sm_86");
    setenv("KT_LAUNCH_OVERLAP", "off", 1);
    cr_expect_eq(count_overlapped(0), 0, "switched off");
    unsetenv("KT_LAUNCH_OVERLAP");
    tear_down();
    set_up("old");
    cr_expect_eq(count_overlapped(0), 0, "code of sm_80 on an sm_120");
    tear_down();
}

static int count_files(const char *folder) {
    DIR *d = opendir(folder);
    int n = 0;

    for (const struct dirent *e; d && (e = readdir(d));) n += e->d_name[0] != '.';
    if (d) closedir(d);
    return n;
}

/* Of three requests one is impossible, and no error yet; more threads than requests. */
Test(cuda_calls, code_made_ahead_is_in_the_cache) {
    const kt_cuda_kernel *permute = find_kernel("moe_permute"),
                         *wide = find_kernel("moe_fp8_wgmma");
    const kt_code_request request[] = {
        {wide, {{128, 128, 4, KT_W_FP8_B128}}}, {permute, {{4}}}, {permute, {{8}}}};
    const kt_device_code *code;
    char folder[600];
    kt_device *d;

    set_up("new");
    snprintf(folder, sizeof folder, "%s/kt/cubin", cache);
    OK(open_gpu(0, &d));
    kt_device_prepare(d, request, 3, 9);
    cr_expect_eq(count_files(folder), 2);
    OK(kt_device_code_of(d, permute, &request[2].config, &code, &err));
    cr_expect_eq(count_files(folder), 2);
    kt_device_close(d);
    tear_down();
}

/* Three codes of one kernel by at most two threads; one is launched before the end, and none is
 * loaded before it is needed. */
Test(cuda_calls, code_is_compiled_behind_the_caller) {
    const kt_cuda_kernel *permute = find_kernel("moe_permute");
    const kt_device_code *code, *same;
    char folder[600];
    static sums t;
    int live;

    set_up("new");
    snprintf(folder, sizeof folder, "%s/kt/cubin", cache);
    OK(open_gpu(0, &t.d));
    live = fake.live();
    kt_device_codes_begin(t.d, 2);
    OK(kt_device_code_of(t.d, permute, &(kt_config){{8}}, &code, &err));
    OK(kt_device_code_of(t.d, permute, &(kt_config){{16}}, &code, &err));
    cr_expect_eq(fake.live(), live);
    OK(prepare(&t));
    OK(put(&t));
    OK(kt_device_sync(t.d, NULL, &err));
    cr_expect_eq(count_wrong(&t), 0);
    live = fake.live();
    OK(kt_device_codes_end(t.d, &err));
    cr_expect_eq(fake.live(), live + 2, "the modules of 8 and 16");
    cr_expect_eq(count_files(folder), 3);
    OK(kt_device_code_of(t.d, permute, &(kt_config){{16}}, &same, &err));
    cr_expect_eq(same, code);
    OK(kt_device_code_of(t.d, permute, &(kt_config){{32}}, &code, &err));
    cr_expect_eq(fake.live(), live + 3, "behind the end the caller waits");
    kt_device_close(t.d);
    tear_down();
}

/* Code that cannot be loaded is told at the end, stays unusable, and is tried again; a device may
 * be closed while threads compile. */
Test(cuda_calls, code_behind_the_caller_fails) {
    const kt_cuda_kernel *permute = find_kernel("moe_permute"),
                         *wide = find_kernel("moe_fp8_wgmma");
    const kt_device_code *code;
    static sums t;

    set_up("new");
    OK(open_gpu(1, &t.d));
    kt_device_codes_begin(t.d, 4);
    FAILS(KT_E_UNSUPPORTED, "moe_fp8_wgmma: it is not for sm_86",
          kt_device_code_of(t.d, wide, &(kt_config){{128, 128, 4, KT_W_FP8_B128}}, &code, &err));
    OK(prepare(&t));
    fake.fail("cuModuleLoadData", 0, 200);
    FAILS(KT_E_IO, "moe_permute", put(&t));
    fake.fail("cuModuleLoadData", 0, 200);
    FAILS(KT_E_IO, "moe_permute", kt_device_codes_end(t.d, &err));
    fake.fail(NULL, 0, 0);
    OK(put(&t));
    OK(kt_device_sync(t.d, NULL, &err));
    cr_expect_eq(count_wrong(&t), 0);
    kt_device_codes_begin(t.d, 4);
    for (int i = 1; i < 9; i++)
        OK(kt_device_code_of(t.d, permute, &(kt_config){{4 * i}}, &code, &err));
    kt_device_close(t.d);
    tear_down();
}

Test(cuda_calls, a_graph_is_replayed) {
    static sums t;

    set_up("new");
    OK(open_gpu(1, &t.d));
    cr_expect_str_eq(kt_device_about(t.d)->target->name, "86");
    OK(do_all(&t));
    cr_expect_eq(count_wrong(&t), 0);
    kt_device_close(t.d);
    tear_down();
}

/* Values of one GPU go on to another, behind an event of the first; and what fails is told by its
 * name, of either. */
Test(cuda_calls, two_gpus_hand_over_what_they_have) {
    static sums t;
    kt_device_event *e;
    kt_device *other;
    float back[2] = {0, 0};
    void *there;

    set_up("new");
    OK(open_gpu(0, &t.d));
    OK(open_gpu(1, &other));
    OK(prepare(&t));
    OK(put(&t));
    OK(kt_device_event_make(t.d, &e, &err));
    OK(kt_device_record(t.d, KT_STREAM_MAIN, e, &err));
    OK(kt_device_alloc(other, sizeof back, &there, &err));
    OK(kt_device_wait_for(other, KT_STREAM_MAIN, t.d, e, &err));
    OK(kt_device_copy_from(other, KT_STREAM_MAIN, there, t.d, t.out, sizeof back, &err));
    OK(kt_device_download(other, KT_STREAM_MAIN, back, there, sizeof back, &err));
    OK(kt_device_sync(other, NULL, &err));
    cr_expect(back[0] == t.back[0] && back[1] == t.back[1] && back[1] > 0);
    fake.fail("cuMemcpyPeerAsync", 0, 719);
    FAILS(KT_E_IO, "a copy from another GPU",
          kt_device_copy_from(other, KT_STREAM_MAIN, there, t.d, t.out, 4, &err));
    fake.fail(NULL, 0, 0);
    FAILS(KT_E_IO, "is lost", kt_device_wait_for(t.d, KT_STREAM_MAIN, other, e, &err));
    kt_device_close(other);
    kt_device_close(t.d);
    tear_down();
}

/* A letter's bytes go by its kernel on a GPU that knows pinned memory by the host's address, else
 * by a copy. The second GPU is of the other kind. */
Test(cuda_calls, spans_of_letters_go_by_what_the_gpu_can) {
    set_up("new");
    for (int i = 0; i < 2; i++) {
        void *here, *there;
        kt_mail_span span;
        kt_mailbox *box;
        kt_device *d;
        int letter;
        OK(open_gpu(i, &d));
        cr_expect_eq(kt_device_about(d)->maps_pinned, i == 0);
        OK(kt_mailbox_create(d, KT_MAILBOX_MAPPED, 4, &box, &err));
        OK(kt_device_host_alloc(d, 64, &here, &err));
        OK(kt_device_alloc(d, 64, &there, &err));
        span = (kt_mail_span){here, there, 64};
        OK(kt_mailbox_begin(box, KT_STREAM_MAIN, &err));
        fake.forget();
        memset(here, 0, 64);
        memset(there, 5, 64); /* the pretended driver's is the process's */
        OK(kt_mailbox_post(box, KT_STREAM_MAIN, &span, 1, &letter, &err));
        OK(kt_mailbox_await(box, letter, &err));
        cr_expect_arr_eq(here, there, 64);
        cr_expect_eq(strstr(fake.calls(), "cuMemcpyDtoH") == NULL, i == 0, "%s", fake.calls());
        kt_device_close(d);
        kt_mailbox_destroy(box);
    }
    tear_down();
}

/* What another GPU has pinned is known by its driver, which is no reason to give up. */
Test(cuda_calls, memory_that_is_pinned_already_is_told) {
    static char memory[64];
    kt_device *d;

    set_up("new");
    OK(open_gpu(0, &d));
    fake.fail("cuMemHostRegister_v2", 0, 712);
    FAILS(KT_E_INVALID, "pinning memory of the host",
          kt_device_pin(d, memory, sizeof memory, &err));
    fake.fail(NULL, 0, 0);
    OK(kt_device_pin(d, memory, sizeof memory, &err));
    kt_device_close(d);
    tear_down();
}

Test(cuda_calls, a_gpu_newer_than_the_compiler_gets_ptx) {
    static sums t;

    set_up("old");
    OK(open_gpu(0, &t.d));
    cr_expect_str_eq(kt_device_about(t.d)->target->name, "80");
    OK(do_all(&t));
    cr_expect_eq(count_wrong(&t), 0);
    cr_expect_eq(strncmp(last_options, "ptx moe_permute.cu --gpu-architecture=compute_80 ", 49), 0,
                 "%s", last_options);
    t.launch.shared_bytes = 120 * 1024; /* an sm_80 would have as much */
    FAILS(KT_E_INVALID, "a block has at most 101376",
          kt_device_run(t.d, KT_STREAM_MAIN, &t.launch, &err));
    kt_device_close(t.d);
    tear_down();
}

Test(cuda_calls, memory_that_is_not_there_is_told_with_what_is_free) {
    kt_device *d;
    void *p;

    set_up("new");
    OK(open_gpu(0, &d));
    FAILS(KT_E_NOMEM, "Pretended Large: no memory for 2147483648 bytes: 32212254720 of 34359738368",
          kt_device_alloc(d, (size_t)1 << 31, &p, &err));
    cr_expect_null(p);
    FAILS(KT_E_NOMEM, "no memory of the host", kt_device_host_alloc(d, (size_t)1 << 31, &p, &err));
    cr_expect_null(p);
    OK(kt_device_sync(d, NULL, &err)); /* which is no reason to give up */
    kt_device_close(d);
    tear_down();
}

Test(cuda_calls, what_cannot_be_opened_is_said_in_one_line) {
    kt_device *d;

    set_up("new");
    FAILS(KT_E_NOT_FOUND, "cuda: GPU 2, the CUDA driver sees 2", open_gpu(2, &d));
    setenv("KT_NVRTC", "/nowhere/libnvrtc.so", 1);
    FAILS(KT_E_UNSUPPORTED, "Pretended Large: KT_NVRTC: ", open_gpu(0, &d));
    cr_expect_null(d);
    setenv("KT_CUDA_DRIVER", KT_BUILD_DIR "/tests/libfake_cuda_none.so", 1);
    FAILS(KT_E_NOT_FOUND, "cuda: the CUDA driver sees no GPU", open_gpu(0, &d));
    tear_down();
}

/* Each function fails at its first, second, .. call: an error that names the code, and all that was
 * made is given back. After a fatal one the device says the same for ever. */
Test(cuda_calls, every_failure_is_told_and_leaves_nothing, .timeout = 60) {
    static char names[1 << 16];
    static sums t;
    int n_tried = 0;

    set_up("new");
    fake.forget();
    OK(open_gpu(0, &t.d));
    OK(do_all(&t));
    kt_device_close(t.d);
    snprintf(names, sizeof names, "%s", fake.calls());
    for (char *at = names, *name; (name = strtok(at, " ")); at = NULL) {
        for (int n = 0; n < 3; n++) {
            const int code = n == 1 ? 719 : n == 2 ? 905 : 2;
            kt_status st;
            if (strstr(name, "Destroy") || strcmp(name, "cuModuleUnload") == 0 ||
                strncmp(name, "cuMemFree", 9) == 0 || strstr(name, "Unregister"))
                continue; /* of what is given back nobody hears */
            fake.fail(name, n, code);
            st = open_gpu(0, &t.d);
            if (st == KT_OK) {
                st = do_all(&t);
                if (st != KT_OK && code == 719 && strcmp(name, "cuInit") != 0) {
                    kt_err first = err;
                    FAILS(KT_E_IO, "is lost", kt_device_sync(t.d, NULL, &err));
                    cr_expect_str_eq(err.message, first.message, "%s", name);
                }
                fake.fail(NULL, 0, 0);
                kt_device_close(t.d);
            }
            fake.fail(NULL, 0, 0);
            n_tried += st != KT_OK;
            if (st != KT_OK && strcmp(name, "cuInit") != 0 && code != 2)
                cr_expect(strstr(err.message, code == 719 ? "CUDA_ERROR_LAUNCH_FAILED (719)"
                                                          : "STREAM_CAPTURE_ISOLATION (905)"),
                          "%s %d: %s", name, n, err.message);
            cr_assert(st != KT_OK || n > 0, "%s: its failure was not noticed", name);
            cr_assert_eq(fake.live(), 0, "%s %d: %d objects are left", name, n, fake.live());
        }
    }
    cr_expect_gt(n_tried, 60);
    tear_down();
}
