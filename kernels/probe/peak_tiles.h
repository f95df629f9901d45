/* What the peak probes of tiles have in common: operands and the loop.
 *
 * A product is fed as in a kernel: both operands are loaded into tiles for it, from memory that
 * holds pseudo-random numbers. Measured on Granite Rapids: operands that stay in tiles, or zeros,
 * let the tile unit keep a clock a quarter higher, which no kernel with real data has.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_PROBE_PEAK_TILES_H
#define KT_KERNELS_PROBE_PEAK_TILES_H

#include <string.h>

#include "kernels/probe/peak_block.h"
#include "kernels/simd/amx.h"
#include "kt/variant.h"

#define KT_PEAK_TILE_BYTES 1024    /* 16 rows of 64 bytes */
#define KT_PEAK_OPERAND_BYTES 8192 /* of each operand: both together are a third of a 48 KiB L1 */
#define KT_PEAK_PRODUCTS 4         /* of a block: two tiles of a times two of b */
#define KT_PEAK_INSTRUCTIONS 8     /* of a block: its products, and a load for each of four tiles */

typedef struct kt_peak_operands {
    _Alignas(64) uint8_t a[KT_PEAK_OPERAND_BYTES];
    _Alignas(64) uint8_t b[KT_PEAK_OPERAND_BYTES];
} kt_peak_operands;

/* 32 pseudo-random bits of a number (the finaliser of MurmurHash3): without a chain from one to the
 * next, so that the loops around it are vectors and take little of a call. */
static inline uint32_t kt_peak_random(uint32_t i) {
    i *= 0x9e3779b9u;
    i = (i ^ i >> 16) * 0x85ebca6bu;
    i = (i ^ i >> 13) * 0xc2b2ae35u;
    return i ^ i >> 16;
}

/* Pairs of normal bfloat16 from 2^-15 to 2: any sign and mantissa, of the exponent the upper four
 * bits 0111. With denormals or zeros in an operand the tile unit is faster than with numbers. */
#define KT_PEAK_BF16_KEEP 0x87ff87ffu
#define KT_PEAK_BF16_SET 0x38003800u
/* Bytes stay as they are. */
#define KT_PEAK_INT8_KEEP 0xffffffffu
#define KT_PEAK_INT8_SET 0u

/* keep and set are masks of each 32-bit word. */
static inline void kt_peak_fill(kt_peak_operands *o, uint32_t keep, uint32_t set) {
    for (uint32_t i = 0; i < KT_PEAK_OPERAND_BYTES / 4; i++) {
        const uint32_t a = (kt_peak_random(2 * i) & keep) | set;
        const uint32_t b = (kt_peak_random(2 * i + 1) & keep) | set;
        memcpy(o->a + 4 * i, &a, 4);
        memcpy(o->b + 4 * i, &b, 4);
    }
}

static inline void kt_peak_configure(void) {
    kt_amx_config config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    KT_AMX_CONFIGURE(&config);
    KT_AMX_ZERO(0);
    KT_AMX_ZERO(1);
    KT_AMX_ZERO(2);
    KT_AMX_ZERO(3);
}

/* Four tile loads and four products by DOT, which walk over both operands again and again. A macro,
 * since the instruction is text. */
#define KT_PEAK_TILES(DOT, o, blocks)                                          \
    for (int64_t i_ = 0, at_ = 0; i_ < (blocks);                               \
         i_++, at_ = (at_ + 2 * KT_PEAK_TILE_BYTES) % KT_PEAK_OPERAND_BYTES) { \
        KT_AMX_LOAD(4, (o)->a + at_, 64);                                      \
        KT_AMX_LOAD(6, (o)->b + at_, 64);                                      \
        DOT(0, 4, 6);                                                          \
        KT_AMX_LOAD(7, (o)->b + at_ + KT_PEAK_TILE_BYTES, 64);                 \
        DOT(1, 4, 7);                                                          \
        KT_AMX_LOAD(5, (o)->a + at_ + KT_PEAK_TILE_BYTES, 64);                 \
        DOT(2, 5, 6);                                                          \
        DOT(3, 5, 7);                                                          \
    }

#endif
