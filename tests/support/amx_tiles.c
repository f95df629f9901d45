/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/amx_tiles.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static kt_amx_kind refuse(kt_amx_fault *why, kt_amx_kind kind, const char *format, ...) {
    va_list args;
    va_start(args, format);
    why->kind = kind;
    vsnprintf(why->reason, sizeof why->reason, format, args);
    va_end(args);
    return kind;
}

/* --- configuration ------------------------------------------------------------------------- */

static bool all_zero(const uint8_t *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (bytes[i]) return false;
    return true;
}

/* Bytes of a configuration: palette, start_row, 14 reserved, 16 x u16 row bytes, 16 x u8 rows; palette
 * 1 has eight tiles, and what belongs to others is reserved. */
kt_amx_kind kt_amx_load_config(kt_amx_state *s, const void *config, kt_amx_fault *why) {
    kt_amx_state next = {0};
    uint8_t raw[64];

    memcpy(raw, config, sizeof raw);
    if (raw[0] > 1) return refuse(why, KT_AMX_GP, "palette %d: only 0 and 1 exist", raw[0]);
    if (raw[0] == 0) {
        *s = next;
        return KT_AMX_FINE;
    }
    if (!all_zero(raw + 2, 14) || !all_zero(raw + 32, 16) || !all_zero(raw + 56, 8))
        return refuse(why, KT_AMX_GP, "reserved bytes of the configuration are not zero");
    next.palette = raw[0];
    next.start_row = raw[1];
    for (int t = 0; t < KT_AMX_TILES; t++) {
        next.row_bytes[t] = (uint16_t)(raw[16 + 2 * t] | raw[17 + 2 * t] << 8);
        next.rows[t] = raw[48 + t];
        if (next.row_bytes[t] > KT_AMX_ROW_BYTES)
            return refuse(why, KT_AMX_GP, "tile %d: %d bytes in a row, at most 64", t,
                          next.row_bytes[t]);
        if (next.rows[t] > KT_AMX_ROWS)
            return refuse(why, KT_AMX_GP, "tile %d: %d rows, at most 16", t, next.rows[t]);
        if (!next.rows[t] != !next.row_bytes[t])
            return refuse(why, KT_AMX_GP, "tile %d: %d rows of %d bytes", t, next.rows[t],
                          next.row_bytes[t]);
    }
    *s = next;
    return KT_AMX_FINE;
}

void kt_amx_store_config(const kt_amx_state *s, void *config) {
    uint8_t raw[64] = {0};

    raw[0] = s->palette;
    raw[1] = s->start_row;
    for (int t = 0; t < KT_AMX_TILES; t++) {
        raw[16 + 2 * t] = (uint8_t)s->row_bytes[t];
        raw[17 + 2 * t] = (uint8_t)(s->row_bytes[t] >> 8);
        raw[48 + t] = s->rows[t];
    }
    memcpy(config, raw, sizeof raw);
}

void kt_amx_release(kt_amx_state *s) {
    memset(s, 0, sizeof *s);
}

static kt_amx_kind check_tile(const kt_amx_state *s, unsigned t, kt_amx_fault *why) {
    if (!s->palette) return refuse(why, KT_AMX_UD, "tiles are not configured");
    if (t >= KT_AMX_TILES) return refuse(why, KT_AMX_UD, "tile %u does not exist", t);
    if (!s->rows[t]) return refuse(why, KT_AMX_UD, "tile %u has no rows", t);
    return KT_AMX_FINE;
}

kt_amx_kind kt_amx_zero(kt_amx_state *s, unsigned t, kt_amx_fault *why) {
    if (check_tile(s, t, why)) return why->kind;
    memset(&s->tile[t], 0, sizeof s->tile[t]);
    s->start_row = 0;
    return KT_AMX_FINE;
}

/* --- memory -------------------------------------------------------------------------------- */

