/* A kernel's parameters are addresses of the test's memory. Whatever mapping of the process such an
 * address lies in is pinned, so that the device reaches it; guard pages stay out of reach. Constants
 * of the program cannot be pinned: the device gets a copy.
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

/* Programs, libraries, heaps and stacks lie behind it: two small numbers are no address. */
#define LOWEST UINT64_C(0x550000000000)

typedef struct range {
    uintptr_t begin, end;
    void *copy; /* on the device, of what may only be read; NULL = it is pinned */
} range;

static kt_device *device;

/* The mapping that holds the address, and what may be done with it: "rw-p". */
static bool find_mapping(uintptr_t address, range *out, char *how) {
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    bool found = false;

    if (!maps) return false;
    while (!found && fgets(line, sizeof line, maps)) {
        unsigned long begin, end;
        if (sscanf(line, "%lx-%lx %7s", &begin, &end, how) != 3) continue;
        found = address >= begin && address < end;
        *out = (range){begin, end, NULL};
    }
    fclose(maps);
    return found;
}

/* The device's address for *word, if it is one. One of an inaccessible page is that of an empty
 * array before it: nobody follows it. */
static kt_status translate(uintptr_t *word, range *known, int *n, kt_err *err) {
    range *r = known;
    char how[8];

    if (*word < LOWEST || *word >> 47) return KT_OK;
    while (r < known + *n && !(*word >= r->begin && *word < r->end)) r++;
    if (r == known + *n) {
        if (*n == MOST_RANGES || !find_mapping(*word, r, how)) return KT_OK;
        if (how[0] != 'r') {
            *word = 0;
            return KT_OK;
        }
        if (how[1] == 'w') {
            KT_TRY(kt_device_pin(device, (void *)r->begin, r->end - r->begin, err));
        } else {
            KT_TRY(kt_device_alloc(device, r->end - r->begin, &r->copy, err));
            KT_TRY(kt_device_upload(device, KT_STREAM_MAIN, r->copy, (const void *)r->begin,
                                    r->end - r->begin, err));
        }
        ++*n;
    }
    if (r->copy) *word = (uintptr_t)r->copy + (*word - r->begin);
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
    range known[MOST_RANGES];
    kt_status st = KT_OK;
    int n = 0;

    memcpy(parameters, l->parameters, there.parameter_bytes);
    for (size_t at = 0; st == KT_OK && at + 8 <= there.parameter_bytes; at += 8) {
        uintptr_t word;
        memcpy(&word, parameters + at, sizeof word);
        st = translate(&word, known, &n, err);
        memcpy(parameters + at, &word, sizeof word);
    }
    if (st == KT_OK) st = kt_device_run(device, KT_STREAM_MAIN, &there, err);
    if (st == KT_OK) st = kt_device_sync(device, NULL, err);
    while (n-- > 0) {
        if (known[n].copy)
            kt_device_free(device, known[n].copy);
        else
            kt_device_unpin(device, (void *)known[n].begin);
    }
    return st;
}

bool kt_emulates_on_gpu(void) {
    const char *class = getenv("KT_TEST_DEVICE");

    return class && strcmp(class, "cuda") == 0;
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
