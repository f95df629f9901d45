/* GPUs by cuda_api.h. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/cuda_driver.h"

#include <stdio.h>
#include <string.h>

#include "dispatch/device/cuda_api.h"

static void add_gpu(const kt_cuda_api *d, int ordinal, kt_gpus *out) {
    kt_gpu *g = &out->gpu[out->n];
    int device, major = 0, minor = 0;
    size_t bytes = 0;

    *g = (kt_gpu){0};
    if (d->device(&device, ordinal) != 0 || d->name(g->name, sizeof g->name, device) != 0 ||
        d->total(&bytes, device) != 0 || d->attribute(&major, KT_CU_MAJOR, device) != 0 ||
        d->attribute(&minor, KT_CU_MINOR, device) != 0 ||
        d->attribute(&g->multiprocessors, KT_CU_MULTIPROCESSORS, device) != 0 ||
        d->attribute(&g->shared_bytes, KT_CU_SHARED_OPTIN, device) != 0) {
        snprintf(out->why, sizeof out->why, "the CUDA driver says nothing of GPU %d", ordinal);
        return;
    }
    if (d->bus(g->bus, sizeof g->bus, device) != 0) g->bus[0] = 0;
    g->sm = major * 10 + minor;
    g->memory_bytes = bytes;
    out->n++;
}

void kt_gpus_probe(kt_gpus *out) {
    kt_cuda_api api;
    int n = 0;

    *out = (kt_gpus){0};
    if (!kt_cuda_api_start(&api, false, &out->driver, out->why, sizeof out->why)) return;
    if (api.count(&n) != 0 || n == 0)
        snprintf(out->why, sizeof out->why, "the CUDA driver sees no GPU");
    for (int i = 0; i < n && out->n < KT_MAX_GPUS; i++) add_gpu(&api, i, out);
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
