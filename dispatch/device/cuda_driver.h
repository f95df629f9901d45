/* Which GPUs this machine has, as the CUDA driver says. The driver is opened at run time:
 * libcuda.so.1, or $KT_CUDA_DRIVER. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_CUDA_DRIVER_H
#define KT_DEVICE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/cuda_kernel.h"

enum { KT_MAX_GPUS = 16 };

typedef struct kt_gpu {
    char name[128];
    int sm; /* 120 = compute capability 12.0 */
    int multiprocessors, shared_bytes;
    uint64_t memory_bytes;
    char bus[24]; /* "0000:41:00.0", for kt_nvml_look; "" = the driver does not say */
} kt_gpu;

typedef struct kt_gpus {
    int n;
    kt_gpu gpu[KT_MAX_GPUS];
    int driver;    /* 13000 = CUDA 13.0; 0 = no driver */
    char why[256]; /* when n is 0: one line that says why */
} kt_gpus;

/* Never fails: a machine without a usable GPU has n = 0 and a reason. Opens the driver each time.
 */
void kt_gpus_probe(kt_gpus *out);

/* The target to compile for: the GPU's own, its architecture's `a` form where kernels have one,
 * else the newest of the same major version that is not newer. NULL = older than sm_80. */
const kt_cuda_target *kt_gpu_target(const kt_gpu *gpu);

#endif
