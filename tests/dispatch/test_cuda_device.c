/* Drivers that are absent or unfit, compiled kernels, and their cache. No GPU is needed.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/buffer.h"
#include "base/checksum.h"
#include "dispatch/device/cubin_cache.h"
#include "dispatch/device/cuda_compiler.h"
#include "dispatch/device/cuda_driver.h"
#include "dispatch/device/gpu_view.h"
#include "dispatch/device/nvml.h"
#include "tests/support/temp.h"

/* ---- drivers ---- */

static kt_gpus probe(const char *kind) {
    char path[600];
    kt_gpus g;

    snprintf(path, sizeof path, KT_BUILD_DIR "/tests/libfake_cuda_%s.so", kind);
    setenv("KT_CUDA_DRIVER", path, 1);
    kt_gpus_probe(&g);
    return g;
}

static void expect_none(const char *kind, const char *says) {
    const kt_gpus g = probe(kind);
    cr_expect_eq(g.n, 0, "%s: %d GPUs", kind, g.n);
    cr_expect_not_null(strstr(g.why, says), "%s: '%s' lacks '%s'", kind, g.why, says);
    cr_expect_null(strchr(g.why, '\n'));
}

Test(cuda_driver, says_in_one_line_why_there_is_no_gpu) {
    expect_none("stub", "stub");
    expect_none("none", "sees no GPU");
    expect_none("mixed", "two versions");
    expect_none("old", "of CUDA 11.4, expected 12.0 or newer");
    expect_none("short", "no function cuDeviceTotalMem_v2");
    expect_none("absent", "libfake_cuda_absent.so");
}

Test(cuda_driver, names_gpus_and_what_to_compile_for) {
    const kt_gpus g = probe("right");

    cr_assert_eq(g.n, 2, "%s", g.why);
    cr_expect_str_eq(g.gpu[0].name, "Pretended Large");
    cr_expect_eq(g.gpu[0].sm, 120);
    cr_expect_eq(g.gpu[0].multiprocessors, 170);
    cr_expect_eq(g.gpu[0].memory_bytes, UINT64_C(32) << 30);
    cr_expect_eq(g.gpu[1].shared_bytes, 101376);
    cr_expect_str_eq(kt_gpu_target(&g.gpu[0])->name, "120");
    cr_expect_str_eq(kt_gpu_target(&g.gpu[1])->name, "86");
    cr_expect_str_eq(kt_gpu_target(&(kt_gpu){.sm = 90})->name, "90a");
    cr_expect_str_eq(kt_gpu_target(&(kt_gpu){.sm = 88})->name, "87");
    cr_expect_null(kt_gpu_target(&(kt_gpu){.sm = 75}));
    cr_expect_null(kt_gpu_target(&(kt_gpu){.sm = 130}));
}

/* ---- what GPUs can do ---- */

static const kt_cuda_kernel *find_kernel(const char *name) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, name) == 0) return kt_builtin_cuda_kernels[i];
    cr_assert_fail("no kernel %s", name);
    return NULL;
}

static void expect_refused(const kt_gpu_view *v, int gpu, const kt_cuda_kernel *k,
                           const char *says) {
    char why[320];

    kt_gpu_refuses(v, gpu, k, why);
    if (*says)
        cr_expect_not_null(strstr(why, says), "'%s' lacks '%s'", why, says);
    else
        cr_expect_str_empty(why);
}

static void take_view(const char *driver, const char *compiler, kt_gpu_view *v) {
    char path[600];

    snprintf(path, sizeof path, KT_BUILD_DIR "/tests/libfake_cuda_%s.so", driver);
    setenv("KT_CUDA_DRIVER", path, 1);
    snprintf(path, sizeof path, KT_BUILD_DIR "/tests/libfake_nvrtc_%s.so", compiler);
    setenv("KT_NVRTC", path, 1);
    kt_gpu_view_take(v);
}

