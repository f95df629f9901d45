/* What the GPUs of this machine can run, and why not the rest, without starting any work.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_GPU_VIEW_H
#define KT_DEVICE_GPU_VIEW_H

#include "dispatch/device/cuda_compiler.h"
#include "dispatch/device/cuda_driver.h"

typedef struct kt_gpu_view {
    kt_gpus gpus;
    kt_cuda_compiler *compiler; /* NULL = none */
    char no_compiler[256];      /* why */
} kt_gpu_view;

/* Never fails: what is absent is said by gpus.why and no_compiler. */
void kt_gpu_view_take(kt_gpu_view *v);
void kt_gpu_view_drop(kt_gpu_view *v);

/* Why the kernel, with its first constants, does not run on that GPU (0 = the first): no GPU, one
 * that is too old, no compiler, not for its architecture, too little shared memory. "" when it
 * does. `out` has room for 320 bytes; returned. */
const char *kt_gpu_refuses(const kt_gpu_view *v, int gpu, const kt_cuda_kernel *kernel, char *out);

/* How many kernels it runs. */
int kt_gpu_runs(const kt_gpu_view *v, int gpu);

#endif
