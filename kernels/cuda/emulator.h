/* CUDA's execution model on the CPU, for tests and for the emulated device.
 *
 * Every thread of a block is a fiber with its own stack. Fibers run until a barrier or a collective
 * of their warp; which of the runnable ones goes on is drawn from a seed. Copies to shared memory
 * (kt_copy16) are carried out when they are issued, or, with `lazy`, not before somebody waits for
 * them, so that a missing wait or barrier shows. Shared memory is filled with 0xff before each
 * block. With `races`, two accesses to one word of shared memory by different threads, of which one
 * writes, with no barrier between them (of the block, or of the warp when it is one warp's), are an
 * error.
 *
 * Products of warpgroups are late in the same way; what a thread wrote must have been made visible
 * to them by a fence.
 *
 * What it does not model: rounding inside tensor cores (sums are formed in float, in order), bank
 * conflicts, caches, time. One launch at a time per host thread; launches on different host threads
 * do not touch each other.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_CUDA_EMULATOR_H
#define KT_CUDA_EMULATOR_H

#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kt/status.h"

typedef void kt_emulated_entry(const void *parameters);

typedef struct kt_emulator_options {
    uint32_t seed; /* order of the fibers */
    bool lazy, races;
} kt_emulator_options;

typedef struct kt_launch {
    const char *name; /* for messages; borrowed */
    kt_emulated_entry *entry;
    const void *parameters;
    int grid_x, grid_y;
    int threads;             /* a multiple of 32, at most 1024 */
    size_t shared_bytes;     /* dynamic shared memory of a block, at most 227 KiB */
    const int32_t *constant; /* values of the kernel's build constants, KT_CONSTANT(0) .. */
} kt_launch;

/* Run all blocks, one after the other. KT_E_INVALID when the kernel broke a rule (a collective that
 * not all lanes reached, a deadlock, a race, an offset outside of shared memory): the message names
 * the kernel, the block and the thread. */
kt_status kt_emulate(const kt_launch *launch, const kt_emulator_options *options, kt_err *err);

/* Only the blocks whose number is `part` modulo `parts`, so that several threads share a launch. */
kt_status kt_emulate_part(const kt_launch *launch, const kt_emulator_options *options, int part,
                          int parts, kt_err *err);

/* How many bytes the parameters of an entry take. */
size_t kt_emulated_parameter_bytes(kt_emulated_entry *entry);

/* ---- what kt_dev.h offers to device code; not for others ---- */

#define KT_DEVICE static inline __attribute__((unused))
#define KT_UNROLL
#define KT_ROLLED
#define KT_UNROLL_4
/* Called without parameters it tells how many bytes they take. */
#define KT_ENTRY(name, type, body, threads)       \
    static void name(const void *parameters) {    \
        if (parameters)                           \
            body((const type *)parameters);       \
        else                                      \
            kt_emulator_parameters(sizeof(type)); \
    }
#define KT_ENTRY_ALONE KT_ENTRY
#define KT_ENTRY_EARLY KT_ENTRY
#define KT_LAUNCH_WAIT() (void)0
/* A constant of the build: on a GPU a macro, here a number of the launch. */
#define KT_CONSTANT(i) (kt_emulator_constant()[i])

#define KT_REQUIRE(condition, text) struct kt_u128 /* constants are of the launch */

typedef struct kt_u128 {
    uint32_t x, y, z, w;
} kt_u128;

typedef void kt_emulator_collective(void *const *lane);