static kt_amx_kind check_transfer(const kt_amx_state *s, unsigned t, kt_amx_fault *why) {
    if (check_tile(s, t, why)) return why->kind;
    if (s->row_bytes[t] % 4)
        return refuse(why, KT_AMX_UD, "tile %u: rows of %d bytes", t, s->row_bytes[t]);
    if (s->start_row >= s->rows[t])
        return refuse(why, KT_AMX_UD, "tile %u: start row %d of %d", t, s->start_row, s->rows[t]);
    return KT_AMX_FINE;
}

/* Bits 63 to 47 of an address are equal, or the access raises #GP. */
static kt_amx_kind check_address(uint64_t address, kt_amx_fault *why) {
    if ((uint64_t)((int64_t)(address << 16) >> 16) != address)
        return refuse(why, KT_AMX_GP, "address %#llx is not canonical",
                      (unsigned long long)address);
    return KT_AMX_FINE;
}

/* start_row follows the transfer, so that a page fault leaves it where the instruction would. */
kt_amx_kind kt_amx_load(kt_amx_state *s, unsigned t, uint64_t base, uint64_t stride,
                        kt_amx_fault *why) {
    kt_amx_tile *tile;

    if (check_transfer(s, t, why)) return why->kind;
    tile = &s->tile[t];
    memset(tile->row[s->start_row], 0, (size_t)(KT_AMX_ROWS - s->start_row) * KT_AMX_ROW_BYTES);
    for (; s->start_row < s->rows[t]; s->start_row++) {
        uint64_t address = base + s->start_row * stride;
        if (check_address(address, why)) return why->kind;
        memcpy(tile->row[s->start_row], (const void *)(uintptr_t)address, s->row_bytes[t]);
    }
    s->start_row = 0;
    return KT_AMX_FINE;
}

kt_amx_kind kt_amx_store(kt_amx_state *s, unsigned t, uint64_t base, uint64_t stride,
                         kt_amx_fault *why) {
    if (check_transfer(s, t, why)) return why->kind;
    for (; s->start_row < s->rows[t]; s->start_row++) {
        uint64_t address = base + s->start_row * stride;
        if (check_address(address, why)) return why->kind;
        memcpy((void *)(uintptr_t)address, s->tile[t].row[s->start_row], s->row_bytes[t]);
    }
    s->start_row = 0;
    return KT_AMX_FINE;
}

/* --- products ------------------------------------------------------------------------------ */

static kt_amx_kind check_product(const kt_amx_state *s, unsigned c, unsigned a, unsigned b,
                                 kt_amx_fault *why) {
    const unsigned tiles[3] = {c, a, b};

    if (c == a || c == b || a == b)
        return refuse(why, KT_AMX_UD, "tiles %u, %u, %u are not distinct", c, a, b);
    for (int i = 0; i < 3; i++) {
        if (check_tile(s, tiles[i], why)) return why->kind;
        if (s->row_bytes[tiles[i]] % 4)
            return refuse(why, KT_AMX_UD, "tile %u: rows of %d bytes", tiles[i],
                          s->row_bytes[tiles[i]]);
    }
    if (s->rows[c] != s->rows[a])
        return refuse(why, KT_AMX_UD, "%d rows of sums for %d rows", s->rows[c], s->rows[a]);
    if (s->row_bytes[c] != s->row_bytes[b])
        return refuse(why, KT_AMX_UD, "%d bytes of sums for columns of %d bytes", s->row_bytes[c],
                      s->row_bytes[b]);
    if (s->row_bytes[a] / 4 != s->rows[b])
        return refuse(why, KT_AMX_UD, "depth %d meets depth %d", s->row_bytes[a] / 4, s->rows[b]);
    return KT_AMX_FINE;
}

/* Rows and bytes past the tile's shape are zero after every product. */
static void finish_product(kt_amx_state *s, unsigned c) {
    for (int m = 0; m < KT_AMX_ROWS; m++) {
        size_t keep = m < s->rows[c] ? s->row_bytes[c] : 0;
        memset(s->tile[c].row[m] + keep, 0, KT_AMX_ROW_BYTES - keep);
    }
    s->start_row = 0;
}

