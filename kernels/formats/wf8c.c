/* wf8c: FP8 E4M3 with one f32 scale per output channel: w = e4m3 * scale, as in GLM-4.7-FP8
 * (compressed-tensors "float-quantized", strategy "channel").
 *
 *     data    E4M3 [n, k]; 0x7f and 0xff are NaN
 *     scales  float [n]; a per-tensor scale is repeated, BF16 is widened, both exactly
 *
 * Encoding sends a row's largest magnitude to 448. A search gains little here: steps grow with the
 * value, so another scale only moves the errors about. SPDX-License-Identifier: Apache-2.0 */
#include <float.h>
#include <math.h>

#include "kernels/formats/fp8_common.h"

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = sizeof(float) * (size_t)n;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    kt_fp8_decode(w, row, 0, w->k, ((const float *)w->scales)[row], out);
}

/* Largest magnitude; NaN when an element is infinite or NaN. */
static float largest(const float *x, int64_t k) {
    float a = 0, taint = 0;
    for (int64_t i = 0; i < k; i++) {
        a = fabsf(x[i]) > a ? fabsf(x[i]) : a;
        taint += x[i] * 0.0f;
    }
    return a + taint;
}

/* A row that holds an infinity or NaN becomes zeros, and the error returned is not finite. Rows below
 * 2^-100 are zeros to any model and keep the division in range. */
static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0, error = 0;

    (void)n, (void)importance;
    for (int64_t row = row_begin; row < row_end; row++) {
        const float *x = src + row * k;
        uint8_t *out = (uint8_t *)data + row * k;
        float a = largest(x, k), scale = a >= 0x1p-100f && a <= FLT_MAX ? a / 448.0f : 0;
        ((float *)scales)[row] = scale;
        for (int64_t i = 0; i < k; i++) {
            double lost;
            out[i] = scale > 0 ? kt_f32_to_f8e4m3(x[i] / scale) : 0;
            lost = (double)x[i] - (double)kt_f8e4m3_to_f32(out[i]) * scale;
            error += lost * lost;
            sum += (double)x[i] * x[i];
        }
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