void kt_emulator_parameters(size_t bytes);
const int32_t *kt_emulator_constant(void);
int kt_emulator_thread(void);
int kt_emulator_block(int axis);
void kt_emulator_sync(void);
/* Parks the lane until all 32 are here, then one runs `f` over what each handed in. */
void kt_emulator_warp(kt_emulator_collective *f, void *mine);
/* Ends the launch when p is not a multiple of `size`. */
void kt_emulator_aligned(const void *p, uint32_t size);
/* The bytes [at, at + size) of shared memory, checked. */
uint8_t *kt_emulator_shared(uint32_t at, uint32_t size, bool writes);
/* `bytes` are 4, 8 or 16; of these `valid` (0 or all) are copied, the others are zeros. */
void kt_emulator_copy(uint32_t at, const void *from, int bytes, int valid);
void kt_emulator_commit(void);
void kt_emulator_wait(int left);
void kt_emulator_ldmatrix(uint32_t *r, uint32_t at, bool turned);
void kt_emulator_mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void kt_emulator_mma_s8(int32_t *c, const uint32_t *a, uint32_t b0, uint32_t b1);
void kt_emulator_mma_e4m3(float *c, const uint32_t *a, uint32_t b0, uint32_t b1);
uint32_t kt_emulator_shuffle(uint32_t v, int from);
uint32_t kt_emulator_match(uint32_t v);
void kt_emulator_warp_sync(void);
uint32_t kt_emulator_ballot(int condition);
uint32_t kt_emulator_shared_add(uint32_t at, uint32_t v);
void kt_emulator_pause(uint32_t ns); /* of the host's thread */
/* Stores a word that a host's thread watches. With `lazy` that one has half a millisecond to look
 * before any thread of the launch goes on, so that what was not stored before is not there. */
void kt_emulator_tell(uint32_t *p, uint32_t v);
/* kt_dev_wgmma.h. Products are carried out when issued, or, with `lazy`, when waited for. */
void kt_emulator_proxy(void);
void kt_emulator_wgmma_fence(void);
void kt_emulator_wgmma_commit(void);
void kt_emulator_wgmma_wait(int left);
void kt_emulator_wgmma(float *d, uint64_t a, uint64_t b, int n, bool is_e4m3, bool adds);

KT_DEVICE int kt_thread(void) {
    return kt_emulator_thread();
}
KT_DEVICE int kt_lane(void) {
    return kt_emulator_thread() % 32;
}
KT_DEVICE int kt_warp(void) {
    return kt_emulator_thread() / 32;
}
KT_DEVICE int kt_block_x(void) {
    return kt_emulator_block(0);
}
KT_DEVICE int kt_block_y(void) {
    return kt_emulator_block(1);
}
KT_DEVICE void kt_sync(void) {
    kt_emulator_sync();
}

KT_DEVICE float kt_float_bits(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}
KT_DEVICE uint32_t kt_bits_float(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}
KT_DEVICE uint32_t kt_emulator_bf16(float x) {
    const uint32_t b = kt_bits_float(x);
    if (x != x) return 0x7fff;
    return (b + 0x7fff + (b >> 16 & 1)) >> 16;
}
KT_DEVICE uint32_t kt_bf16_pair(float low, float high) {
    return kt_emulator_bf16(low) | kt_emulator_bf16(high) << 16;
}
KT_DEVICE float kt_fma(float a, float b, float c) {
    return fmaf(a, b, c);
}
KT_DEVICE float kt_exp2(float x) {
    return exp2f(x);
}
KT_DEVICE float kt_divide(float a, float b) {
    return a / b;
}
KT_DEVICE float kt_mul(float a, float b) {
    return a * b;
}
KT_DEVICE float kt_sqrt(float x) {
    return sqrtf(x);
}
KT_DEVICE float kt_exp(float x) {
    return expf(x);
}
KT_DEVICE double kt_exp_double(double x) {
    return exp(x);
}
KT_DEVICE float kt_log1p(float x) {
    return log1pf(x);
}
KT_DEVICE float kt_max(float a, float b) { /* of zeros the positive one, which fmaxf leaves open */
    return a == b ? kt_float_bits(kt_bits_float(a) & kt_bits_float(b)) : fmaxf(a, b);
}
KT_DEVICE uint32_t kt_and_or(uint32_t a, uint32_t mask, uint32_t set) {
    return (a & mask) | set;
}
KT_DEVICE int32_t kt_round(float x) {
    if (!(x > -0x1p31f)) return x == x ? INT32_MIN : 0;
    return x >= 0x1p31f ? INT32_MAX : (int32_t)lrintf(x);
}
KT_DEVICE float kt_max_nan(float a, float b) {
    return a != a || b != b ? NAN : kt_max(a, b);
}
KT_DEVICE int32_t kt_dot4(uint32_t a, uint32_t b, int32_t c) {
    for (int i = 0; i < 32; i += 8) c += (int8_t)(a >> i) * (int8_t)(b >> i);
    return c;
}