static const kt_cuda_target *target(const char *name) {
    for (size_t i = 0; i < kt_cuda_target_count; i++)
        if (strcmp(kt_cuda_targets[i].name, name) == 0) return &kt_cuda_targets[i];
    cr_assert_fail("no target %s", name);
    return NULL;
}

Test(gpu_view, says_which_kernels_a_gpu_runs_and_why_not_the_rest) {
    kt_cuda_kernel k = *find_kernel("moe_tiles");
    kt_gpu_view v;
    int n = 0;

    take_view("right", "new", &v);
    expect_refused(&v, 0, &k, "");
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        n += kt_builtin_cuda_kernels[i]->targets >> (target("120") - kt_cuda_targets) & 1;
    cr_expect_eq(kt_gpu_runs(&v, 0), n);
    cr_expect_lt(n, (int)kt_builtin_cuda_kernel_count, "warpgroups are of sm_90a alone");
    k.targets = 1; /* of sm_80 alone */
    expect_refused(&v, 0, &k, "Pretended Large: not for sm_120");
    k.targets = KT_CUDA_BASELINE;
    v.gpus.gpu[1].shared_bytes = 48 << 10;
    expect_refused(&v, 1, &k, "Pretended Small: its stages exceed a block's shared memory");
    v.gpus.gpu[1].sm = 75;
    expect_refused(&v, 1, &k, "it is of sm_75, expected sm_80 or newer");
    kt_gpu_view_drop(&v);
    take_view("right", "old", &v); /* which does not know sm_120 */
    expect_refused(&v, 0, &k, "");
    k.targets = ~1u;
    expect_refused(&v, 0, &k, "not for sm_80, which its code is made for");
    kt_gpu_view_drop(&v);
    take_view("right", "absent", &v);
    expect_refused(&v, 0, &k, "libfake_nvrtc_absent.so");
    cr_expect_eq(kt_gpu_runs(&v, 0), 0);
    kt_gpu_view_drop(&v);
    take_view("none", "new", &v);
    expect_refused(&v, 0, &k, "the CUDA driver sees no GPU");
    kt_gpu_view_drop(&v);
}

Test(nvml, tells_clock_and_temperature_or_why_not) {
    kt_gpu_state s;
    char text[128];
    kt_nvml *n;

    setenv("KT_NVML", KT_BUILD_DIR "/tests/libfake_nvml.so", 1);
    n = kt_nvml_start(text, sizeof text);
    cr_assert_not_null(n, "%s", text);
    s = kt_nvml_look(n, "0000:41:00.0");
    cr_expect_eq(s.sm_mhz, 1410);
    cr_expect_eq(s.most_sm_mhz, 1980);
    cr_expect_eq(s.power_mw, -1);
    cr_expect_eq(s.temperature_c, 63);
    cr_expect_str_eq(kt_gpu_throttle_text(s.throttle, text, sizeof text), "power limit, thermal");
    s = kt_nvml_look(n, "0000:51:00.0");
    cr_expect(s.sm_mhz == -1 && s.temperature_c == -1 && s.throttle == -1);
    cr_expect_str_empty(kt_gpu_throttle_text(s.throttle, text, sizeof text));
    cr_expect_str_empty(kt_gpu_throttle_text(1, text, sizeof text)); /* idle */
    kt_nvml_stop(n);
    kt_nvml_stop(NULL);
    setenv("KT_NVML", "/nowhere/libnvidia-ml.so", 1);
    cr_expect_null(kt_nvml_start(text, sizeof text));
    cr_expect_str_eq(text, "/nowhere/libnvidia-ml.so is not installed");
    setenv("KT_NVML", KT_BUILD_DIR "/tests/libfake_cuda_right.so", 1);
    cr_expect_null(kt_nvml_start(text, sizeof text));
    cr_expect_not_null(strstr(text, "no function nvmlInit_v2"), "%s", text);
}

/* ---- cubins ---- */

static void put(uint8_t *at, uint64_t v, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(v >> (8 * i));
}