static int32_t byte_of(const uint8_t *row, int i, bool is_signed) {
    return is_signed ? (int8_t)row[i] : row[i];
}

#ifdef __clang__ /* which does not take both attributes */
#define UNCHECKED_CLONES target_clones("avx2", "default")
#else
#define UNCHECKED_CLONES target_clones("avx2", "default"), no_sanitize("address", "undefined")
#endif

/* c[n] += sum over k and j of a[4 k + j] * b[k][j][n], modulo 2^32; loops that compilers make
 * vectors of, if sanitizers leave them as they are. */
__attribute__((UNCHECKED_CLONES)) static void add_bytes(int depth, uint32_t *c, const int32_t *a,
                                                        int32_t (*b)[4][KT_AMX_ROWS]) {
    uint32_t sums[KT_AMX_ROWS];

    memcpy(sums, c, sizeof sums);
    for (int k = 0; k < depth; k++)
        for (int j = 0; j < 4; j++)
            for (int n = 0; n < KT_AMX_ROWS; n++) sums[n] += (uint32_t)(a[4 * k + j] * b[k][j][n]);
    memcpy(c, sums, sizeof sums);
}

kt_amx_kind kt_amx_dot_int8(kt_amx_state *s, kt_amx_signs signs, unsigned c, unsigned a, unsigned b,
                            kt_amx_fault *why) {
    const bool a_signed = signs == KT_AMX_SS || signs == KT_AMX_SU;
    const bool b_signed = signs == KT_AMX_SS || signs == KT_AMX_US;
    int32_t right[KT_AMX_ROWS][4][KT_AMX_ROWS] = {{{0}}}; /* [depth][j][n] */

    if (check_product(s, c, a, b, why)) return why->kind;
    for (int k = 0; k < s->rows[b]; k++)
        for (int i = 0; i < s->row_bytes[c]; i++)
            right[k][i % 4][i / 4] = byte_of(s->tile[b].row[k], i, b_signed);
    for (int m = 0; m < s->rows[c]; m++) {
        int32_t left[4 * KT_AMX_ROWS];
        uint32_t sums[KT_AMX_ROWS];
        memcpy(sums, s->tile[c].row[m], sizeof sums);
        for (int i = 0; i < 4 * s->rows[b]; i++) left[i] = byte_of(s->tile[a].row[m], i, a_signed);
        add_bytes(s->rows[b], sums, left, right);
        memcpy(s->tile[c].row[m], sums, sizeof sums);
    }
    finish_product(s, c);
    return KT_AMX_FINE;
}

