/* A kernel's parameters are addresses of the test's memory. Whatever mapping of the process such an
 * address lies in is pinned, so that the device reaches it; guard pages stay out of reach.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/emulate_on.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/device/device.h"

enum { MOST_RANGES = 64 };

typedef struct range {
    uintptr_t begin, end;
} range;

static kt_device *device;

/* The mapping that holds the address and may be written. */
static bool find_mapping(uintptr_t address, range *out) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512], how[8];
    bool found = false;

    if (!maps) return false;
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, how) != 3) continue;
        found = address >= begin && address < end && strncmp(how, "rw", 2) == 0;
        *out = (range){begin, end};
    }
    fclose(maps);
    return found;
}

static kt_status pin(uintptr_t address, range *pinned, int *n, kt_err *err) {
    range r;

    for (int i = 0; i < *n; i++)
        if (address >= pinned[i].begin && address < pinned[i].end) return KT_OK;
    if (*n == MOST_RANGES || !find_mapping(address, &r)) return KT_OK;
    KT_TRY(kt_device_pin(device, (void *)r.begin, r.end - r.begin, err));
    pinned[(*n)++] = r;
    return KT_OK;
}

/* The kernel and the entry that the emulated function is of. */
static const kt_cuda_kernel *find_kernel(kt_emulated_entry *entry, int *index) {
    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        for (*index = 0; *index < kt_builtin_cuda_kernels[i]->entry_count; ++*index)
            if (kt_builtin_cuda_kernels[i]->entry[*index].emulated == entry)
                return kt_builtin_cuda_kernels[i];
    return NULL;
}

static kt_status run_on(const kt_device_code *code, int entry, const kt_launch *l, kt_err *err) {
    _Alignas(16) uint8_t parameters[KT_DEVICE_PARAMETERS];
    kt_device_launch there = {.code = code,
                              .entry = entry,
                              .grid_x = l->grid_x,
                              .grid_y = l->grid_y,
                              .shared_bytes = l->shared_bytes,
                              .parameters = parameters,
                              .parameter_bytes = kt_emulated_parameter_bytes(l->entry)};
    range pinned[MOST_RANGES];
    kt_status st = KT_OK;
    int n = 0;

    memcpy(parameters, l->parameters, there.parameter_bytes);
    for (size_t at = 0; st == KT_OK && at + 8 <= there.parameter_bytes; at += 8) {
        uintptr_t word;
        memcpy(&word, parameters + at, sizeof word);
        st = pin(word, pinned, &n, err);
    }
    if (st == KT_OK) st = kt_device_run(device, KT_STREAM_MAIN, &there, err);
    if (st == KT_OK) st = kt_device_sync(device, NULL, err);
    while (n > 0) kt_device_unpin(device, (void *)pinned[--n].begin);
    return st;
}

kt_status __wrap_kt_emulate(const kt_launch *launch, const kt_emulator_options *options,
                            kt_err *err) {
    const char *class = getenv("KT_TEST_DEVICE");
    const kt_device_options how = {.class = class};
    const kt_cuda_kernel *kernel;
    const kt_device_code *code;
    kt_config config = {{0}};
    kt_status st;
    int entry;

    if (!class || !*class || !(kernel = find_kernel(launch->entry, &entry)))
        return __real_kt_emulate(launch, options, err);
    st = device ? KT_OK : kt_device_open(&how, &device, err);
    if (st != KT_OK) return st;
    for (int32_t i = 0; i < kernel->param_count; i++) config.value[i] = launch->constant[i];
    st = kt_device_code_of(device, kernel, &config, &code, err);
    if (st == KT_E_UNSUPPORTED) return __real_kt_emulate(launch, options, err); /* not for it */
    return st == KT_OK ? run_on(code, entry, launch, err) : st;
}
