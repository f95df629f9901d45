/* Each type's layout is stated at its function: fields with their offset in the block,
 * little-endian; d is an f16. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/lowbit.h"

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/lowbit_grids.h"

enum { MOST_POINTS = 2048, GROUP = 16, MOST_INPUTS = 256 };

/* ---- grids ---- */

typedef struct grid {
    const uint8_t *steps;
    int points, bits, digits; /* digits of `bits` bits in each number */
    int8_t value[8];          /* of a digit */
} grid;

static const grid iq1_grid = {iq1_s_steps, 2048, 2, 8, {-1, 0, 1}};

typedef struct points { /* a grid, written out */
    int8_t at[MOST_POINTS][8];
} points;

static void build(const grid *g, points *out) {
    const uint8_t *step = g->steps;
    unsigned number = 0;

    for (int i = 0; i < g->points; i++) {
        if (*step == 255) {
            number += step[1] | (unsigned)step[2] << 8;
            step += 3;
        } else {
            number += *step++;
        }
        for (int j = 0; j < g->digits; j++)
            out->at[i][j] = g->value[number >> g->bits * j & ((1u << g->bits) - 1)];
    }
}

/* ---- pieces of blocks ---- */

typedef struct decoded {
    int8_t code[MOST_INPUTS];
    float scale[MOST_INPUTS / GROUP];
} decoded;

