/* wf32: plain float. Norms and small matrices whose rounding would show.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/formats/format.h"

KT_FORMAT_IS(F32, 4);

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = sizeof(float) * (size_t)n * (size_t)k;
    *scale_bytes = 0;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const float *x = (const float *)w->data + row * w->k;
    for (int64_t i = 0; i < w->k; i++) out[i] = x[i];
}

static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    double sum = 0;

    (void)n, (void)scales, (void)importance;
    memcpy((float *)data + row_begin * k, src + row_begin * k,
           sizeof(float) * (size_t)(row_end - row_begin) * (size_t)k);
    for (int64_t i = row_begin * k; i < row_end * k; i++) sum += (double)src[i] * src[i];
    if (energy) *energy += sum;
    return 0;
}

KT_FORMAT(wf32) = {
    .name = "wf32",
    .id = KT_W_F32,
    .acts = KT_A_F32,
    .bits = 32,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .encode_rows = encode_rows,
    .ggml_type = 0,
    .ggml_name = "F32",
};
