/* wnvfp4: GGUF NVFP4, 36 bytes for 64 inputs as they lie in the file:
 * e[4]@0 (E4M3 without sign), qs[32]@4. Sub-block s = i / 16 has the eight bytes at 8 s, low
 * nibbles first; w = factor of the row * e[s] * kt_e2m1_values[code] / 2. e = 127 is zero; the top
 * bit of e is not looked at, so that 255 is 480.
 *
 * scales: f32 [n], the factor of each row (files have one for a whole matrix, or none). NULL = all
 * 1.
 *
 * A packed scale has seven bits: of those 127 is free to stand for 480.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(NVFP4, 34);
KT_FORMAT_BLOCKS(4, 0, 64, 16, E4M3, NONE, E2M1, 0);

static float factor_of(const kt_matrix *w, int64_t row) {
    float factor = 1;

    if (w->scales) memcpy(&factor, (const char *)w->scales + 4 * row, sizeof factor);
    return factor;
}

static void take_apart(const uint8_t *p, kt_block *out) {
    for (int s = 0; s < 4; s++) {
        const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)(p + 4 + 8 * s));
        const __m128i both = _mm_unpacklo_epi64(kt_bits_of(v, 0, 15), kt_bits_of(v, 4, 15));
        kt_store_16(out->code + 16 * s, both);
        out->scale[s] = p[s] == 127 ? 0 : p[s] & 127;
    }
}

static void unpack(const kt_matrix *w, int64_t row, int64_t b, kt_block *out) {
    take_apart(kt_gguf_block(w, row, b, 64, 36), out);
}

static void plain_bytes(int64_t n, int64_t k, size_t *data_bytes, size_t *scale_bytes) {
    *data_bytes = (size_t)n * (size_t)(k / 64) * 36;
    *scale_bytes = sizeof(float) * (size_t)n;
}

static void decode_row(const kt_matrix *w, int64_t row, double *out) {
    const double factor = factor_of(w, row);

    kt_blocks_decode_row(w, row, out);
    for (int64_t i = 0; i < w->k; i++) out[i] *= factor;
}

static void pack_rows(const kt_matrix *w, int64_t row, int rows, uint8_t *panel, int at) {
    uint8_t *factors = panel + (size_t)(w->k / 64) * kt_p64_block_bytes(kt_p64_spec_of(KT_W_NVFP4));

    kt_blocks_pack_rows(KT_W_NVFP4, unpack, w, row, rows, panel, at);
    for (int r = 0; r < rows; r++) {
        const float factor = row + r < w->n ? factor_of(w, row + r) : 0;
        memcpy(factors + 4 * (at + r), &factor, sizeof factor);
    }
}

/* Number `code` of the E4M3 numbers without sign, which ascend. */
static double e4m3(int code) {
    return code < 8 ? ldexp(code, -9) : ldexp(8 + code % 8, code / 8 - 10);
}

/* Of the two numbers that are next to the scale so many of each that it is what they are in the
 * mean. */
static void put_scale(uint8_t *block, size_t number, double scale) {
    const double size = fabs(scale);
    int code = 0;

    while (code < 125 && e4m3(code + 1) <= size) code++;
    for (size_t s = 0; s < 4; s++) {
        const double share = fmod((double)(4 * number + s) * 0.618034, 1);
        const double above = (size - e4m3(code)) / (e4m3(code + 1) - e4m3(code));
        block[s] = (uint8_t)(code + (share < above));
    }
}

KT_FORMAT(wnvfp4) = {
    .name = "wnvfp4",
    .id = KT_W_NVFP4,
    .bits = 4.5,
    KT_BLOCK_MEMBERS(decode_row),
    .block_bytes = 36,
    .d_at = -1,
    .m_at = -1,
    .put_scale = put_scale,
    .ggml_type = 40,
    .ggml_name = "NVFP4",
};