enum { FILE_BYTES = 1024, SECTIONS = 6, TABLE = 512 };

/* A cubin of one entry `f`: 40 registers, a frame of 24 bytes, 2048 bytes of shared memory, and
 * three instructions of which one is a HMMA. */
static void make_cubin(uint8_t *file) {
    static const char names[] = "\0.names\0.text.f\0.nv.info\0.nv.shared.f\0.symtab\0f";
    const struct {
        uint32_t name, type, offset, size, link;
    } s[SECTIONS] = {{0, 0, 0, 0, 0},     {1, 3, 64, sizeof names, 0}, {8, 1, 128, 48, 0},
                     {16, 1, 192, 48, 0}, {25, 8, 0, 2048, 0},         {38, 2, 256, 48, 1}};

    memset(file, 0, FILE_BYTES);
    memcpy(file,
           "\x7f"
           "ELF\x02",
           5);
    put(file + 18, 190, 2);
    put(file + 40, TABLE, 8);
    put(file + 48, 0x5a00, 4);
    put(file + 58, 64, 2), put(file + 60, SECTIONS, 2), put(file + 62, 1, 2);
    memcpy(file + 64, names, sizeof names);
    put(file + 128, 0x7918, 2), put(file + 144, 0x723c, 2), put(file + 160, 0x7918, 2);
    put(file + 192, 0x00082f04, 4), put(file + 196, 1, 4), put(file + 200, 40, 4);
    put(file + 204, 0x00081104, 4), put(file + 208, 1, 4), put(file + 212, 24, 4);
    put(file + 216, 0x00082f04, 4), put(file + 224, 99, 4); /* of another symbol */
    put(file + 228, 0x00081104, 4), put(file + 236, 99, 4);
    put(file + 256 + 24, 46, 4); /* symbol 1 is called f */
    for (int i = 0; i < SECTIONS; i++) {
        uint8_t *at = file + TABLE + i * 64;
        put(at, s[i].name, 4), put(at + 4, s[i].type, 4);
        put(at + 24, s[i].offset, 8), put(at + 32, s[i].size, 8), put(at + 40, s[i].link, 4);
    }
}

Test(cubin, facts_are_read_from_the_file) {
    uint8_t file[FILE_BYTES];
    kt_cubin_facts f;
    kt_err err;

    make_cubin(file);
    cr_assert_eq(kt_cubin_inspect(file, sizeof file, "f", &f, &err), KT_OK, "%s", err.message);
    cr_expect_eq(f.sm, 0x5a);
    cr_expect_eq(f.registers, 40);
    cr_expect_eq(f.frame_bytes, 24);
    cr_expect_eq(f.shared_bytes, 2048);
    cr_expect_eq(f.code_bytes, 48);
    cr_expect_eq(f.opcodes[KT_OPCODE_HMMA], 1);
    cr_expect_eq(f.opcodes[KT_OPCODE_IMMA], 0);
    cr_expect_eq(kt_cubin_inspect(file, sizeof file, "g", &f, &err), KT_E_NOT_FOUND);
    cr_expect_not_null(strstr(err.message, "'g'"), "%s", err.message);
    cr_expect_eq(kt_cubin_inspect("not a cubin", 11, "f", &f, &err), KT_E_FORMAT);
}

