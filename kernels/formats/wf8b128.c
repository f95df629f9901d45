/* wf8b128: FP8 E4M3 in blocks of 128 outputs x 128 inputs with one f32 scale: w = e4m3 * scale, as in
 * DeepSeek-V3, Qwen3-FP8, GLM-4.x-FP8 and MiniMax-M2 ("weight_scale_inv" multiplies, despite its name).
 *
 *     data    E4M3 [n, k]; 0x7f and 0xff are NaN
 *     scales  float [ceil(n / 128), ceil(k / 128)], blocks at the edges may be cut off
 *
 * Scales that a checkpoint stores as BF16 or E8M0 are widened to f32 when loaded, which is exact.
 *
 * Encoding is that of the checkpoints' makers: a block's largest magnitude becomes 448, nearest even. Whoever
 * encodes some rows of a block looks at all of them in the source, and who has its first row writes the scale.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/fp8_common.h"

KT_FORMAT_IS(FP8_B128, 12);
KT_FORMAT_DEVICE(8, 0, 128, F32, NONE, E4M3, 0, 1);

#define BLOCK 128

static int64_t blocks(int64_t count) {
    return (count + BLOCK - 1) / BLOCK;
}

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = sizeof(float) * (size_t)blocks(n) * (size_t)blocks(k);
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const float *scales = (const float *)w->scales + row / BLOCK * blocks(w->k);
    for (int64_t b = 0; b < blocks(w->k); b++) {
        int64_t end = (b + 1) * BLOCK < w->k ? (b + 1) * BLOCK : w->k;
        kt_fp8_decode(w, row, b * BLOCK, end, scales[b], out);
    }
}

/* Largest magnitude of the block that holds row `row` and starts at input `begin`. */
static float block_largest(const float *src, int64_t n, int64_t k, int64_t row, int64_t begin,
                           int64_t end) {
    int64_t first = row / BLOCK * BLOCK, last = first + BLOCK < n ? first + BLOCK : n;
    float a = 0;

    for (int64_t r = first; r < last; r++) a = kt_fp8_largest(a, src + r * k + begin, end - begin);
    return a;
}

static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0, error = 0;

    (void)importance;
    for (int64_t row = row_begin; row < row_end;) {
        int64_t stop = (row / BLOCK + 1) * BLOCK < row_end ? (row / BLOCK + 1) * BLOCK : row_end;
        for (int64_t b = 0; b < blocks(k); b++) {
            int64_t begin = b * BLOCK, end = begin + BLOCK < k ? begin + BLOCK : k;
            float scale = kt_fp8_scale(block_largest(src, n, k, row, begin, end));
            if (row % BLOCK == 0) ((float *)scales)[row / BLOCK * blocks(k) + b] = scale;
            for (int64_t r = row; r < stop; r++)
                error += kt_fp8_encode(src + r * k + begin, end - begin, scale,
                                       (uint8_t *)data + r * k + begin, &sum);
        }
        row = stop;
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(wf8b128) = {
    .name = "wf8b128",
    .id = KT_W_FP8_B128,
    .acts = KT_A_BF16,
    .group = BLOCK,
    .scale_rows = BLOCK,
    .bits = 8,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
};
