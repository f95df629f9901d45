/* GGUF IQ2_XXS: blocks of 256 inputs in 66 bytes: f16 d, of 32 inputs four indices (bytes) into a
 * grid of 256 points of 8 magnitudes, then a word with 7 signs of each point and 4 bits s; the
 * eighth sign makes their number even. w = d * (2 s + 1) / 8 * (+-magnitude), magnitudes 8, 25 and
 * 43. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid_panel.h"

KT_FORMAT_IS(IQ2_XXS, 29);
KT_FORMAT_BLOCKS(8, 0, 256, 32, ODD, NONE, LINEAR, 64, IQ2_XXS);
KT_FORMAT_DEVICE(2, 0, 32, INSIDE, NONE, IQ2_XXS, 0, 0);

static void take_apart(const uint8_t *p, kt_grid_block *out) {
    out->d = kt_load_u16(p);
    for (int u = 0; u < 8; u++) {
        for (int i = 0; i < 4; i++) out->index[4 * u + i] = p[2 + 8 * u + i];
        kt_grid_signs_and_scale(p + 6 + 8 * u, out->sign + 4 * u, out->scale + u);
    }
}

KT_GRID_MEMBERS(KT_W_IQ2_XXS, 66)

KT_FORMAT(wiq2_xxs) = {
    .name = "wiq2_xxs",
    .id = KT_W_IQ2_XXS,
    .bits = 2.0625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 66,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 16,
    .ggml_name = "IQ2_XXS",
    .fields_at = {2, -1, -1, -1},
};