static float half_at(const uint8_t *p) {
    return kt_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void put_scale(decoded *out, int group, int groups, float scale) {
    for (int i = 0; i < groups; i++) out->scale[group + i] = scale;
}

static unsigned nibble(const uint8_t *p, int i) {
    return p[i / 2] >> 4 * (i % 2) & 15u;
}

/* ---- the types ---- */

/* w = scale * (point +- 1/8), as scale / 8 * (8 point +- 1). */
static void put_shifted(const int8_t *point, int is_below, int8_t *code) {
    for (int i = 0; i < 8; i++) code[i] = (int8_t)(8 * point[i] + (is_below ? -1 : 1));
}

/* d@0, of 8 inputs low byte@2; of 32 inputs u16@34: three high bits of each point, 3 bits s, below;
 * the scale is d * (2s + 1). */
static void take_iq1_s(const uint8_t *p, const points *g, decoded *out) {
    for (int b = 0; b < 8; b++) {
        const unsigned u = p[34 + 2 * b] | (unsigned)p[35 + 2 * b] << 8;
        for (int i = 0; i < 4; i++)
            put_shifted(g->at[p[2 + 4 * b + i] | (u >> 3 * i & 7) << 8], u >> 15,
                        out->code + 32 * b + 8 * i);
        put_scale(out, 2 * b, 2, half_at(p) * (float)(2 * (u >> 12 & 7) + 1) * 0.125f);
    }
}

static uint16_t iq1_m_d(const uint8_t *p) {
    return (uint16_t)(p[49] >> 4 | (p[51] & 0xf0) | (p[53] & 0xf0) << 4 | (p[55] & 0xf0) << 8);
}

/* Of 8 inputs low byte@0 and a nibble@32: three high bits, below; four u16@48: 3 bits s of four
 * times 16 inputs, four bits of d. */
static void take_iq1_m(const uint8_t *p, const points *g, decoded *out) {
    const float d = kt_f16_to_f32(iq1_m_d(p));

    for (int i = 0; i < 32; i++) {
        const unsigned u = nibble(p + 32, i);
        put_shifted(g->at[p[i] | (u & 7) << 8], u >> 3, out->code + 8 * i);
    }
    for (int i = 0; i < 16; i++) {
        const unsigned u = p[48 + i / 4 * 2] | (unsigned)p[49 + i / 4 * 2] << 8;
        put_scale(out, i, 1, d * (float)(2 * (u >> 3 * (i % 4) & 7) + 1) * 0.125f);
    }
}

/* Digits of base 3, the leading ones of a fraction byte / 256: times 3^n digit n stands before the
 * point. */
static int8_t ternary(unsigned byte, unsigned power) {
    return (int8_t)((int)((byte * power & 255) * 3 >> 8) - 1);
}

/* 5 digits in each of 48 bytes@0 (32, then 16 with their first digits, then their second ...), 4 in
 * each of 4@48, d@52; w = d * digit. */
static void take_tq1_0(const uint8_t *p, const points *g, decoded *out) {
    static const struct { int at, bytes, digits; } runs[] = {{0, 32, 5}, {32, 16, 5}, {48, 4, 4}};
    int8_t *code = out->code;

    (void)g;
    for (int r = 0; r < 3; r++) {
        unsigned power = 1;
        for (int n = 0; n < runs[r].digits; n++, power *= 3)
            for (int i = 0; i < runs[r].bytes; i++) *code++ = ternary(p[runs[r].at + i], power);
    }
    put_scale(out, 0, MOST_INPUTS / GROUP, half_at(p + 52));
}

/* 2 bits@0: of 32 bytes the lowest, then the next; d@64; w = d * (bits - 1). */
static void take_tq2_0(const uint8_t *p, const points *g, decoded *out) {
    (void)g;
    for (int i = 0; i < MOST_INPUTS; i++)
        out->code[i] = (int8_t)((int)(p[i / 128 * 32 + i % 32] >> 2 * (i % 128 / 32) & 3) - 1);
    put_scale(out, 0, MOST_INPUTS / GROUP, half_at(p + 64));
}

/* An E4M3 number without sign, halved as the codes are doubled; the largest is zero. */
static float halved_e4m3(unsigned byte) {
    const int exponent = (int)(byte >> 3 & 15), mantissa = (int)(byte & 7);

    if (byte == 127) return 0;
    return exponent ? ldexpf((float)(8 + mantissa), exponent - 11) : ldexpf((float)mantissa, -10);
}

/* Of 16 inputs an E4M3 scale@0 and 8 bytes@4, low nibbles first; w = scale * E2M1. */
static void take_nvfp4(const uint8_t *p, const points *g, decoded *out) {
    static const int8_t value[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

    (void)g;
    for (int b = 0; b < 4; b++) {
        const uint8_t *at = p + 4 + 8 * b;
        for (int i = 0; i < 8; i++) {
            out->code[GROUP * b + i] = value[at[i] & 15];
            out->code[GROUP * b + 8 + i] = value[at[i] >> 4];
        }
        out->scale[b] = halved_e4m3(p[b]);
    }
}

/* ---- all of them ---- */

typedef struct type {
    kt_lowbit_type of;
    int d_at; /* -1: elsewhere or nowhere */
    const grid *points;
    void (*take)(const uint8_t *block, const points *g, decoded *out);
} type;

static const type types[KT_LOWBIT_COUNT] = {
    [KT_LOWBIT_IQ1_S] = {{"IQ1_S", 19, 256, 50}, 0, &iq1_grid, take_iq1_s},
    [KT_LOWBIT_IQ1_M] = {{"IQ1_M", 29, 256, 56}, -1, &iq1_grid, take_iq1_m},
    [KT_LOWBIT_TQ1_0] = {{"TQ1_0", 34, 256, 54}, 52, NULL, take_tq1_0},
    [KT_LOWBIT_TQ2_0] = {{"TQ2_0", 35, 256, 66}, 64, NULL, take_tq2_0},
    [KT_LOWBIT_NVFP4] = {{"NVFP4", 40, 64, 36}, -1, NULL, take_nvfp4},
};

const kt_lowbit_type *kt_lowbit_of(kt_lowbit t) {
    return t > KT_LOWBIT_NONE && t < KT_LOWBIT_COUNT ? &types[t].of : NULL;
}

kt_lowbit kt_lowbit_of_ggml(uint32_t ggml_type) {
    for (int t = KT_LOWBIT_NONE + 1; t < KT_LOWBIT_COUNT; t++)
        if (types[t].of.ggml_type == ggml_type) return (kt_lowbit)t;
    return KT_LOWBIT_NONE;
}

void kt_lowbit_rows(kt_lowbit t, const void *blocks, int64_t n, int64_t k, int8_t *code,
                    float *terms) {
    const type *how = &types[t];
    const uint8_t *p = blocks;
    points g;
    decoded out;

    if (how->points) build(how->points, &g);
    for (int64_t b = 0; b < n * (k / how->of.inputs); b++, p += how->of.bytes) {
        how->take(p, &g, &out);
        memcpy(code, out.code, (size_t)how->of.inputs);
        code += how->of.inputs;
        for (int i = 0; i < how->of.inputs / GROUP; i++, terms += 2) {
            terms[0] = out.scale[i];
            terms[1] = 0;
        }
    }
}

int kt_lowbit_is_finite(kt_lowbit t, const void *block) {
    const uint8_t *p = block;

    if (t == KT_LOWBIT_IQ1_M) return isfinite(kt_f16_to_f32(iq1_m_d(p)));
    return types[t].d_at < 0 || isfinite(half_at(p + types[t].d_at));
}
