/* Words that a device and the host watch: loads and stores that are in order for both sides.
 *
 * What a thread wrote to memory (and, behind kt_sync, what its block wrote) before
 * kt_system_store is seen by whoever sees the stored word with kt_system_load, or on the host by
 * an atomic load with acquire order; and the other way round. What copies of the same stream wrote
 * before the kernel is seen likewise.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_SYSTEM_H
#define KT_DEV_SYSTEM_H

#include "kernels/cuda/kt_dev.h"

#ifdef __CUDACC_RTC__

KT_DEVICE uint32_t kt_system_load(const uint32_t *p) {
    uint32_t v;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}
KT_DEVICE void kt_system_store(uint32_t *p, uint32_t v) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* About as many nanoseconds, in which the link is left to others. */
KT_DEVICE void kt_pause(uint32_t ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}

#else

KT_DEVICE uint32_t kt_system_load(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
KT_DEVICE void kt_system_store(uint32_t *p, uint32_t v) {
    __atomic_store_n(p, v, __ATOMIC_RELEASE);
}
KT_DEVICE void kt_pause(uint32_t ns) {
    kt_emulator_pause(ns);
}

#endif
#endif
