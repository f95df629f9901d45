/* What device code may use, on a GPU and under the emulator.
 *
 * A kernel is one file <name>.cu in the common subset of C11 and C++17. NVRTC compiles it for the
 * GPU that is there, and the C compiler compiles the same text for the emulator (emulator.h), where
 * every thread of a block is a fiber. Kernels therefore touch the machine only by the functions of
 * this file; nothing else is included on a GPU, so neither headers nor a toolkit are needed there.
 *
 * Conventions. Shared memory is addressed by byte offsets into the block's dynamic shared memory.
 * Functions whose names begin with kt_warp_, kt_ldmatrix or kt_mma are collective: all 32 lanes of
 * the warp must call them together. Fragment layouts are those of the PTX manual for mma.m16n8k*;
 * with g = lane / 4 and t = lane % 4, in 32-bit words:
 *   A [16, k]: a0 (g, t), a1 (g + 8, t), a2 (g, t + 4), a3 (g + 8, t + 4)
 *   B [8, k]:  b0 (g, t), b1 (g, t + 4)
 *   C [16, 8]: c0, c1 (g, 2t and 2t + 1), c2, c3 (g + 8, 2t and 2t + 1)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_H
#define KT_DEV_H

#ifdef __CUDACC_RTC__

typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
typedef int int32_t;
typedef long long int64_t;

#define KT_DEVICE static __device__ __forceinline__
#define KT_UNROLL _Pragma("unroll")
#define KT_ROLLED _Pragma("unroll 1")
#define KT_UNROLL_4 _Pragma("unroll 4")

/* A launch may begin while the one before it in the stream goes on, so that its way to the
 * multiprocessors takes no time of its own: it waits here until all that is before it is done and
 * can be seen. The one behind it may come as soon as all of this one's blocks are there. Both are
 * nothing where launches do not overlap. */
#if __CUDA_ARCH__ >= 900 /* KT_OVERLAP_SM */
#define KT_LAUNCH_WAIT()                                                \
    do {                                                                \
        asm volatile("griddepcontrol.wait;" ::: "memory");              \
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); \
    } while (0)
#else
#define KT_LAUNCH_WAIT() (void)0
#endif

/* The entry `name`, whose blocks run body(&parameters). THREADS is a constant of the build. */
#define KT_ENTRY(name, type, body, threads) KT_ENTRY_OF(name, type, body, (threads))
/* The same of blocks that may take a multiprocessor's registers for themselves: left alone, the
 * compiler puts a few words on the stack to fit one more. */
#define KT_ENTRY_ALONE(name, type, body, threads) KT_ENTRY_OF(name, type, body, (threads, 1))
#define KT_ENTRY_OF(name, type, body, bounds)                                                  \
    extern "C" __global__ void __launch_bounds__ bounds name(const __grid_constant__ type p) { \
        KT_LAUNCH_WAIT();                                                                      \
        body(&p);                                                                              \
    }
/* The same of a body that waits itself: by KT_LAUNCH_WAIT, in every thread, before it returns. Until
 * then it writes nothing, and reads what the launch before this one does not write: weights, the
 * lists of a step. */
#define KT_ENTRY_EARLY(name, type, body, threads)            \
    extern "C" __global__ void __launch_bounds__(threads, 1) \
        name(const __grid_constant__ type p) {               \
        body(&p);                                            \
    }

/* A constant of the build: KT_C0, KT_C1 .. are defined on the compiler's command line. */
#define KT_CONSTANT(i) KT_C##i

/* What must hold of them, or nothing is compiled. */
#define KT_REQUIRE(condition, text) static_assert(condition, text)

extern __shared__ __align__(1024) uint8_t kt_shared_bytes[];

typedef uint4 kt_u128; /* .x .y .z .w */

KT_DEVICE int kt_thread(void) {
    return (int)threadIdx.x;
}
KT_DEVICE int kt_lane(void) {
    return (int)(threadIdx.x & 31);
}
KT_DEVICE int kt_warp(void) {
    return (int)(threadIdx.x >> 5);
}
KT_DEVICE int kt_block_x(void) {
    return (int)blockIdx.x;
}
KT_DEVICE int kt_block_y(void) {
    return (int)blockIdx.y;
}
KT_DEVICE void kt_sync(void) {
    __syncthreads();
}

/* ---- numbers ---- */

