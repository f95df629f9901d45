/* Words that a device and the host watch, and memory that either writes for the other: loads and
 * stores that are in order for both sides.
 *
 * What a thread wrote to memory (and, behind kt_sync, what its block wrote) before
 * kt_system_store is seen by whoever sees the stored word with kt_system_load, or on the host by
 * an atomic load with acquire order; and the other way round: behind a kt_system_load, and kt_sync
 * for the others of its block, kt_link_load gives what was written before the word. What copies of
 * the same stream wrote before the kernel is seen likewise.
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
/* The fence waits for all that was stored across the link: one is enough, so the store itself has
 * no order. */
KT_DEVICE void kt_system_store(uint32_t *p, uint32_t v) {
    asm volatile("fence.acq_rel.sys;" ::: "memory");
    asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/* About as many nanoseconds, in which the link is left to others. */
KT_DEVICE void kt_pause(uint32_t ns) {
    asm volatile("nanosleep.u32 %0;" ::"r"(ns));
}
/* Memory of either side, aligned to the access. A load is no branch, so that many are on the way at
 * once; where it is not `wanted` nothing is read, and it gives 0. */
KT_DEVICE kt_u128 kt_link_load16(const void *p, int wanted) {
    kt_u128 v;
    v.x = v.y = v.z = v.w = 0;
    asm volatile("{\n"
                 "  .reg .pred wanted;\n"
                 "  setp.ne.s32 wanted, %5, 0;\n"
                 "  @wanted ld.global.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 "}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(p), "r"(wanted)
                 : "memory");
    return v;
}
KT_DEVICE uint32_t kt_link_load4(const void *p, int wanted) {
    uint32_t v = 0;
    asm volatile("{\n"
                 "  .reg .pred wanted;\n"
                 "  setp.ne.s32 wanted, %2, 0;\n"
                 "  @wanted ld.global.u32 %0, [%1];\n"
                 "}"
                 : "+r"(v)
                 : "l"(p), "r"(wanted)
                 : "memory");
    return v;
}
KT_DEVICE void kt_link_store16(void *p, kt_u128 v) {
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
                 "r"(v.w)
                 : "memory");
}
KT_DEVICE void kt_link_store4(void *p, uint32_t v) {
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

#else

KT_DEVICE uint32_t kt_system_load(const uint32_t *p) {
    return __atomic_load_n(p, __ATOMIC_ACQUIRE);
}
KT_DEVICE void kt_system_store(uint32_t *p, uint32_t v) {
    kt_emulator_tell(p, v);
}
KT_DEVICE void kt_pause(uint32_t ns) {
    kt_emulator_pause(ns);
}
KT_DEVICE kt_u128 kt_link_load16(const void *p, int wanted) {
    kt_u128 v = {0, 0, 0, 0};
    if (!wanted) return v;
    kt_emulator_aligned(p, 16);
    memcpy(&v, p, sizeof v);
    return v;
}
KT_DEVICE uint32_t kt_link_load4(const void *p, int wanted) {
    uint32_t v = 0;
    if (!wanted) return v;
    kt_emulator_aligned(p, 4);
    memcpy(&v, p, sizeof v);
    return v;
}
KT_DEVICE void kt_link_store16(void *p, kt_u128 v) {
    kt_emulator_aligned(p, 16);
    memcpy(p, &v, sizeof v);
}
KT_DEVICE void kt_link_store4(void *p, uint32_t v) {
    kt_emulator_aligned(p, 4);
    memcpy(p, &v, sizeof v);
}

#endif
#endif
