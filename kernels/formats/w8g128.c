/* w8g128: int8 codes in groups of 128 inputs, one bfloat16 scale per group: w = scale * code, codes
 * -128..127 (we write -127..127).
 *
 *     data    int8 [n, k]
 *     scales  bfloat16 [n, k/128]
 *
 * The searched scale is rounded to bfloat16 before the codes are chosen: they absorb that rounding.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kernels/formats/blocks_panel.h"
#include "kernels/formats/int8_search.h"

KT_FORMAT_IS(INT8_G128, 11);
KT_FORMAT_BLOCKS(8, 0, 128, 128, BF16, NONE, LINEAR, 128);

#define GROUP 128

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)k;
    *scale_bytes = 2 * (size_t)n * (size_t)(k / GROUP);
}

static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {
    const uint8_t *q = (const uint8_t *)w->data + row * w->k + b * GROUP;
    out->scale[0] = ((const uint16_t *)w->scales)[row * (w->k / GROUP) + b];
    for (int i = 0; i < GROUP; i++) out->code[i] = q[i] ^ 0x80; /* value + 128 */
}

KT_BLOCKS_PACK_ROWS(KT_W_INT8_G128)

/* A group that holds an infinity or NaN becomes zeros, and the error returned is not finite. */
static double encode_rows(const float *src, int64_t n, int64_t k, const float *importance,
                          int64_t row_begin, int64_t row_end, void *data, void *scales,
                          double *energy) {
    const int64_t groups = k / GROUP;
    double sum = 0, error = 0;

    (void)n;
    for (int64_t g = row_begin * groups; g < row_end * groups; g++) {
        const float *x = src + g * GROUP;
        const float *v = importance ? importance + g % groups * GROUP : NULL;
        uint16_t bits = kt_f32_to_bf16(kt_int8_search(x, GROUP, v, 25));
        ((uint16_t *)scales)[g] = bits;
        error += kt_int8_round(x, GROUP, kt_bf16_to_f32(bits), (int8_t *)data + g * GROUP);
        for (int i = 0; energy && i < GROUP; i++) sum += (double)x[i] * x[i];
    }
    if (energy) *energy += sum;
    return error;
}

KT_FORMAT(w8g128) = {
    .name = "w8g128",
    .id = KT_W_INT8_G128,
    .bits = 8 + 16.0 / GROUP,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .encode_rows = encode_rows,
};