KT_DEVICE float kt_float_bits(uint32_t bits) {
    return __uint_as_float(bits);
}
KT_DEVICE uint32_t kt_bits_float(float x) {
    return __float_as_uint(x);
}
/* Two floats as bfloat16, rounded to nearest even; `low` in the low half. */
KT_DEVICE uint32_t kt_bf16_pair(float low, float high) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
KT_DEVICE float kt_fma(float a, float b, float c) {
    return __fmaf_rn(a, b, c);
}
/* 2^x, within 2 ulp. */
KT_DEVICE float kt_exp2(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}
/* a / b within 2 ulp for b from 2^-126 to 2^126, then 0. */
KT_DEVICE float kt_divide(float a, float b) {
    float r;
    asm("div.approx.ftz.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
/* A product that is rounded before it is used: never joined with a sum. */
KT_DEVICE float kt_mul(float a, float b) {
    return __fmul_rn(a, b);
}
KT_DEVICE float kt_sqrt(float x) {
    return __fsqrt_rn(x);
}
/* e^x within 2 ulp (in double: 1 ulp), and log(1 + x) within 2 ulp. */
KT_DEVICE float kt_exp(float x) {
    return expf(x);
}
KT_DEVICE double kt_exp_double(double x) {
    return exp(x);
}
KT_DEVICE float kt_log1p(float x) {
    return log1pf(x);
}
/* The larger one; of a NaN and a number the number. */
KT_DEVICE float kt_max(float a, float b) {
    return fmaxf(a, b);
}
/* (a & mask) | set in one instruction. */
KT_DEVICE uint32_t kt_and_or(uint32_t a, uint32_t mask, uint32_t set) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(r) : "r"(a), "r"(mask), "r"(set));
    return r;
}
/* To the nearest whole number, halves to even, saturated; NaN becomes 0. */
KT_DEVICE int32_t kt_round(float x) {
    return __float2int_rn(x);
}
/* The larger one; NaN if one is. */
KT_DEVICE float kt_max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}
/* Four products of signed bytes, added to c. */
KT_DEVICE int32_t kt_dot4(uint32_t a, uint32_t b, int32_t c) {
    return __dp4a((int)a, (int)b, c);
}

/* ---- memory ---- */

/* 16 bytes that are read once: past the first-level cache, two sectors at a time. */
KT_DEVICE kt_u128 kt_load_stream(const void *p) {
    kt_u128 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}
KT_DEVICE uint32_t kt_shared_u32(uint32_t at) {
    return *(const uint32_t *)(kt_shared_bytes + at);
}
KT_DEVICE kt_u128 kt_shared_u128(uint32_t at) {
    return *(const kt_u128 *)(kt_shared_bytes + at);
}
/* Two floats side by side, aligned to 8 bytes. */
KT_DEVICE void kt_shared_f32x2(uint32_t at, float *v) {
    const float2 both = *(const float2 *)(kt_shared_bytes + at);
    v[0] = both.x;
    v[1] = both.y;
}
KT_DEVICE void kt_set_shared_u32(uint32_t at, uint32_t v) {
    *(uint32_t *)(kt_shared_bytes + at) = v;
}
KT_DEVICE void kt_set_shared_u128(uint32_t at, kt_u128 v) {
    *(kt_u128 *)(kt_shared_bytes + at) = v;
}

/* Two floats side by side in memory, aligned to 8 bytes. */
KT_DEVICE void kt_set_f32x2(float *p, float first, float second) {
    *(float2 *)p = make_float2(first, second);
}

/* Add to a word of shared memory, in one piece; what it was before. */
KT_DEVICE uint32_t kt_shared_add(uint32_t at, uint32_t v) {
    return atomicAdd((uint32_t *)(kt_shared_bytes + at), v);
}

/* Copy 16 bytes from global to shared memory behind the thread's back; of these the first `valid`
 * (0 or 16), and zeros after them. kt_copy_commit closes a group, KT_COPY_WAIT(n) waits until at
 * most the last n groups of this thread are under way; other threads see the bytes after kt_sync.
 */
