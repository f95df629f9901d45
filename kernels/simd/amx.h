/* AMX instructions as statements. The tile numbers are literals.
 *
 * Inline assembly, since gcc 12's intrinsics do not tell the compiler that a tile load reads memory and
 * lets stores to a scratch buffer sink below it. The compiler itself never uses tiles, so they need not
 * be named as changed.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_AMX_H
#define KT_SIMD_AMX_H

#include <stddef.h>
#include <stdint.h>

/* LDTILECFG reads 64 bytes: palette 1, start row 0, then the shapes. */
typedef struct kt_amx_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16]; /* at most 64; only the first 8 exist */
    uint8_t rows[16];       /* at most 16 */
} kt_amx_config;

#define KT_AMX_CONFIGURE(config) __asm__ volatile("ldtilecfg %0" ::"m"(*(config)) : "memory")
#define KT_AMX_RELEASE() __asm__ volatile("tilerelease" ::: "memory")
#define KT_AMX_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::: "memory")

/* Row r of tile t is the bytes at base + r * stride. */
#define KT_AMX_LOAD(t, base, stride)                                              \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"((const void *)(base)), \
                     "r"((ptrdiff_t)(stride))                                     \
                     : "memory")
/* The same with the hint that the bytes are not wanted in L1 for long. */
#define KT_AMX_LOAD_ONCE(t, base, stride)                                           \
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"((const void *)(base)), \
                     "r"((ptrdiff_t)(stride))                                       \
                     : "memory")
#define KT_AMX_STORE(t, base, stride)                                           \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"((void *)(base)), \
                     "r"((ptrdiff_t)(stride))                                   \
                     : "memory")

/* c += a * b: a signed bytes, b unsigned bytes, c int32. */
#define KT_AMX_DOT_SU8(c, a, b) \
    __asm__ volatile("tdpbsud %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* c += a * b: a unsigned bytes, b signed bytes, c int32. */
#define KT_AMX_DOT_US8(c, a, b) \
    __asm__ volatile("tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* c += a * b: signed bytes, c int32. */
#define KT_AMX_DOT_S8(c, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")
/* c += a * b: a and b bfloat16 pairs, c f32. */
#define KT_AMX_DOT_BF16(c, a, b) \
    __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::: "memory")

#endif
