/* Products by cuBLASLt, on a library, a driver and a compiler that only pretend.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/numeric.h"
#include "dispatch/device/cublas_lt.h"
#include "tests/support/temp.h"

enum { M = 3, N = 32, K = 48 };

static kt_err err;
static char cache[512];
static kt_device *device;
static struct {
    void (*fail)(const char *function, int after, int code);
    int (*live)(void);
    int (*products)(void);
} fake;

#define OK(call) cr_assert_eq(call, KT_OK, "%s", err.message)
#define FAILS(status, text, call)                                                          \
    do {                                                                                   \
        const kt_status st_ = call;                                                        \
        cr_expect_eq(st_, status, "%s: %d, %s", #call, st_, st_ ? err.message : "");       \
        cr_expect(st_ == KT_OK || strstr(err.message, text), "%s: '%s' lacks '%s'", #call, \
                  err.message, text);                                                      \
    } while (0)

static void use_library(const char *kind) {
    char path[600];

    snprintf(path, sizeof path, KT_BUILD_DIR "/tests/libfake_cublas_lt_%s.so", kind);
    setenv("KT_CUBLASLT", path, 1);
}

static void set_up(void) {
    static const char *const names[] = {"fake_lt_fail", "fake_lt_live", "fake_lt_products"};
    const kt_device_options o = {.class = "cuda"};
    void *library;

    kt_temp_make(cache, sizeof cache);
    setenv("XDG_CACHE_HOME", cache, 1);
    setenv("KT_NVRTC", KT_BUILD_DIR "/tests/libfake_nvrtc_new.so", 1);
    setenv("KT_CUDA_DRIVER", KT_BUILD_DIR "/tests/libfake_cuda_right.so", 1);
    use_library("right");
    library = dlopen(KT_BUILD_DIR "/tests/libfake_cublas_lt_right.so", RTLD_NOW);
    cr_assert_not_null(library, "%s", dlerror());
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *f = dlsym(library, names[i]);
        cr_assert_not_null(f, "%s", names[i]);
        memcpy((char *)&fake + i * sizeof f, &f, sizeof f);
    }
    OK(kt_device_open(&o, &device, &err));
}

static void tear_down(void) {
    kt_device_close(device);
    cr_expect_eq(fake.live(), 0, "%d objects are left", fake.live());
    kt_temp_remove(cache);
}

TestSuite(cublas_lt, .init = set_up, .fini = tear_down);

Test(cublas_lt, every_kind_of_product_is_one) {
    kt_lt *lt;

    OK(kt_lt_start(device, &lt, &err));
    cr_expect_str_eq(kt_lt_name(lt), "cuBLASLt 13.1");
    for (int kind = 0; kind < KT_LT_KINDS; kind++) OK(kt_lt_check(lt, (kt_lt_kind)kind, &err));
    cr_expect_eq(fake.products(), 2 * KT_LT_KINDS, "the ways that run, once of each kind");
    kt_lt_stop(lt);
}

/* What was kept to be put later, as one piece, is there before the library's work. */
Test(cublas_lt, work_that_is_gathered_comes_before_it) {
    uint16_t a[M * K], w[N * K], c[M * N];
    kt_lt_product *p;
    void *on[3];
    kt_lt *lt;

    for (int i = 0; i < M * K; i++) a[i] = kt_f32_to_bf16((float)(i % 5));
    for (int i = 0; i < N * K; i++) w[i] = kt_f32_to_bf16((float)(i % 3));
    OK(kt_lt_start(device, &lt, &err));
    OK(kt_device_alloc(device, sizeof a, &on[0], &err));
    OK(kt_device_alloc(device, sizeof w, &on[1], &err));
    OK(kt_device_alloc(device, sizeof c, &on[2], &err));
    OK(kt_lt_product_make(lt, KT_LT_BF16, M, N, K, &p, &err));
    cr_expect_eq(kt_lt_product_ways(p), 3, "those that are for this device");
    OK(kt_device_gather_begin(device, KT_STREAM_MAIN, false, &err));
    OK(kt_device_upload(device, KT_STREAM_MAIN, on[0], a, sizeof a, &err));
    OK(kt_device_upload(device, KT_STREAM_MAIN, on[1], w, sizeof w, &err));
    OK(kt_lt_product_put(p, 1, on[0], on[1], on[2], &err));
    OK(kt_device_download(device, KT_STREAM_MAIN, c, on[2], sizeof c, &err));
    OK(kt_device_gather_end(device, &err));
    OK(kt_device_sync(device, NULL, &err));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            float want = 0;
            for (int k = 0; k < K; k++) want += (float)((m * K + k) % 5 * ((n * K + k) % 3));
            cr_assert_eq(c[m * N + n], kt_f32_to_bf16(want), "row %d, output %d", m, n);
        }
    kt_lt_product_drop(p);
    kt_lt_stop(lt);
}

