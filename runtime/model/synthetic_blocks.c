/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/synthetic_blocks.h"

#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/format.h"

enum { SAMPLE = 256 }; /* blocks that the scales are derived from: at least 8192 weights */

static void put_half(uint8_t *block, int at, double v) {
    uint16_t bits = kt_f32_to_f16((float)v);
    if (at >= 0) memcpy(block + at, &bits, sizeof bits);
}

static void put_scales(const kt_format *f, double d, double m, size_t count, uint8_t *blocks) {
    for (size_t b = 0; b < count; b++) {
        uint8_t *block = blocks + b * (size_t)f->block_bytes;
        double sign = b % 2 ? -1 : 1; /* codes from -8 to 7 have a mean; ggml signs scales, too */
        put_half(block, f->d_at, sign * d);
        put_half(block, f->m_at, sign * m);
        if (f->put_scale) f->put_scale(block, b, sign * d);
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
