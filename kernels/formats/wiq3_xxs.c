/* GGUF IQ3_XXS: blocks of 256 inputs in 98 bytes: f16 d, of 4 inputs an index (64 bytes) into a
 * grid of 256 points of 4 magnitudes; of 32 inputs a word with 7 signs of each 8 of them and 4 bits
 * s; the eighth sign makes their number even. w = d * (2 s + 1) / 4 * (+-magnitude), magnitudes 4,
 * 12 .. 52 and 62.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/grid_panel.h"

KT_FORMAT_IS(IQ3_XXS, 32);
KT_FORMAT_BLOCKS(8, 0, 256, 32, ODD, NONE, LINEAR, 64, IQ3_XXS);
KT_FORMAT_DEVICE(2, 1, 32, INSIDE, NONE, IQ3_XXS, 0, 0);

static void take_apart(const uint8_t *p, kt_grid_block *out) {
    out->d = kt_load_u16(p);
    for (int i = 0; i < 64; i++) out->index[i] = p[2 + i];
    for (int u = 0; u < 8; u++)
        kt_grid_signs_and_scale(p + 66 + 4 * u, out->sign + 4 * u, out->scale + u);
}

KT_GRID_MEMBERS(KT_W_IQ3_XXS, 98)

KT_FORMAT(wiq3_xxs) = {
    .name = "wiq3_xxs",
    .id = KT_W_IQ3_XXS,
    .bits = 3.0625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 98,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 18,
    .ggml_name = "IQ3_XXS",
    .fields_at = {2, 66, -1, -1},
};
