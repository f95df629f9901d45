/* wiq4_xs: GGUF IQ4_XS, 136 bytes for 256 inputs as they lie in the file:
 * d@0 (f16), scales_h (u16)@2, scales_l[4]@4, qs[128]@8. Group b = i / 32 has the nibbles of
 * qs[16b .. 16b + 15] as in Q4_0 and the scale s: its low four bits are nibble b % 2 of scales_l[b / 2],
 * its high two bits 2b of scales_h; w = d * (s - 32) * kt_iq4_values[code].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(IQ4_XS, 25);
KT_FORMAT_BLOCKS(4, 0, 256, 32, S8, NONE, IQ4, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    unsigned high = kt_load_u16(p + 2);

    out->d = kt_load_u16(p);
    for (int b = 0; b < 8; b++) {
        unsigned s = (p[4 + b / 2] >> 4 * (b % 2) & 15u) | (high >> 2 * b & 3) << 4;
        out->scale[b] = (uint8_t)(s - 32);
        kt_split_halves(p + 8 + 16 * b, out->code + 32 * b);
    }
}

KT_GGUF_MEMBERS(256, 136)
KT_BLOCKS_PACK_ROWS(KT_W_IQ4_XS)

KT_FORMAT(wiq4_xs) = {
    .name = "wiq4_xs",
    .id = KT_W_IQ4_XS,
    .bits = 4.25,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 136,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 23,
    .ggml_name = "IQ4_XS",
};
