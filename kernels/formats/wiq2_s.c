/* GGUF IQ2_S: blocks of 256 inputs in 82 bytes: f16 d, of 8 inputs the low byte of an index into a
 * grid of 1024 points (32 bytes), 8 signs (32 bytes) and the two high bits (8 bytes); of 16 inputs
 * 4 bits s. w = d * (2 s + 1) / 8 * (+-magnitude), magnitudes 8, 25 and 43.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid_panel.h"

KT_FORMAT_IS(IQ2_S, 31);
KT_FORMAT_BLOCKS(8, 0, 256, 16, ODD, NONE, LINEAR, 64, IQ2_S);
KT_FORMAT_DEVICE(1, 1, 16, ODD, UNIT8, IQ2_S, 0, 0);

static void take_apart(const uint8_t *p, kt_grid_block *out) {
    out->d = kt_load_u16(p);
    for (int i = 0; i < 32; i++) {
        const unsigned high = p[66 + i / 4] >> 2 * (i % 4) & 3u;
        out->index[i] = (uint16_t)(p[2 + i] | high << 8);
        out->sign[i] = p[34 + i];
    }
    for (int i = 0; i < 16; i++) out->scale[i] = p[74 + i / 2] >> 4 * (i % 2) & 15;
}

KT_GRID_MEMBERS(KT_W_IQ2_S, 82)

KT_FORMAT(wiq2_s) = {
    .name = "wiq2_s",
    .id = KT_W_IQ2_S,
    .bits = 2.5625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 82,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 22,
    .ggml_name = "IQ2_S",
    .fields_at = {2, 34, 74, 66},
};
