/* wiq1_s: GGUF IQ1_S, 50 bytes for 256 inputs as they lie in the file: d@0 (f16), of 8 inputs the
 * low byte of an index@2, of 32 inputs u16@34 with three high bits of each index, 3 bits s and a
 * bit below; w = d * (2 s + 1) * (point + 1/8), - 1/8 below. The grid and panels: iq1.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/iq1_panel.h"

KT_FORMAT_IS(IQ1_S, 37);
KT_FORMAT_BLOCKS(1, 0, 256, 32, IQ1, NONE, LINEAR, 9);
KT_FORMAT_DEVICE(1, 0, 32, ODD, UNIT16, IQ1, 0, 0);

static void take_apart(const uint8_t *p, kt_iq1_block *out) {
    out->d = kt_load_u16(p);
    for (int i = 0; i < 32; i++) {
        const unsigned field = kt_load_u16(p + 34 + i / 4 * 2);
        out->index[i] = (uint16_t)(p[2 + i] | (field >> i % 4 * 3 & 7) << 8);
        out->below[i] = (uint8_t)(field >> 15);
        out->scale[i / 4] = field >> 12 & 7;
    }
}

KT_IQ1_MEMBERS(KT_W_IQ1_S, 50)

KT_FORMAT(wiq1_s) = {
    .name = "wiq1_s",
    .id = KT_W_IQ1_S,
    .bits = 1.5625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 50,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 19,
    .ggml_name = "IQ1_S",
};
