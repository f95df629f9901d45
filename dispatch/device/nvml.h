/* Clock, power and temperature of GPUs, by NVIDIA's management library: opened at run time,
 * libnvidia-ml.so.1 or $KT_NVML. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DEVICE_NVML_H
#define KT_DEVICE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct kt_nvml kt_nvml;

/* What a GPU does now; -1 where it does not say. */
typedef struct kt_gpu_state {
    int sm_mhz, most_sm_mhz, power_mw, temperature_c;
    int64_t throttle; /* bits, for kt_gpu_throttle_text */
} kt_gpu_state;

/* NULL: no such library, or an unfit one, and one line that says why. */
kt_nvml *kt_nvml_start(char *why, size_t why_bytes);
void kt_nvml_stop(kt_nvml *n); /* accepts NULL */
/* The GPU at this place of the bus, as kt_gpu.bus has it. All are -1 for an unknown one. */
kt_gpu_state kt_nvml_look(const kt_nvml *n, const char *bus);
/* What holds the clock down, "thermal, power limit"; "" when nothing does. An idle GPU's clock is
 * low by itself, which is not counted. Returns out. */
const char *kt_gpu_throttle_text(int64_t throttle, char *out, size_t bytes);

#endif
