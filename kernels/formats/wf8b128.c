/* wf8b128: FP8 E4M3 in blocks of 128 outputs x 128 inputs with one f32 scale: w = e4m3 * scale, as in
 * DeepSeek-V3, Qwen3-FP8, GLM-4.x-FP8 and MiniMax-M2 ("weight_scale_inv" multiplies, despite its name).
 *
 *     data    E4M3 [n, k]; 0x7f and 0xff are NaN
 *     scales  float [ceil(n / 128), ceil(k / 128)], blocks at the edges may be cut off
 *
 * Scales that a checkpoint stores as BF16 or E8M0 are widened to f32 when loaded, which is exact.
 * We never encode this format.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/fp8_common.h"

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

KT_FORMAT(wf8b128) = {
    .name = "wf8b128",
    .id = KT_W_FP8_B128,
    .acts = KT_A_BF16,
    .group = BLOCK,
    .bits = 8,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
};
