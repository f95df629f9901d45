/* wf16: IEEE half, rounded to nearest even; 65520 and above become infinity.
 * Kernels multiply with abf16: the product of 11 and 8 bits is exact in f32.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kernels/formats/format.h"

KT_FORMAT_IS(F16, 5);

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = 2 * (size_t)n * (size_t)k;
    *scale_bytes = 0;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const uint16_t *x = (const uint16_t *)w->data + row * w->k;
    for (int64_t i = 0; i < w->k; i++) out[i] = kt_f16_to_f32(x[i]);
}

static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    uint16_t *out = data;
    double sum = 0, error = 0;

    (void)n, (void)scales, (void)importance;
    for (int64_t i = row_begin * k; i < row_end * k; i++) {
        double lost;
        out[i] = kt_f32_to_f16(src[i]);
        lost = (double)src[i] - kt_f16_to_f32(out[i]);
        error += lost * lost;
        sum += (double)src[i] * src[i];
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(wf16) = {
    .name = "wf16",
    .id = KT_W_F16,
    .acts = KT_A_BF16,
    .bits = 16,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
    .ggml_type = 1,
    .ggml_name = "F16",
};
