/* GGUF IQ2_XS: blocks of 256 inputs in 74 bytes: f16 d, of 8 inputs u16 with 9 bits of an index
 * into a grid of 512 points and 7 signs, whose eighth makes their number even; of 16 inputs 4 bits
 * s. w = d * (2 s + 1) / 8 * (+-magnitude), magnitudes 8, 25 and 43.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid_panel.h"

KT_FORMAT_IS(IQ2_XS, 30);
KT_FORMAT_BLOCKS(8, 0, 256, 16, ODD, NONE, LINEAR, 64, IQ2_XS);
KT_FORMAT_DEVICE(2, 0, 16, ODD, NONE, IQ2_XS, 0, 0);

static void take_apart(const uint8_t *p, kt_grid_block *out) {
    out->d = kt_load_u16(p);
    for (int i = 0; i < 32; i++) {
        const unsigned u = kt_load_u16(p + 2 + 2 * i);
        out->index[i] = u & 511;
        out->sign[i] = kt_grid_signs(u >> 9);
    }
    for (int i = 0; i < 16; i++) out->scale[i] = p[66 + i / 2] >> 4 * (i % 2) & 15;
}

KT_GRID_MEMBERS(KT_W_IQ2_XS, 74)

KT_FORMAT(wiq2_xs) = {
    .name = "wiq2_xs",
    .id = KT_W_IQ2_XS,
    .bits = 2.3125,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 74,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 17,
    .ggml_name = "IQ2_XS",
    .fields_at = {2, -1, 66, -1},
};
