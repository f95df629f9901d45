/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "tests/support/half_emulator.h"

#include <cpuid.h>
#include <immintrin.h>
#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

enum { LANES = 32, REG_BYTES = 64 };

/* --- the registers of an interrupted program ------------------------------------------------- */

/* Where XSAVE's standard form, which signal frames have, keeps the parts of the vector registers.
 * */
typedef struct places {
    uint32_t ymm_high, zmm_high, zmm_upper; /* bytes 16-31 and 32-63 of 0 to 15; all of 16 to 31 */
} places;

static places find_places(void) {
    static places found;
    static atomic_bool is_known;
    places p;
    unsigned a, c, d;

    if (atomic_load_explicit(&is_known, memory_order_acquire)) return found;
    __get_cpuid_count(13, 2, &a, &p.ymm_high, &c, &d);
    __get_cpuid_count(13, 6, &a, &p.zmm_high, &c, &d);
    __get_cpuid_count(13, 7, &a, &p.zmm_upper, &c, &d);
    found = p;
    atomic_store_explicit(&is_known, true, memory_order_release);
    return p;
}

/* Make components 1, 2, 5, 6 and 7 present: what is in its initial state is not written by the CPU.
 * */
static void all_present(uint8_t *area) {
    static const struct { int bit, at_high; } parts[] = {{1, 0}, {2, 1}, {6, 2}, {7, 3}};
    const places p = find_places();
    const uint32_t at[4] = {160, p.ymm_high, p.zmm_high, p.zmm_upper};
    const size_t bytes[4] = {256, 256, 512, 1024};
    uint64_t present;

    memcpy(&present, area + 512, sizeof present);
    for (int i = 0; i < 4; i++)
        if (!(present >> parts[i].bit & 1)) memset(area + at[parts[i].at_high], 0, bytes[i]);
    present |= 0xc6;
    memcpy(area + 512, &present, sizeof present);
}

static void move(uint8_t *area, unsigned number, uint8_t reg[REG_BYTES], int is_write) {
    const places p = find_places();
    uint8_t *part[3];
    static const size_t bytes[3] = {16, 16, 32};
    size_t done = 0;

    part[0] = area + 160 + 16 * number;
    part[1] = area + p.ymm_high + 16 * number;
    part[2] = area + p.zmm_high + 32 * number;
    if (number >= 16) {
        part[0] = area + p.zmm_upper + 64 * (number - 16);
        part[1] = part[0] + 16;
        part[2] = part[0] + 32;
    }
    for (int i = 0; i < 3; done += bytes[i++])
        memcpy(is_write ? part[i] : reg + done, is_write ? reg + done : part[i], bytes[i]);
}

/* --- arithmetic ------------------------------------------------------------------------------ */

/* a * b + c rounded once to half. The product is exact in double; what the addition loses decides
 * the last bit of a number that is odd wherever it is not exact, so that rounding it again is
 * harmless. */
static uint16_t fused(uint16_t a, uint16_t b, uint16_t c) __attribute__((target("f16c")));
static uint16_t fused(uint16_t a, uint16_t b, uint16_t c) {
    const double product = (double)_cvtsh_ss(a) * (double)_cvtsh_ss(b), more = (double)_cvtsh_ss(c);
    const double sum = product + more, part = sum - product;
    const double lost = (product - (sum - part)) + (more - part);
    float f = (float)sum;
    uint32_t bits;

    memcpy(&bits, &f, sizeof bits);
    if (isfinite(sum) && ((double)f != sum || lost != 0) && !(bits & 1)) {
        const double off = (double)f != sum ? sum - (double)f : lost;
        const int is_up = (off > 0) == (f > 0 || (f == 0 && off > 0));
        bits = is_up ? bits + 1 : bits - 1;
        memcpy(&f, &bits, sizeof f);
    }
    return _cvtss_sh(f, 0);
}

static void compute(unsigned opcode, const uint16_t *a, const uint16_t *b, uint16_t *to)
    __attribute__((target("f16c")));
static void compute(unsigned opcode, const uint16_t *a, const uint16_t *b, uint16_t *to) {
    for (int i = 0; i < LANES; i++) {
        const float x = _cvtsh_ss(a[i]), y = _cvtsh_ss(b[i]);
        if (opcode == 0x59) to[i] = _cvtss_sh(x * y, 0); /* 22 bits: exact in f32 */
        if (opcode == 0x5c) to[i] = fused(0x3c00, a[i], b[i] ^ 0x8000);
        if (opcode == 0xa8) to[i] = fused(a[i], to[i], b[i]);
    }
}

/* A float -> bfloat16, as VCVTNE2PS2BF16 does it: to nearest even, subnormal numbers are zeros on
 * both sides, NaN becomes quiet. */
static uint16_t bf16_of(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fffffff, sign = bits >> 16 & 0x8000;

    if (magnitude < 0x00800000) return (uint16_t)sign;
    if (magnitude > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static void convert(const uint32_t *high, const uint32_t *low, uint16_t *to) {
    for (int i = 0; i < LANES / 2; i++) {
        to[i] = bf16_of(low[i]);
        to[LANES / 2 + i] = bf16_of(high[i]);
    }
}

/* --- decoding -------------------------------------------------------------------------------- */

enum { CONVERT = 0x72 };

/* EVEX of 512 bits with three registers, no mask, no rounding: map 5 without prefix (VMULPH 59,
 * VSUBPH 5C), map 6 with 66 (VFMADD213PH A8) and map 2 with F2 (VCVTNE2PS2BF16 72). */
bool kt_half_is(const uint8_t *p) {
    unsigned map;

    if (p[0] != 0x62 || (p[1] & 8) || (p[3] & ~8) != 0x40 || p[5] >> 6 != 3) return false;
    map = p[1] & 7;
    return (map == 5 && (p[2] & 0x87) == 4 && (p[4] == 0x59 || p[4] == 0x5c)) ||
           (map == 6 && (p[2] & 0x87) == 5 && p[4] == 0xa8) ||
           (map == 2 && (p[2] & 0x87) == 7 && p[4] == CONVERT);
}

void kt_half_do(const uint8_t *p, uint8_t *area) {
    _Alignas(4) uint16_t a[LANES], b[LANES];
    uint16_t to[LANES];
    unsigned reg, first, second;

    reg = (unsigned)(p[5] >> 3 & 7) | (p[1] & 0x80 ? 0 : 8) | (p[1] & 0x10 ? 0 : 16);
    second = (unsigned)(p[5] & 7) | (p[1] & 0x20 ? 0 : 8) | (p[1] & 0x40 ? 0 : 16);
    first = (unsigned)(~p[2] >> 3 & 15) | (p[3] & 8 ? 0 : 16);
    all_present(area);
    move(area, first, (uint8_t *)a, 0);
    move(area, second, (uint8_t *)b, 0);
    move(area, reg, (uint8_t *)to, 0);
    if (p[4] == CONVERT)
        convert((const uint32_t *)(const void *)a, (const uint32_t *)(const void *)b, to);
    else
        compute(p[4], a, b, to);
    move(area, reg, (uint8_t *)to, 1);
}
