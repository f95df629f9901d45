/* Products of a warpgroup (4 warps, 64 rows) out of shared memory, behind the threads' back: wgmma
 * of sm_90a, and its emulation.
 *
 * Operands are named by descriptors of rows of 128 bytes whose 16-byte chunks are turned as
 * kt_tiles_turned does it, beginning at a multiple of 1024; the slice of 32 bytes that a product
 * takes is added to the offset. d has N / 2 floats a thread, in the order of KT_TILES_SUM with one
 * tile of 16 rows a warp: tile j of 8 columns at d + 4 j.
 *
 * Order of a use: copies have arrived (KT_COPY_WAIT), kt_wgmma_proxy by who copied, kt_sync,
 * kt_wgmma_fence, products, kt_wgmma_commit, KT_WGMMA_WAIT(n), which waits until at most the last n
 * groups are under way. Only then may d be touched, and the shared memory be written again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_WGMMA_H
#define KT_DEV_WGMMA_H

#include "kernels/cuda/kt_dev.h"

#ifdef __CUDACC_RTC__

KT_DEVICE uint64_t kt_wgmma_rows(uint32_t at) {
    const uint64_t from = (uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at;
    return (from & 0x3ffff) >> 4 | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
/* What threads wrote to shared memory becomes visible to products. */
KT_DEVICE void kt_wgmma_proxy(void) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
KT_DEVICE void kt_wgmma_fence(void) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
KT_DEVICE void kt_wgmma_commit(void) {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
#define KT_WGMMA_WAIT(n) asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(n) : "memory")

#define KT_D4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define KT_D16(i) KT_D4(i), KT_D4(i + 4), KT_D4(i + 8), KT_D4(i + 12)
/* d += a * b^T over 16 bfloat16: 64 rows of a, 64 (128, 256) of b. */
KT_DEVICE void kt_wgmma_bf16_n64(float *d, uint64_t a, uint64_t b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1, 0, 0; }"
                 : KT_D16(0), KT_D16(16)
                 : "l"(a), "l"(b));
}
KT_DEVICE void kt_wgmma_bf16_n128(float *d, uint64_t a, uint64_t b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
                 "%64, %65, p, 1, 1, 0, 0; }"
                 : KT_D16(0), KT_D16(16), KT_D16(32), KT_D16(48)
                 : "l"(a), "l"(b));
}
KT_DEVICE void kt_wgmma_bf16_n256(float *d, uint64_t a, uint64_t b) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
                 "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, "
                 "%28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, "
                 "%41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, "
                 "%54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, "
                 "%67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
                 "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, "
                 "%93, %94, %95, %96, %97, %98, %99, %100, %101, %102, %103, %104, "
                 "%105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
                 "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, "
                 "%127}, "
                 "%128, %129, p, 1, 1, 0, 0; }"
                 : KT_D16(0), KT_D16(16), KT_D16(32), KT_D16(48), KT_D16(64), KT_D16(80),
                   KT_D16(96), KT_D16(112)
                 : "l"(a), "l"(b));
}
/* Over 32 E4M3; d = a * b^T where `add` is 0. */
KT_DEVICE void kt_wgmma_e4m3_n64(float *d, uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
                 "%32, %33, p, 1, 1; }"
                 : KT_D16(0), KT_D16(16)
                 : "l"(a), "l"(b), "r"(add));
}
KT_DEVICE void kt_wgmma_e4m3_n128(float *d, uint64_t a, uint64_t b, int add) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %66, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 "
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, "
                 "%17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, "
                 "%47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, "
                 "%62, %63}, "
                 "%64, %65, p, 1, 1; }"
                 : KT_D16(0), KT_D16(16), KT_D16(32), KT_D16(48)
                 : "l"(a), "l"(b), "r"(add));
}

#else

KT_DEVICE uint64_t kt_wgmma_rows(uint32_t at) {
    return (uint64_t)at >> 4 | 1ull << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
KT_DEVICE void kt_wgmma_proxy(void) {
    kt_emulator_proxy();
}
KT_DEVICE void kt_wgmma_fence(void) {
    kt_emulator_wgmma_fence();
}
KT_DEVICE void kt_wgmma_commit(void) {
    kt_emulator_wgmma_commit();
}
#define KT_WGMMA_WAIT(n) kt_emulator_wgmma_wait(n)
KT_DEVICE void kt_wgmma_bf16_n64(float *d, uint64_t a, uint64_t b) {
    kt_emulator_wgmma(d, a, b, 64, false, true);
}
KT_DEVICE void kt_wgmma_bf16_n128(float *d, uint64_t a, uint64_t b) {
    kt_emulator_wgmma(d, a, b, 128, false, true);
}
KT_DEVICE void kt_wgmma_bf16_n256(float *d, uint64_t a, uint64_t b) {
    kt_emulator_wgmma(d, a, b, 256, false, true);
}
KT_DEVICE void kt_wgmma_e4m3_n64(float *d, uint64_t a, uint64_t b, int add) {
    kt_emulator_wgmma(d, a, b, 64, true, add);
}
KT_DEVICE void kt_wgmma_e4m3_n128(float *d, uint64_t a, uint64_t b, int add) {
    kt_emulator_wgmma(d, a, b, 128, true, add);
}

#endif
#endif