/* Cut off anywhere, and with any byte of its structure changed: an answer, never a crash. */
Test(cubin, damage_is_an_error_or_harmless) {
    uint8_t sound[FILE_BYTES];
    kt_cubin_facts f;

    make_cubin(sound);
    for (size_t n = 0; n < FILE_BYTES; n++) {
        uint8_t *cut = malloc(n ? n : 1); /* so that AddressSanitizer knows its end */
        kt_status st;
        memcpy(cut, sound, n);
        st = kt_cubin_inspect(cut, n, "f", &f, NULL);
        cr_expect(n >= TABLE + SECTIONS * 64 || st == KT_E_FORMAT, "%zu bytes: %d", n, st);
        free(cut);
    }
    put(sound + TABLE + 2 * 64 + 24, 200, 8); /* an end that wraps round to the file's inside */
    put(sound + TABLE + 2 * 64 + 32, UINT64_MAX - 100, 8);
    cr_expect_eq(kt_cubin_inspect(sound, FILE_BYTES, "f", &f, NULL), KT_E_FORMAT);
    make_cubin(sound);
    for (size_t i = 0; i < FILE_BYTES; i++)
        for (int v = 0; v < 3; v++) {
            uint8_t *file = malloc(FILE_BYTES);
            memcpy(file, sound, FILE_BYTES);
            file[i] = (uint8_t)(v == 0 ? 0xff : v == 1 ? 0x80 : file[i] + 1);
            kt_cubin_inspect(file, FILE_BYTES, "f", &f, NULL);
            free(file);
        }
}

/* ---- the cache ---- */

static void path_of(const char *folder, const char *key, char *out, size_t bytes) {
    snprintf(out, bytes, "%s/%016llx.cubin", folder,
             (unsigned long long)kt_checksum(key, strlen(key)));
}

Test(cubin_cache, gives_back_what_was_kept_and_nothing_else) {
    char folder[512], path[600], other[600], *text;
    uint8_t *data;
    size_t size;

    kt_temp_make(folder, sizeof folder);
    cr_expect(!kt_cubin_cache_get(folder, "one", 3, &data, &size));
    cr_assert_eq(kt_cubin_cache_put(folder, "one", 3, (const uint8_t *)"code", 4, NULL), KT_OK);
    cr_assert(kt_cubin_cache_get(folder, "one", 3, &data, &size));
    cr_expect(size == 4 && memcmp(data, "code", 4) == 0);
    free(data);
    path_of(folder, "one", path, sizeof path);
    path_of(folder, "two", other, sizeof other);
    cr_assert_eq(kt_file_read(path, 1 << 20, &text, &size, NULL), KT_OK);
    /* another key's file under this one's name, as after a collision of checksums */
    cr_assert_eq(kt_file_write(other, text, size, NULL), KT_OK);
    cr_expect(!kt_cubin_cache_get(folder, "two", 3, &data, &size));
    for (size_t i = 0, n = size; i < n; i++) { /* each byte counts */
        text[i] ^= 4;
        cr_assert_eq(kt_file_write(path, text, n, NULL), KT_OK);
        cr_expect(!kt_cubin_cache_get(folder, "one", 3, &data, &size), "byte %zu", i);
        text[i] ^= 4;
        cr_assert_eq(kt_file_write(path, text, i, NULL), KT_OK);
        cr_expect(!kt_cubin_cache_get(folder, "one", 3, &data, &size), "%zu bytes", i);
    }
    free(text);
    cr_expect_neq(kt_cubin_cache_put("/nowhere", "one", 3, (const uint8_t *)"code", 4, NULL),
                  KT_OK);
    kt_temp_remove(folder);
}

/* One process writes over and over and is killed; whoever reads sees all of one version or nothing.
 */
Test(cubin_cache, survives_kill_and_two_processes) {
    enum { BYTES = 100000 };
    static uint8_t code[BYTES];
    char folder[512];
    int n_seen = 0;

    kt_temp_make(folder, sizeof folder);
    for (int round = 0; round < 10; round++) {
        const pid_t child = fork();
        if (child == 0)
            for (int i = 0;; i++) {
                memset(code, i, BYTES);
                kt_cubin_cache_put(folder, "key", 3, code, BYTES, NULL);
            }
        for (int i = 0; i < 20; i++) {
            uint8_t *data;
            size_t size;
            usleep(500);
            if (!kt_cubin_cache_get(folder, "key", 3, &data, &size)) continue;
            n_seen++;
            cr_expect(size == BYTES && memcmp(data, data + 1, BYTES - 1) == 0);
            free(data);
        }
        kill(child, SIGKILL);
        waitpid(child, NULL, 0);
    }
    cr_expect_gt(n_seen, 0);
    kt_temp_remove(folder);
}

