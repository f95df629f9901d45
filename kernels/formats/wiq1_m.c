/* wiq1_m: GGUF IQ1_M, 56 bytes for 256 inputs as they lie in the file: of 8 inputs the low byte of
 * an index@0 and a nibble@32 with its three high bits and a bit below; four u16@48, each with 3
 * bits s of four times 16 inputs and, on top, four bits of d (f16); w = d * (2 s + 1) * (point +
 * 1/8), - 1/8 below. The grid and panels: iq1.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kernels/formats/iq1_panel.h"

KT_FORMAT_IS(IQ1_M, 38);
KT_FORMAT_BLOCKS(1, 0, 256, 16, IQ1, NONE, LINEAR, 9);
KT_FORMAT_DEVICE(1, 0, 16, ODD, UNIT16, IQ1, 0, 0);

static void take_apart(const uint8_t *p, kt_iq1_block *out) {
    for (int i = 0; i < 32; i++) {
        const unsigned field = p[32 + i / 2] >> i % 2 * 4;
        out->index[i] = (uint16_t)(p[i] | (field & 7) << 8);
        out->below[i] = field >> 3 & 1;
    }
    for (int g = 0; g < 16; g++) out->scale[g] = kt_load_u16(p + 48 + g / 4 * 2) >> g % 4 * 3 & 7;
    out->d = kt_iq1_m_d(p);
}

KT_IQ1_MEMBERS(KT_W_IQ1_M, 56)

static void put_scale(uint8_t *block, size_t number, double scale) {
    (void)number;
    kt_iq1_m_put_d(block, kt_f32_to_f16((float)scale));
}

KT_FORMAT(wiq1_m) = {
    .name = "wiq1_m",
    .id = KT_W_IQ1_M,
    .bits = 1.75,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 56,
    .d_at = -1,
    .m_at = -1,
    .scale_of = kt_iq1_m_d,
    .put_scale = put_scale,
    .ggml_type = 29,
    .ggml_name = "IQ1_M",
};
