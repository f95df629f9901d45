/* wf8c: FP8 E4M3 with one f32 scale per output channel: w = e4m3 * scale, as in GLM-4.7-FP8
 * (compressed-tensors "float-quantized", strategy "channel").
 *
 *     data    E4M3 [n, k]; 0x7f and 0xff are NaN
 *     scales  float [n]; a per-tensor scale is repeated, BF16 is widened, both exactly
 *
 * Encoding sends a row's largest magnitude to 448. A search gains little here: steps grow with the
 * value, so another scale only moves the errors about. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/fp8_common.h"

KT_FORMAT_IS(FP8_CHANNEL, 13);
KT_FORMAT_DEVICE(8, 0, 0, F32, NONE, E4M3, 0, 1);

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = sizeof(float) * (size_t)n;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    kt_fp8_decode(w, row, 0, w->k, ((const float *)w->scales)[row], out);
}

static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0, error = 0;

    (void)n, (void)importance;
    for (int64_t row = row_begin; row < row_end; row++) {
        const float *x = src + row * k, scale = kt_fp8_scale(kt_fp8_largest(0, x, k));
        ((float *)scales)[row] = scale;
        error += kt_fp8_encode(x, k, scale, (uint8_t *)data + row * k, &sum);
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(wf8c) = {
    .name = "wf8c",
    .id = KT_W_FP8_CHANNEL,
    .acts = KT_A_BF16,
    .bits = 8,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
};