static float float_of(uint32_t bits) {
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* Denormal inputs are zero, and so are denormal results. */
static float flush(float f) {
    return fabsf(f) < FLT_MIN ? copysignf(0, f) : f;
}

/* a * b + c rounded once, to nearest even, flushed. A result that fmaf rounds up to the smallest
 * normal number counts as denormal if 24 bits of precision would have left it below: the hardware
 * looks at what the rounding would give with an unbounded exponent. a * b is exact in double. */
static float multiply_add(float a, float b, float c) {
    float r = fmaf(flush(a), flush(b), flush(c));
    if (fabsf(r) == FLT_MIN) {
        double exact = (double)flush(a) * flush(b) + (double)flush(c);
        if (fabs(exact) < 0x1p-126 - 0x1p-151) return copysignf(0, r);
    }
    return flush(r);
}

/* The values of n pairs of halves. */
static void from_bf16(const uint8_t *row, int n, float *even, float *odd) {
    for (int i = 0; i < n; i++) {
        uint32_t pair, low, high;
        memcpy(&pair, row + 4 * i, sizeof pair);
        low = pair << 16, high = pair & 0xffff0000;
        memcpy(&even[i], &low, sizeof low);
        memcpy(&odd[i], &high, sizeof high);
    }
}

/* Denormals of half precision are normal numbers here, and kept. */
static float value_of_fp16(uint32_t h) {
    uint32_t sign = (h & 0x8000u) << 16, exponent = h >> 10 & 31, fraction = h & 1023;

    if (exponent == 31) return float_of(sign | 0x7f800000u | fraction << 13);
    if (exponent == 0) return copysignf((float)fraction * 0x1p-24f, float_of(sign));
    return float_of(sign | (exponent + 112) << 23 | fraction << 13);
}

static void from_fp16(const uint8_t *row, int n, float *even, float *odd) {
    for (int i = 0; i < n; i++, row += 4) {
        even[i] = value_of_fp16((uint32_t)(row[0] | row[1] << 8));
        odd[i] = value_of_fp16((uint32_t)(row[2] | row[3] << 8));
    }
}

/* Two partial sums for each output, one of the even and one of the odd inputs, each a chain of fused
 * multiply-adds from zero; then their sum; then the addition to what was there. */
static void add_halves(int depth, const float (*a)[KT_AMX_ROWS], float (*b)[2][KT_AMX_ROWS],
                       float *c) {
    for (int n = 0; n < KT_AMX_ROWS; n++) {
        float even = 0, odd = 0;
        for (int k = 0; k < depth; k++) {
            even = multiply_add(a[0][k], b[k][0][n], even);
            odd = multiply_add(a[1][k], b[k][1][n], odd);
        }
        c[n] = flush(flush(c[n]) + flush(even + odd));
    }
}

/* The same by AVX-512 with denormals flushed on both sides, where the CPU has it: a hundred times
 * faster. */
__attribute__((target("avx512f"))) static void
add_halves_512(int depth, const float (*a)[KT_AMX_ROWS], float (*b)[2][KT_AMX_ROWS], float *c) {
    const unsigned before = _mm_getcsr();
    __m512 even = _mm512_setzero_ps(), odd = _mm512_setzero_ps();

    _mm_setcsr(0x1f80 | 0x8040); /* all masked, to nearest, FTZ and DAZ */
    __asm__ volatile("" ::: "memory");
    for (int k = 0; k < depth; k++) {
        even = _mm512_fmadd_ps(_mm512_set1_ps(a[0][k]), _mm512_loadu_ps(b[k][0]), even);
        odd = _mm512_fmadd_ps(_mm512_set1_ps(a[1][k]), _mm512_loadu_ps(b[k][1]), odd);
    }
    _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), _mm512_add_ps(even, odd)));
    __asm__ volatile("" ::: "memory");
    _mm_setcsr(before);
}

bool kt_amx_plain_products;

typedef void halves_of(const uint8_t *row, int n, float *even, float *odd);

static kt_amx_kind dot_halves(kt_amx_state *s, halves_of *halves, unsigned c, unsigned a,
                              unsigned b, kt_amx_fault *why) {
    const bool fast = !kt_amx_plain_products && __builtin_cpu_supports("avx512f");
    float right[KT_AMX_ROWS][2][KT_AMX_ROWS] = {{{0}}}; /* [depth][even or odd][n] */

    if (check_product(s, c, a, b, why)) return why->kind;
    for (int k = 0; k < s->rows[b]; k++)
        halves(s->tile[b].row[k], s->row_bytes[c] / 4, right[k][0], right[k][1]);
    for (int m = 0; m < s->rows[c]; m++) {
        float left[2][KT_AMX_ROWS], sums[KT_AMX_ROWS];
        halves(s->tile[a].row[m], s->rows[b], left[0], left[1]);
        memcpy(sums, s->tile[c].row[m], sizeof sums);
        (fast ? add_halves_512 : add_halves)(s->rows[b], left, right, sums);
        memcpy(s->tile[c].row[m], sums, sizeof sums);
    }
    finish_product(s, c);
    return KT_AMX_FINE;
}

kt_amx_kind kt_amx_dot_bf16(kt_amx_state *s, unsigned c, unsigned a, unsigned b,
                            kt_amx_fault *why) {
    return dot_halves(s, from_bf16, c, a, b, why);
}

kt_amx_kind kt_amx_dot_fp16(kt_amx_state *s, unsigned c, unsigned a, unsigned b,
                            kt_amx_fault *why) {
    return dot_halves(s, from_fp16, c, a, b, why);
}