KT_DEVICE kt_u128 kt_load_stream(const void *p) {
    kt_u128 v;
    kt_emulator_aligned(p, 16);
    memcpy(&v, p, sizeof v);
    return v;
}
KT_DEVICE uint32_t kt_shared_u32(uint32_t at) {
    uint32_t v;
    memcpy(&v, kt_emulator_shared(at, sizeof v, false), sizeof v);
    return v;
}
KT_DEVICE kt_u128 kt_shared_u128(uint32_t at) {
    kt_u128 v;
    memcpy(&v, kt_emulator_shared(at, sizeof v, false), sizeof v);
    return v;
}
KT_DEVICE void kt_shared_f32x2(uint32_t at, float *v) {
    memcpy(v, kt_emulator_shared(at, 8, false), 8);
}
KT_DEVICE void kt_set_shared_u32(uint32_t at, uint32_t v) {
    memcpy(kt_emulator_shared(at, sizeof v, true), &v, sizeof v);
}
KT_DEVICE void kt_set_shared_u128(uint32_t at, kt_u128 v) {
    memcpy(kt_emulator_shared(at, sizeof v, true), &v, sizeof v);
}
KT_DEVICE void kt_set_f32x2(float *p, float first, float second) {
    kt_emulator_aligned(p, 8);
    p[0] = first, p[1] = second;
}
KT_DEVICE uint32_t kt_shared_add(uint32_t at, uint32_t v) {
    return kt_emulator_shared_add(at, v);
}
KT_DEVICE void kt_copy16(uint32_t at, const void *from, int valid) {
    kt_emulator_copy(at, from, 16, valid);
}
KT_DEVICE void kt_copy8(uint32_t at, const void *from, int valid) {
    kt_emulator_copy(at, from, 8, valid);
}
KT_DEVICE void kt_copy4(uint32_t at, const void *from, int valid) {
    kt_emulator_copy(at, from, 4, valid);
}
KT_DEVICE void kt_copy_commit(void) {
    kt_emulator_commit();
}
#define KT_COPY_WAIT(n) kt_emulator_wait(n)

KT_DEVICE uint32_t kt_warp_from(uint32_t v, int lane) {
    return kt_emulator_shuffle(v, lane);
}
KT_DEVICE float kt_warp_xor(float v, int lanes) {
    return kt_float_bits(kt_emulator_shuffle(kt_bits_float(v), kt_lane() ^ lanes));
}
KT_DEVICE int32_t kt_warp_max(int32_t v) {
    for (int lanes = 16; lanes > 0; lanes /= 2) {
        const int32_t other = (int32_t)kt_emulator_shuffle((uint32_t)v, kt_lane() ^ lanes);
        if (other > v) v = other;
    }
    return v;
}
KT_DEVICE uint32_t kt_warp_match(uint32_t v) {
    return kt_emulator_match(v);
}
KT_DEVICE void kt_warp_sync(void) {
    kt_emulator_warp_sync();
}
KT_DEVICE uint32_t kt_warp_ballot(int condition) {
    return kt_emulator_ballot(condition);
}
KT_DEVICE int kt_bit_count(uint32_t bits) {
    return __builtin_popcount(bits);
}
KT_DEVICE void kt_ldmatrix(uint32_t *r, uint32_t at) {
    kt_emulator_ldmatrix(r, at, false);
}
KT_DEVICE void kt_ldmatrix_trans(uint32_t *r, uint32_t at) {
    kt_emulator_ldmatrix(r, at, true);
}
KT_DEVICE void kt_mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    kt_emulator_mma_bf16(c, a, b0, b1);
}
KT_DEVICE void kt_mma_s8(int32_t *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    kt_emulator_mma_s8(c, a, b0, b1);
}
KT_DEVICE void kt_mma_e4m3(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    kt_emulator_mma_e4m3(c, a, b0, b1);
}

#endif