/* ---- the compiler ---- */

Test(cuda_compiler, a_library_that_is_not_nvrtc_is_refused_by_name) {
    kt_cuda_compiler *c;
    kt_err err;

    setenv("KT_NVRTC", "/nowhere/libnvrtc.so", 1);
    cr_expect_eq(kt_cuda_compiler_open(&c, &err), KT_E_NOT_FOUND);
    cr_expect_not_null(strstr(err.message, "/nowhere/libnvrtc.so"), "%s", err.message);
    cr_expect_null(c);
    setenv("KT_NVRTC", KT_BUILD_DIR "/tests/libfake_cuda_right.so", 1);
    cr_expect_eq(kt_cuda_compiler_open(&c, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "no function nvrtcVersion"), "%s", err.message);
}

/* What `./quickstart gpu` fetched goes before a toolkit's. */
Test(cuda_compiler, the_folder_of_this_user_is_looked_at_first) {
    kt_cuda_compiler *c = NULL;
    char folder[256], command[900];
    kt_err err = {KT_OK, ""};

    kt_temp_make(folder, sizeof folder);
    snprintf(command, sizeof command, "mkdir -p %s/kt/nvrtc && cp %s %s/kt/nvrtc/libnvrtc.so",
             folder, KT_BUILD_DIR "/tests/libfake_cuda_right.so", folder);
    cr_assert_eq(system(command), 0);
    unsetenv("KT_NVRTC");
    setenv("XDG_DATA_HOME", folder, 1);
    cr_expect_eq(kt_cuda_compiler_open(&c, &err), KT_E_UNSUPPORTED);
    cr_expect_not_null(strstr(err.message, "kt/nvrtc/libnvrtc.so: it has no"), "%s", err.message);
    kt_temp_remove(folder);
}

static kt_cuda_compiler *open_compiler(void) {
    kt_cuda_compiler *c;
    kt_err err;

    if (kt_cuda_compiler_open(&c, &err) != KT_OK)
        cr_skip_test("no NVRTC to compile GPU kernels with");
    return c;
}

/* The oldest or the newest target of a kernel that the compiler knows; NULL = it has none. */
static const kt_cuda_target *end_target(const kt_cuda_compiler *c, const kt_cuda_kernel *k,
                                        bool is_newest) {
    const kt_cuda_target *found = NULL;

    for (size_t i = 0; i < kt_cuda_target_count; i++) {
        const kt_cuda_target *t = &kt_cuda_targets[i];
        if (!(k->targets >> i & 1) || !kt_cuda_compiler_knows(c, t)) continue;
        if (!found || is_newest) found = t;
    }
    return found;
}

/* Every kernel with its initial constants: no spills, and the instructions it is for. Each in turn
 * for the oldest and the newest GPU stand for all, which `kttune compile` does. To sanitizers a few
 * show all that is ours. */
#ifdef __SANITIZE_ADDRESS__
#define KERNELS_APART 9
#else
#define KERNELS_APART 1
#endif
Test(cuda_compiler, kernels_fit_the_oldest_or_the_newest, .timeout = 300) {
    kt_cuda_compiler *c = open_compiler();
    kt_cubin_facts f;
    kt_cubin code;
    kt_err err;

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i += KERNELS_APART) {
        const kt_cuda_kernel *k = kt_builtin_cuda_kernels[i];
        const kt_cuda_target *t = end_target(c, k, i % 2);
        const kt_config config = kt_cuda_initial(k);
        if (!t) continue;
        cr_assert_eq(kt_cuda_compile(c, k, &config, t, NULL, &code, &err), KT_OK, "%s",
                     err.message);
        cr_expect(!code.is_serial, "%s, sm_%s: serial products", k->name, t->name);
        for (int e = 0; e < k->entry_count; e++) {
            cr_assert_eq(kt_cubin_inspect(code.data, code.bytes, k->entry[e].name, &f, &err), KT_OK,
                         "%s", err.message);
            cr_expect_eq(f.sm, t->sm, "%d", f.sm);
            cr_expect_eq(f.frame_bytes, 0, "%s, sm_%s: %d bytes of stack", k->entry[e].name,
                         t->name, f.frame_bytes);
            cr_expect_eq(f.opcodes[KT_OPCODE_ACQBULK], t->sm >= KT_OVERLAP_SM,
                         "%s, sm_%s: %d waits", k->entry[e].name, t->name,
                         f.opcodes[KT_OPCODE_ACQBULK]);
            for (int o = 0; e == 0 && o < KT_OPCODE_COUNT; o++)
                cr_expect(!(k->needs_opcodes >> o & 1) || f.opcodes[o] > 0, "%s", k->name);
        }
        kt_cubin_free(&code);
    }
    kt_cuda_compiler_close(c);
}

