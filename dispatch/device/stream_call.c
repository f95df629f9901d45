/* Functions of libcuda.so.1. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/stream_call.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum {
    INVALIDATED = 2,         /* CU_STREAM_CAPTURE_STATUS_INVALIDATED */
    RELAXED = 2,             /* CU_STREAM_CAPTURE_MODE_RELAXED */
    PORTABLE_AND_MAPPED = 3, /* CU_MEMHOSTALLOC_.. */
    WRITE_BEHIND_ALL = 0,    /* CU_STREAM_WRITE_VALUE_DEFAULT: with a fence for the system */
    WAIT_EQUAL = 1           /* CU_STREAM_WAIT_VALUE_EQ */
};

typedef struct functions {
    int (*launch)(void *stream, kt_stream_function *f, void *arg);
    int (*capturing)(void *stream, int *status);
    /* The rest is for words. */
    int (*write)(void *stream, uint64_t word, uint32_t value, unsigned flags);
    int (*wait)(void *stream, uint64_t word, uint32_t value, unsigned flags);
    int (*take)(void **out, size_t bytes, unsigned flags);
    int (*give)(void *p);
    int (*current)(void **context);
    int (*set_current)(void *context);
    int (*exchange)(int *mode);
} functions;

static const struct {
    const char *name;
    size_t offset;
} names[] = {{"cuLaunchHostFunc", offsetof(functions, launch)},
             {"cuStreamIsCapturing", offsetof(functions, capturing)},
             {"cuStreamWriteValue32_v2", offsetof(functions, write)},
             {"cuStreamWaitValue32_v2", offsetof(functions, wait)},
             {"cuMemHostAlloc", offsetof(functions, take)},
             {"cuMemFreeHost", offsetof(functions, give)},
             {"cuCtxGetCurrent", offsetof(functions, current)},
             {"cuCtxSetCurrent", offsetof(functions, set_current)},
             {"cuThreadExchangeStreamCaptureMode", offsetof(functions, exchange)}};

enum { N_FOR_CALLS = 2, N_FOR_WORDS = sizeof names / sizeof *names };

/* Opened when first asked for, and never closed: somebody's streams live in it. */
static struct {
    functions call;
    int n;         /* of names that there are, from the first on */
    char why[256]; /* when not all of them */
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_driver(void) {
    const char *wanted = getenv("KT_CUDA_DRIVER");
    const char *name = wanted && *wanted ? wanted : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *f;

    if (!library) {
        snprintf(driver.why, sizeof driver.why, "no CUDA driver: %.200s", dlerror());
        return;
    }
    for (; driver.n < N_FOR_WORDS; driver.n++) {
        f = dlsym(library, names[driver.n].name);
        if (!f) {
            snprintf(driver.why, sizeof driver.why, "%.150s has no %s", name, names[driver.n].name);
            return;
        }
        memcpy((char *)&driver.call + names[driver.n].offset, &f, sizeof f);
    }
}

static kt_status need_driver(const void *stream, int n, kt_err *err) {
    pthread_once(&once, open_driver);
    if (driver.n >= n) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "stream %p: %s", stream, driver.why);
}

static kt_status check(const void *stream, int code, const char *function, kt_err *err) {
    if (code == 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "stream %p: %s gave error %d", stream, function, code);
}

kt_status kt_stream_is_captured(void *stream, bool *out, kt_err *err) {
    int status = 0;

    *out = false;
    KT_TRY(need_driver(stream, N_FOR_CALLS, err));
    KT_TRY(check(stream, driver.call.capturing(stream, &status), "cuStreamIsCapturing", err));
    if (status == INVALIDATED)
        return kt_fail(err, KT_E_INVALID, "stream %p: its capture has failed", stream);
    *out = status != 0;
    return KT_OK;
}

kt_status kt_stream_call(void *stream, kt_stream_function *f, void *arg, kt_err *err) {
    KT_TRY(need_driver(stream, N_FOR_CALLS, err));
    return check(stream, driver.call.launch(stream, f, arg), "cuLaunchHostFunc", err);
}

/* ---- words ---- */

kt_status kt_stream_memory_take(size_t bytes, kt_stream_memory *out, kt_err *err) {
    kt_stream_memory m = {NULL, NULL};
    int mode = RELAXED, code;

    *out = m;
    KT_TRY(need_driver(NULL, N_FOR_WORDS, err));
    if (driver.call.current(&m.context) != 0 || !m.context)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "no CUDA context is current for this thread, expected the stream's");
    /* A thread that captures may be forbidden to allocate: not for what is in no graph. */
    driver.call.exchange(&mode);
    code = driver.call.take(&m.data, bytes, PORTABLE_AND_MAPPED);
    driver.call.exchange(&mode);
    if (code != 0)
        return kt_fail(err, KT_E_NOMEM, "%zu bytes of mapped memory: cuMemHostAlloc gave error %d",
                       bytes, code);
    memset(m.data, 0, bytes);
    *out = m;
    return KT_OK;
}

void kt_stream_memory_free(kt_stream_memory *m) {
    void *before = NULL;

    if (m->data && driver.call.current(&before) == 0 && driver.call.set_current(m->context) == 0) {
        driver.call.give(m->data);
        driver.call.set_current(before);
    }
    *m = (kt_stream_memory){NULL, NULL};
}

kt_status kt_stream_write(void *stream, uint32_t *word, uint32_t value, kt_err *err) {
    KT_TRY(need_driver(stream, N_FOR_WORDS, err));
    return check(stream,
                 driver.call.write(stream, (uint64_t)(uintptr_t)word, value, WRITE_BEHIND_ALL),
                 "cuStreamWriteValue32", err);
}

kt_status kt_stream_wait(void *stream, const uint32_t *word, uint32_t value, kt_err *err) {
    KT_TRY(need_driver(stream, N_FOR_WORDS, err));
    return check(stream, driver.call.wait(stream, (uint64_t)(uintptr_t)word, value, WAIT_EQUAL),
                 "cuStreamWaitValue32", err);
}
