/* GGUF IQ3_S: blocks of 256 inputs in 110 bytes: f16 d, of 4 inputs the low byte of an index (64
 * bytes) into a grid of 512 points of 4 magnitudes, and its high bit (8 bytes); of 8 inputs 8 signs
 * (32 bytes); of 32 inputs 4 bits s. w = d * (2 s + 1) * (+-magnitude), magnitudes 1, 3 .. 15.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid_panel.h"

KT_FORMAT_IS(IQ3_S, 33);
KT_FORMAT_BLOCKS(8, 0, 256, 32, ODD, NONE, LINEAR, 64, IQ3_S);
KT_FORMAT_DEVICE(2, 1, 32, ODD, UNIT8, IQ3_S, 0, 0);

static void take_apart(const uint8_t *p, kt_grid_block *out) {
    out->d = kt_load_u16(p);
    for (int i = 0; i < 64; i++)
        out->index[i] = (uint16_t)(p[2 + i] | (p[66 + i / 8] >> i % 8 & 1u) << 8);
    for (int i = 0; i < 32; i++) out->sign[i] = p[74 + i];
    for (int u = 0; u < 8; u++) out->scale[u] = p[106 + u / 2] >> 4 * (u % 2) & 15;
}

KT_GRID_MEMBERS(KT_W_IQ3_S, 110)

KT_FORMAT(wiq3_s) = {
    .name = "wiq3_s",
    .id = KT_W_IQ3_S,
    .bits = 3.4375,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 110,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 21,
    .ggml_name = "IQ3_S",
    .fields_at = {2, 74, 106, 66},
};