Test(cublas_lt, says_why_there_is_none) {
    const kt_device_options emulated = {.class = "emulated"};
    kt_device *other;
    kt_lt *lt;

    setenv("KT_CUBLASLT", "/nowhere/libcublasLt.so", 1);
    FAILS(KT_E_NOT_FOUND, "KT_CUBLASLT: /nowhere", kt_lt_start(device, &lt, &err));
    cr_expect_null(lt);
    use_library("short");
    FAILS(KT_E_UNSUPPORTED, "it has no function cublasLtMatmulPreferenceCreate",
          kt_lt_start(device, &lt, &err));
    use_library("old");
    FAILS(KT_E_UNSUPPORTED, "cuBLASLt 11.11, expected 12.0", kt_lt_start(device, &lt, &err));
    use_library("right");
    OK(kt_device_open(&emulated, &other, &err));
    FAILS(KT_E_UNSUPPORTED, "none of a driver's", kt_lt_start(other, &lt, &err));
    kt_device_close(other);
    kt_lt_stop(NULL);
}

Test(cublas_lt, wrong_numbers_are_no_product) {
    kt_lt *lt;

    use_library("wrong");
    OK(kt_lt_start(device, &lt, &err));
    for (int kind = 0; kind < KT_LT_KINDS; kind++)
        FAILS(KT_E_MISMATCH, "is off by", kt_lt_check(lt, (kt_lt_kind)kind, &err));
    kt_lt_stop(lt);
    use_library("none");
    OK(kt_lt_start(device, &lt, &err));
    FAILS(KT_E_UNSUPPORTED, "no way to a product of int8", kt_lt_check(lt, KT_LT_INT8, &err));
    kt_lt_stop(lt);
}

Test(cublas_lt, every_failure_is_told_and_leaves_nothing) {
    static const char *const functions[] = {"cublasLtCreate",
                                            "cublasLtMatmulDescCreate",
                                            "cublasLtMatmulDescSetAttribute",
                                            "cublasLtMatrixLayoutCreate",
                                            "cublasLtMatmulPreferenceCreate",
                                            "cublasLtMatmulPreferenceSetAttribute",
                                            "cublasLtMatmulAlgoGetHeuristic",
                                            "cublasLtMatmul"};

    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        for (int after = 0; after < (i == 2 ? 4 : i == 3 ? 3 : 1); after++) {
            kt_lt *lt;
            fake.fail(functions[i], after, 13);
            if (i == 0) {
                FAILS(KT_E_IO, "CUBLAS_STATUS_OTHER (13)", kt_lt_start(device, &lt, &err));
                continue;
            }
            OK(kt_lt_start(device, &lt, &err));
            FAILS(KT_E_IO, "CUBLAS_STATUS_OTHER (13)", kt_lt_check(lt, KT_LT_E4M3, &err));
            fake.fail(NULL, 0, 0);
            kt_lt_stop(lt);
            cr_expect_eq(fake.live(), 0, "%s after %d: %d objects are left", functions[i], after,
                         fake.live());
        }
}
