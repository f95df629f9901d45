/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/device/gpu_view.h"

#include <stdio.h>
#include <string.h>

enum { WHY_BYTES = 320 };

void kt_gpu_view_take(kt_gpu_view *v) {
    kt_err err;

    *v = (kt_gpu_view){.compiler = NULL};
    kt_gpus_probe(&v->gpus);
    if (kt_cuda_compiler_open(&v->compiler, &err) != KT_OK)
        snprintf(v->no_compiler, sizeof v->no_compiler, "%.250s", err.message);
}

void kt_gpu_view_drop(kt_gpu_view *v) {
    kt_cuda_compiler_close(v->compiler);
    v->compiler = NULL;
}

const char *kt_gpu_refuses(const kt_gpu_view *v, int gpu, const kt_cuda_kernel *kernel, char *out) {
    const kt_config config = kt_cuda_initial(kernel);
    const kt_gpu *g = &v->gpus.gpu[gpu];
    const kt_cuda_target *t;
    kt_cuda_target limits;
    const char *why;

    out[0] = 0;
    if (gpu >= v->gpus.n) {
        snprintf(out, WHY_BYTES, "%s", v->gpus.why);
        return out;
    }
    if (g->sm < kt_cuda_baseline()->sm) {
        snprintf(out, WHY_BYTES, "%s: it is of sm_%d, expected sm_%s or newer", g->name, g->sm,
                 kt_cuda_baseline()->name);
        return out;
    }
    if (!v->compiler) {
        snprintf(out, WHY_BYTES, "%s", v->no_compiler);
        return out;
    }
    t = kt_gpu_target(g);
    if (!t || !kt_cuda_compiler_knows(v->compiler, t)) t = kt_cuda_baseline();
    if (!(kernel->targets >> (t - kt_cuda_targets) & 1)) {
        snprintf(out, WHY_BYTES, "%s: not for sm_%s, which its code is made for", g->name, t->name);
        return out;
    }
    limits = *t;
    if (g->shared_bytes < limits.shared_bytes) limits.shared_bytes = g->shared_bytes;
    why = kernel->refuse(&config, &limits);
    if (why) snprintf(out, WHY_BYTES, "%s: %s", g->name, why);
    return out;
}

int kt_gpu_runs(const kt_gpu_view *v, int gpu) {
    char why[WHY_BYTES];
    int n = 0;

    for (size_t i = 0; i < kt_builtin_cuda_kernel_count; i++)
        n += !*kt_gpu_refuses(v, gpu, kt_builtin_cuda_kernels[i], why);
    return n;
}
