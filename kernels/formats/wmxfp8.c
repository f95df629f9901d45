/* wmxfp8: MXFP8, FP8 E4M3 with one power of two per 32 inputs of an output channel:
 * w = e4m3 * 2^(e - 127), as in MiniMax-M3.
 *
 *     data    E4M3 [n, k]; 0x7f and 0xff are NaN
 *     scales  E8M0 [n, k / 32]: the byte e; 255 is NaN
 *
 * Encoding takes the smallest power of two with which no weight of a block passes 448, nearest
 * even. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/fp8_common.h"

KT_FORMAT_IS(MXFP8, 28);
KT_FORMAT_DEVICE(8, 0, 32, E8M0, NONE, E4M3, 0, 0);

#define BLOCK 32

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = (size_t)n * (size_t)(k / BLOCK);
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const uint8_t *codes = (const uint8_t *)w->data + row * w->k;
    const uint8_t *exponents = (const uint8_t *)w->scales + row * (w->k / BLOCK);

    for (int64_t i = 0; i < w->k; i++) {
        const int e = exponents[i / BLOCK];
        out[i] = e == 255 ? (double)NAN : ldexp((double)kt_f8e4m3_to_f32(codes[i]), e - 127);
    }
}

/* The exponent with which the largest magnitude a is at most 448; 0 for zeros and, so that their
 * error shows it, for what is not finite. */
static int exponent_of(float a) {
    int e;

    if (!(a >= 0x1p-100f && a <= FLT_MAX)) return 0;
    (void)frexpf(a / 448.0f, &e);
    if (ldexpf(448.0f, e - 1) >= a) e--; /* a power of two by itself */
    return e + 127;
}

static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0, error = 0;

    (void)n, (void)importance;
    for (int64_t row = row_begin; row < row_end; row++)
        for (int64_t b = 0; b < k / BLOCK; b++) {
            const float *x = src + row * k + b * BLOCK;
            const int e = exponent_of(kt_fp8_largest(0, x, BLOCK));
            ((uint8_t *)scales)[row * (k / BLOCK) + b] = (uint8_t)e;
            error += kt_fp8_encode(x, BLOCK, e > 0 ? ldexpf(1, e - 127) : 0,
                                   (uint8_t *)data + row * k + b * BLOCK, &sum);
        }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(wmxfp8) = {
    .name = "wmxfp8",
    .id = KT_W_MXFP8,
    .acts = KT_A_BF16,
    .group = BLOCK,
    .block = BLOCK,
    .bits = 8.25,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
};
