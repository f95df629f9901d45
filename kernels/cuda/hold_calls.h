/* Parameters of hold.cu. Pointers are the device's. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_HOLD_CALLS_H
#define KT_CUDA_HOLD_CALLS_H

#ifndef __CUDACC_RTC__
#include <stdint.h>
#endif

/* Waits until *go is not 0, which the host writes (kt_device_host_alloc), or `most` looks. */
typedef struct kt_hold {
    const uint32_t *go;
    uint32_t most;
    int32_t zero; /* for padding */
} kt_hold;

#endif
