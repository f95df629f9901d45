/* wtq1_0: GGUF TQ1_0, 54 bytes for 256 inputs as they lie in the file: ternary digits, five in each
 * of 48 bytes@0 and four in each of 4 bytes@48, and d@52 (f16); w = d * (digit - 1). A byte b is
 * the fraction b / 256 in base 3, rounded up: times 3^n modulo 1, digit n stands before the point
 * of three times that. Inputs 32 n + i (n < 5) are digit n of byte i, 160 + 16 n + i those of byte
 * 32 + i, 240 + 4 n + i (n < 4) those of byte 48 + i.
 *
 * Panels hold digits in two bits, as wtq2_0: 2.06 bits a weight, where five digits in a byte would
 * take 1.69. A digit costs three operations then instead of one, and a stream at half the speed
 * saves less than it costs.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(TQ1_0, 36);
KT_FORMAT_BLOCKS(2, 0, 256, 256, F16, NONE, LINEAR, 1);

/* The next digit of four bytes each in words of 16 bits, which keep the rest of the fraction. */
static inline __m128i next_digit(__m128i *fraction) {
    const __m128i times = _mm_mullo_epi16(*fraction, _mm_set1_epi16(3));

    *fraction = _mm_and_si128(times, _mm_set1_epi16(255));
    return _mm_srli_epi16(times, 8);
}

/* Digits of `bytes` bytes (a multiple of 4, 32 at most): the first of all, then the second ... */
static void take_digits(const uint8_t *p, int bytes, int digits, uint8_t *code) {
    for (int i = 0; i < bytes; i += 4) {
        const __m128i zero = _mm_setzero_si128();
        __m128i fraction;
        int32_t four;

        memcpy(&four, p + i, sizeof four);
        fraction = _mm_unpacklo_epi8(_mm_cvtsi32_si128(four), zero);
        for (int n = 0; n < digits; n++) {
            four = _mm_cvtsi128_si32(_mm_packus_epi16(next_digit(&fraction), zero));
            memcpy(code + bytes * n + i, &four, sizeof four);
        }
    }
}

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p + 52);
    take_digits(p, 32, 5, out->code);
    take_digits(p + 32, 16, 5, out->code + 160);
    take_digits(p + 48, 4, 4, out->code + 240);
}

KT_GGUF_MEMBERS(256, 54)
KT_BLOCKS_PACK_ROWS(KT_W_TQ1_0)

KT_FORMAT(wtq1_0) = {
    .name = "wtq1_0",
    .id = KT_W_TQ1_0,
    .bits = 1.6875,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 54,
    .d_at = 52,
    .m_at = -1,
    .ggml_type = 34,
    .ggml_name = "TQ1_0",
};