KT_DEVICE void kt_copy16(uint32_t at, const void *from, int valid) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at), "l"(from),
                   "r"(valid)
                 : "memory");
}
/* The same with 8 and 4 bytes, aligned to as many. */
KT_DEVICE void kt_copy8(uint32_t at, const void *from, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at), "l"(from),
                   "r"(valid)
                 : "memory");
}
KT_DEVICE void kt_copy4(uint32_t at, const void *from, int valid) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"((uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at), "l"(from),
                   "r"(valid)
                 : "memory");
}
KT_DEVICE void kt_copy_commit(void) {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
#define KT_COPY_WAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")

/* ---- warps ---- */

KT_DEVICE float kt_warp_xor(float v, int lanes) {
    return __shfl_xor_sync(0xffffffffu, v, lanes);
}
KT_DEVICE uint32_t kt_warp_from(uint32_t v, int lane) {
    return __shfl_sync(0xffffffffu, v, lane);
}
/* The largest v of all lanes. */
KT_DEVICE int32_t kt_warp_max(int32_t v) {
    return __reduce_max_sync(0xffffffffu, v);
}
/* A bit for each lane whose v equals this lane's. */
KT_DEVICE uint32_t kt_warp_match(uint32_t v) {
    return __match_any_sync(0xffffffffu, v);
}
/* What lanes wrote to memory before it is seen by the others behind it. */
KT_DEVICE void kt_warp_sync(void) {
    __syncwarp();
}

/* Bit i is set where lane i asked with a condition that holds. */
KT_DEVICE uint32_t kt_warp_ballot(int condition) {
    return __ballot_sync(0xffffffffu, condition);
}
KT_DEVICE int kt_bit_count(uint32_t bits) {
    return __popc(bits);
}

/* Four 8 x 8 matrices of 16-bit elements; lane l names row l % 8 of matrix l / 8 by `at`. */
KT_DEVICE void kt_ldmatrix(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at)
                 : "memory");
}
/* The same, each matrix turned: from rows of k, as values of attention lie, to words of B. */
KT_DEVICE void kt_ldmatrix_trans(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"((uint32_t)__cvta_generic_to_shared(kt_shared_bytes) + at)
                 : "memory");
}
/* c += a * b^T over 16 bfloat16 of k, or 32 signed bytes. */
KT_DEVICE void kt_mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
KT_DEVICE void kt_mma_s8(int32_t *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
/* c += a * b^T over 32 E4M3. For sm_89 and from sm_120 on; elsewhere it is made of products of 16
 * bits, or does not exist. */
KT_DEVICE void kt_mma_e4m3(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 "
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else
#include "kernels/cuda/emulator.h"
#endif

/* ---- the same on both ---- */

/* The bfloat16 in the low and in the high half. */
KT_DEVICE float kt_bf16_low(uint32_t pair) {
    return kt_float_bits(pair << 16);
}
KT_DEVICE float kt_bf16_high(uint32_t pair) {
    return kt_float_bits(pair & 0xffff0000u);
}

KT_DEVICE float kt_warp_sum(float v) {
    KT_UNROLL
    for (int lanes = 16; lanes > 0; lanes /= 2) v += kt_warp_xor(v, lanes);
    return v;
}

KT_DEVICE float kt_sigmoid(float x) {
    return 1.0f / (1.0f + kt_exp(-x));
}

KT_DEVICE float kt_shared_f32(uint32_t at) {
    return kt_float_bits(kt_shared_u32(at));
}
KT_DEVICE void kt_set_shared_f32(uint32_t at, float v) {
    kt_set_shared_u32(at, kt_bits_float(v));
}

/* The sum of v over `warps` warps, the same bits in every thread: of a warp by halves, then warp
 * after warp. Uses 4 bytes a warp of shared memory from `at` on, which nobody else may touch
 * between the barriers before and behind this. All threads of the block take part. */
KT_DEVICE float kt_block_sum(float v, uint32_t at, int warps) {
    float sum = 0;

    v = kt_warp_sum(v);
    if (kt_lane() == 0) kt_set_shared_f32(at + (uint32_t)kt_warp() * 4, v);
    kt_sync();
    for (int i = 0; i < warps; i++) sum += kt_shared_f32(at + (uint32_t)i * 4);
    return sum;
}

/* The largest of as many lanes side by side (a power of two), NaN if one is; all lanes get it. */
KT_DEVICE float kt_warp_max_nan(float v, int lanes) {
    KT_UNROLL
    for (; lanes > 1; lanes /= 2) v = kt_max_nan(v, kt_warp_xor(v, lanes / 2));
    return v;
}

/* A pair turned by an angle. Which product is rounded first is said, so that every kernel that
 * turns pairs makes the same bits. */
KT_DEVICE void kt_turn(float *a, float *b, float cosine, float sine) {
    const float x = *a, y = *b;

    *a = kt_fma(x, cosine, -kt_mul(y, sine));
    *b = kt_fma(y, cosine, kt_mul(x, sine));
}

/* As E4M3, rounded to nearest even; magnitudes over 448 become 448, NaN stays NaN. */
KT_DEVICE uint32_t kt_e4m3(float x) {
#if defined(__CUDACC_RTC__) && __CUDA_ARCH__ >= 890
    uint16_t r;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
    return r;
#else
    uint32_t u = kt_bits_float(x);
    const uint32_t sign = u >> 24 & 0x80u;

    u &= 0x7fffffffu;
    if (u > 0x7f800000u) return sign | 0x7fu;
    if (u >= 0x43e00000u) return sign | 0x7eu;
    if (u < 0x3c800000u) /* below 2^-6: the sum with 2^14 rounds to steps of 2^-9 */
        return sign | (kt_bits_float(kt_float_bits(u) + 16384.0f) - 0x46800000u);
    return sign | (u + 0x7ffffu + (u >> 20 & 1u) - 0x3c000000u) >> 20;
#endif
}

/* x / (1 + e^-x): 0 where that is below 2^-119 or so. */
KT_DEVICE float kt_silu(float x) {
    return kt_divide(x, 1.0f + kt_exp2(-1.4426950408889634f * x));
}

#endif