Test(cuda_compiler, code_is_kept_by_its_content, .timeout = 120) {
    const kt_cuda_kernel *k = find_kernel("moe_permute");
    kt_config config = kt_cuda_initial(k);
    kt_cuda_compiler *c = open_compiler();
    kt_cubin first, second;
    char folder[512];
    kt_err err;

    kt_temp_make(folder, sizeof folder);
    cr_assert_eq(kt_cuda_compile(c, k, &config, target("80"), folder, &first, &err), KT_OK, "%s",
                 err.message);
    cr_expect(!first.is_cached);
    cr_assert_eq(kt_cuda_compile(c, k, &config, target("80"), folder, &second, &err), KT_OK);
    cr_expect(second.is_cached);
    cr_expect(first.bytes == second.bytes && memcmp(first.data, second.data, first.bytes) == 0);
    kt_cubin_free(&second);
    config.value[0] = 4; /* other constants are other code */
    cr_assert_eq(kt_cuda_compile(c, k, &config, target("80"), folder, &second, &err), KT_OK);
    cr_expect(!second.is_cached);
    kt_cubin_free(&first);
    kt_cubin_free(&second);
    kt_cuda_compiler_close(c);
    kt_temp_remove(folder);
}

static const char *refuse_nothing(const kt_config *config, const kt_cuda_target *t) {
    (void)config, (void)t;
    return NULL;
}

Test(cuda_compiler, what_does_not_compile_is_named, .timeout = 120) {
    kt_cuda_compiler *c = open_compiler();
    kt_cuda_kernel k = {.name = NULL};
    kt_config config;
    kt_cubin code;
    kt_err err;

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        if (strcmp(kt_builtin_cuda_kernels[i]->name, "moe_tiles") == 0)
            k = *kt_builtin_cuda_kernels[i];
    cr_assert_not_null(k.name);
    config = kt_cuda_initial(&k);
    config.value[4] = 1; /* no stage to fill while one is read */
    k.refuse = refuse_nothing;
    cr_expect_eq(kt_cuda_compile(c, &k, &config, target("80"), NULL, &code, &err), KT_E_FORMAT);
    cr_expect_not_null(strstr(err.message, "moe_tiles.cu: "), "%s", err.message);
    cr_expect_not_null(strstr(err.message, "\"stages\""), "%s", err.message);
    cr_expect_null(code.data);
    k.targets = 1;
    cr_expect_eq(kt_cuda_compile(c, &k, &config, target("120"), NULL, &code, &err),
                 KT_E_UNSUPPORTED);
    cr_expect_str_eq(err.message, "moe_tiles: it is not for sm_120");
    k.targets = KT_CUDA_BASELINE;
    k.name = "unknown";
    cr_expect_eq(kt_cuda_compile(c, &k, &config, target("80"), NULL, &code, &err), KT_E_INTERNAL);
    cr_expect_not_null(strstr(err.message, "unknown.cu"), "%s", err.message);
    kt_cuda_compiler_close(c);
}
