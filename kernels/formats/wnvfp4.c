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
#include "kernels/formats/blocks_panel.h"

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

KT_FORMAT(wnvfp4) = {
    .name = "wnvfp4",
    .id = KT_W_NVFP4,
    .acts = KT_A_INT8_G32,
    .group = 16,
    .block = 64,
    .bits = 4.5,
    .plain_bytes = plain_bytes,
    .decode_row = decode_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .block_bytes = 36,
    .d_at = -1,
    .m_at = -1,
};
