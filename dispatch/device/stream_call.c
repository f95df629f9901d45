/* Two functions of libcuda.so.1. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/stream_call.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"

enum { INVALIDATED = 2 }; /* CU_STREAM_CAPTURE_STATUS_INVALIDATED */

/* Opened when first asked for, and never closed: somebody's streams live in it. */
static struct {
    int (*launch)(void *stream, kt_stream_function *f, void *arg);
    int (*capturing)(void *stream, int *status);
    char why[256]; /* when it cannot be used */
} driver;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void open_driver(void) {
    const char *wanted = getenv("KT_CUDA_DRIVER");
    const char *name = wanted && *wanted ? wanted : "libcuda.so.1";
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL), *launch, *capturing;

    if (!library) {
        snprintf(driver.why, sizeof driver.why, "no CUDA driver: %.200s", dlerror());
        return;
    }
    launch = dlsym(library, "cuLaunchHostFunc");
    capturing = dlsym(library, "cuStreamIsCapturing");
    if (!launch || !capturing) {
        snprintf(driver.why, sizeof driver.why, "%.150s has no %s", name,
                 launch ? "cuStreamIsCapturing" : "cuLaunchHostFunc");
        return;
    }
    memcpy(&driver.launch, &launch, sizeof launch);
    memcpy(&driver.capturing, &capturing, sizeof capturing);
}

static kt_status need_driver(const void *stream, kt_err *err) {
    pthread_once(&once, open_driver);
    if (driver.launch) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "stream %p: %s", stream, driver.why);
}

kt_status kt_stream_is_captured(void *stream, bool *out, kt_err *err) {
    int status = 0, code;

    *out = false;
    KT_TRY(need_driver(stream, err));
    code = driver.capturing(stream, &status);
    if (code != 0)
        return kt_fail(err, KT_E_INVALID, "stream %p: cuStreamIsCapturing gave error %d", stream,
                       code);
    if (status == INVALIDATED)
        return kt_fail(err, KT_E_INVALID, "stream %p: its capture has failed", stream);
    *out = status != 0;
    return KT_OK;
}

kt_status kt_stream_call(void *stream, kt_stream_function *f, void *arg, kt_err *err) {
    int code;

    KT_TRY(need_driver(stream, err));
    code = driver.launch(stream, f, arg);
    if (code == 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "stream %p: cuLaunchHostFunc gave error %d", stream, code);
}
