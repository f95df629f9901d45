/* w8c: int8 codes, one f32 scale per row: w = scale * code, codes -128..127 (we write -127..127).
 *
 *     data    int8 [n, k]
 *     scales  float [n]
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/format.h"
#include "kernels/formats/int8_search.h"

KT_FORMAT_IS(INT8_CHANNEL, 2);
KT_FORMAT_DEVICE(8, 0, 0, F32, NONE, LINEAR, 128, 1);

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = sizeof(float) * (size_t)n;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const int8_t *q = (const int8_t *)w->data + row * w->k;
    double scale = ((const float *)w->scales)[row];
    for (int64_t i = 0; i < w->k; i++) out[i] = scale * q[i];
}

/* A row that holds an infinity or NaN becomes zeros, and the error returned is not finite. */
static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0, error = 0;

    (void)n;
    for (int64_t row = row_begin; row < row_end; row++) {
        const float *x = src + row * k;
        float scale = kt_int8_search(x, k, importance, 8);
        ((float *)scales)[row] = scale;
        error += kt_int8_round(x, k, scale, (int8_t *)data + row * k);
        for (int64_t i = 0; energy && i < k; i++) sum += (double)x[i] * x[i];
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(w8c) = {
    .name = "w8c",
    .id = KT_W_INT8_CHANNEL,
    .acts = KT_A_INT8_G32,
    .block = 8,
    .bits = 8,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
};
