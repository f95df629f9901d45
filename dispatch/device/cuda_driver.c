/* libcuda.so.1 by dlopen. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cuda_driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    ERROR_NO_DEVICE = 100,
    ERROR_STUB = 34,
    ERROR_NOT_PERMITTED = 800,
    ERROR_SYSTEM_DRIVER_MISMATCH = 803,
    OLDEST_DRIVER = 12000,
    ATTRIBUTE_MULTIPROCESSORS = 16,
    ATTRIBUTE_MAJOR = 75,
    ATTRIBUTE_MINOR = 76,
    ATTRIBUTE_SHARED_OPTIN = 97
};

/* The driver's C interface: 0 = success; a device is a number. */
typedef struct driver {
    void *library;
    int (*init)(unsigned flags);
    int (*version)(int *out);
    int (*count)(int *out);
    int (*device)(int *out, int ordinal);
    int (*name)(char *out, int bytes, int device);
    int (*memory)(size_t *out, int device);
    int (*attribute)(int *out, int attribute, int device);
} driver;

static const struct {
    const char *name;
    size_t offset;
} functions[] = {{"cuInit", offsetof(driver, init)},
                 {"cuDriverGetVersion", offsetof(driver, version)},
                 {"cuDeviceGetCount", offsetof(driver, count)},
                 {"cuDeviceGet", offsetof(driver, device)},
                 {"cuDeviceGetName", offsetof(driver, name)},
                 {"cuDeviceTotalMem_v2", offsetof(driver, memory)},
                 {"cuDeviceGetAttribute", offsetof(driver, attribute)}};

static bool open_driver(driver *d, kt_gpus *out) {
    const char *wanted = getenv("KT_CUDA_DRIVER");
    const char *name = wanted && *wanted ? wanted : "libcuda.so.1";

    d->library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!d->library) {
        if (wanted && *wanted)
            snprintf(out->why, sizeof out->why, "KT_CUDA_DRIVER: %.200s", dlerror());
        else
            snprintf(out->why, sizeof out->why, "no CUDA driver: %s is not installed", name);
        return false;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *f = dlsym(d->library, functions[i].name);
        if (!f) {
            snprintf(out->why, sizeof out->why, "%.150s: it has no function %s", name,
                     functions[i].name);
            return false;
        }
        memcpy((char *)d + functions[i].offset, &f, sizeof f);
    }
    return true;
}

static bool start_driver(const driver *d, kt_gpus *out) {
    const int code = d->init(0);

    if (code == ERROR_STUB)
        snprintf(out->why, sizeof out->why,
                 "the CUDA driver found is a toolkit's stub, which runs nothing: install the GPU's "
                 "driver, or take the stub off the path of libraries");
    else if (code == ERROR_NO_DEVICE)
        snprintf(out->why, sizeof out->why, "the CUDA driver sees no GPU");
    else if (code == ERROR_SYSTEM_DRIVER_MISMATCH)
        snprintf(out->why, sizeof out->why,
                 "the CUDA driver's library and its kernel module are of two versions: reload the "
                 "module or restart the machine");
    else if (code == ERROR_NOT_PERMITTED)
        snprintf(out->why, sizeof out->why,
                 "the CUDA driver refuses this user: look at the permissions of /dev/nvidia*");
    else if (code != 0)
        snprintf(out->why, sizeof out->why, "the CUDA driver does not start: error %d", code);
    if (code != 0) return false;
    if (d->version(&out->driver) == 0 && out->driver >= OLDEST_DRIVER) return true;
    snprintf(out->why, sizeof out->why, "the CUDA driver is of CUDA %d.%d, expected 12.0 or newer",
             out->driver / 1000, out->driver % 1000 / 10);
    return false;
}

static void add_gpu(const driver *d, int ordinal, kt_gpus *out) {
    kt_gpu *g = &out->gpu[out->n];
    int device, major = 0, minor = 0;
    size_t bytes = 0;

    *g = (kt_gpu){0};
    if (d->device(&device, ordinal) != 0 || d->name(g->name, sizeof g->name, device) != 0 ||
        d->memory(&bytes, device) != 0 || d->attribute(&major, ATTRIBUTE_MAJOR, device) != 0 ||
        d->attribute(&minor, ATTRIBUTE_MINOR, device) != 0 ||
        d->attribute(&g->multiprocessors, ATTRIBUTE_MULTIPROCESSORS, device) != 0 ||
        d->attribute(&g->shared_bytes, ATTRIBUTE_SHARED_OPTIN, device) != 0) {
        snprintf(out->why, sizeof out->why, "the CUDA driver says nothing of GPU %d", ordinal);
        return;
    }
    g->sm = major * 10 + minor;
    g->memory_bytes = bytes;
    out->n++;
}

void kt_gpus_probe(kt_gpus *out) {
    driver d = {0};
    int n = 0;

    *out = (kt_gpus){0};
    if (open_driver(&d, out) && start_driver(&d, out)) {
        if (d.count(&n) != 0 || n == 0)
            snprintf(out->why, sizeof out->why, "the CUDA driver sees no GPU");
        for (int i = 0; i < n && out->n < KT_MAX_GPUS; i++) add_gpu(&d, i, out);
    }
    if (d.library && out->n == 0) dlclose(d.library); /* a driver in use stays loaded */
}

const kt_cuda_target *kt_gpu_target(const kt_gpu *gpu) {
    const kt_cuda_target *best = NULL;

    for (size_t i = 0; i < kt_cuda_target_count; i++) {
        const kt_cuda_target *t = &kt_cuda_targets[i];
        if (t->sm > gpu->sm || t->sm / 10 != gpu->sm / 10) continue;
        /* `a` code runs on the very same GPUs only; those that are later in the table win. */
        if (strchr(t->name, 'a') && t->sm != gpu->sm) continue;
        best = t;
    }
    return best;
}
