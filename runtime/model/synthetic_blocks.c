/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/synthetic_blocks.h"

#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/iq1.h"

enum { SAMPLE = 256 }; /* blocks that the scales are derived from: at least 8192 weights */

static void put_half(uint8_t *block, int at, double v) {
    uint16_t bits = kt_f32_to_f16((float)v);
    if (at >= 0) memcpy(block + at, &bits, sizeof bits);
}

/* Number `code` of the E4M3 numbers without sign, which ascend. */
static double e4m3(int code) {
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* The four E4M3 scales of a block: of the two that are next to d so many of each that d is what
 * they are in the mean. */
static void put_e4m3(double d, size_t b, uint8_t scale[4]) {
    int code = 0;

    while (code < 125 && e4m3(code + 1) <= d) code++;
    for (size_t s = 0; s < 4; s++) {
        const double share = fmod((double)(4 * b + s) * 0.618034, 1);
        const double above = (d - e4m3(code)) / (e4m3(code + 1) - e4m3(code));
        scale[s] = (uint8_t)(code + (share < above));
    }
}

/* MXFP4 and NVFP4 have no f16: the exponent in byte 0 counts from 2^-128, or byte by byte E4M3. */
static void put_scales(const kt_format *f, double d, double m, size_t count, uint8_t *blocks) {
    for (size_t b = 0; b < count; b++) {
        uint8_t *block = blocks + b * (size_t)f->block_bytes;
        double sign = b % 2 ? -1 : 1; /* codes from -8 to 7 have a mean; ggml signs scales, too */
        put_half(block, f->d_at, sign * d);
        put_half(block, f->m_at, sign * m);
        if (f->id == KT_W_NVFP4)
            put_e4m3(d, b, block);
        else if (f->id == KT_W_IQ1_M)
            kt_iq1_m_put_d(block, kt_f32_to_f16((float)(sign * d)));
        else if (f->d_at < 0)
            block[0] = (uint8_t)(128 + lround(log2(d)));
    }
}

/* Mean of the weights, signs of scales taken out, and of their squares. */
static void measure(const kt_format *f, size_t count, const uint8_t *blocks, double *mean,
                    double *square) {
    const kt_matrix w = {
        .format = f->id, .n = (int64_t)count, .k = f->block, .data = blocks}; /* a block per row */
    const double n = (double)count * (double)f->block;
    double row[256];

    *mean = *square = 0;
    for (int64_t b = 0; b < w.n; b++) {
        f->decode_row(&w, b, row);
        for (int64_t i = 0; i < f->block; i++) {
            *mean += (b % 2 ? -row[i] : row[i]) / n;
            *square += row[i] * row[i] / n;
        }
    }
}

void kt_synthetic_blocks(const kt_format *format, size_t count, double deviation, kt_rng *rng,
                         uint8_t *out) {
    const size_t bytes = count * (size_t)format->block_bytes,
                 sample = count < SAMPLE ? count : SAMPLE;
    double mean, with_minimum, square, minimum = 0;

    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t bits = kt_rng_u64(rng);
        memcpy(out + i, &bits, bytes - i < sizeof bits ? bytes - i : sizeof bits);
    }
    /* With d = 1: the minimum that takes the mean out, then the deviation that is left. */
    put_scales(format, 1, 0, sample, out);
    measure(format, sample, out, &mean, &square);
    if (format->m_at >= 0) {
        put_scales(format, 1, 1, sample, out);
        measure(format, sample, out, &with_minimum, &square);
        minimum = mean / (mean - with_minimum);
        put_scales(format, 1, minimum, sample, out);
        measure(format, sample, out, &mean, &square);
    }
    put_scales(format, deviation / sqrt(square), minimum * deviation / sqrt(square), count, out);
}
