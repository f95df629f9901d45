/* The GPUs that kernels are compiled for. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/cuda/cuda_kernel.h"

/* Shared memory of a block with the opt-in: CUDA C++ Programming Guide, compute capabilities. */
const kt_cuda_target kt_cuda_targets[] = {
    {"80", 80, 163 * 1024},   {"86", 86, 99 * 1024},    {"87", 87, 163 * 1024},
    {"89", 89, 99 * 1024},    {"90", 90, 227 * 1024},   {"90a", 90, 227 * 1024},
    {"100", 100, 227 * 1024}, {"103", 103, 227 * 1024}, {"110", 110, 227 * 1024},
    {"120", 120, 99 * 1024},  {"121", 121, 99 * 1024}};
const size_t kt_cuda_target_count = sizeof kt_cuda_targets / sizeof *kt_cuda_targets;

const kt_cuda_target *kt_cuda_baseline(void) {
    return &kt_cuda_targets[0];
}

kt_config kt_cuda_initial(const kt_cuda_kernel *kernel) {
    kt_config c = {{0}};

    for (int32_t i = 0; i < kernel->param_count; i++) c.value[i] = kernel->params[i].initial;
    return c;
}
