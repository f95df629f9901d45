/* A CUDA driver that says what a test wants: two GPUs, or why it has none.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stddef.h>
#include <string.h>

int cuInit(unsigned flags);
int cuDriverGetVersion(int *out);
int cuDeviceGetCount(int *out);
int cuDeviceGet(int *out, int ordinal);
int cuDeviceGetName(char *out, int bytes, int device);
int cuDeviceTotalMem_v2(size_t *out, int device);
int cuDeviceGetAttribute(int *out, int attribute, int device);

int cuInit(unsigned flags) {
    (void)flags;
#if defined(KT_FAKE_STUB)
    return 34;
#elif defined(KT_FAKE_NONE)
    return 100;
#elif defined(KT_FAKE_MIXED)
    return 803;
#else
    return 0;
#endif
}

int cuDriverGetVersion(int *out) {
#ifdef KT_FAKE_OLD
    *out = 11040;
#else
    *out = 13000;
#endif
    return 0;
}

int cuDeviceGetCount(int *out) {
    *out = 2;
    return 0;
}

int cuDeviceGet(int *out, int ordinal) {
    *out = ordinal;
    return 0;
}

int cuDeviceGetName(char *out, int bytes, int device) {
    strncpy(out, device ? "Pretended Small" : "Pretended Large", (size_t)bytes);
    return 0;
}

#ifndef KT_FAKE_SHORT
int cuDeviceTotalMem_v2(size_t *out, int device) {
    *out = (size_t)(device ? 16 : 32) << 30;
    return 0;
}
#endif

int cuDeviceGetAttribute(int *out, int attribute, int device) {
    switch (attribute) {
    case 16: *out = device ? 82 : 170; return 0;
    case 75: *out = device ? 8 : 12; return 0;
    case 76: *out = device ? 6 : 0; return 0;
    case 97: *out = 101376; return 0;
    default: return 1;
    }
}
