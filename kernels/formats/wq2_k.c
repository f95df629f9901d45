/* wq2_k: GGUF Q2_K, 84 bytes for 256 inputs as they lie in the file:
 * scales[16]@0, qs[64]@16, d@80, dmin@82 (f16). With h = i / 128, j = i % 128 / 32, l = i % 32:
 * code = bits 2j of qs[32h + l], s = scales[i / 16], w = d * (s & 15) * code - dmin * (s >> 4).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q2_K, 19);
KT_FORMAT_BLOCKS(2, 0, 256, 16, NIBBLES, NIBBLE, LINEAR, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->d = kt_load_u16(p + 80);
    out->dmin = kt_load_u16(p + 82);
    for (int g = 0; g < 16; g++) out->scale[g] = p[g];
    for (int t = 0; t < 8; t++)
        kt_take_bits(p + 16 + 32 * (t / 4), 2 * (t % 4), 3, out->code + 32 * t);
}

KT_GGUF_MEMBERS(256, 84)
KT_BLOCKS_PACK_ROWS(KT_W_Q2_K)

KT_FORMAT(wq2_k) = {
    .name = "wq2_k",
    .id = KT_W_Q2_K,
    .bits = 2.625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
    .block_bytes = 84,
    .d_at = 80,
    .m_at = 82,
    .ggml_type = 10,
    .ggml_name = "Q2_K",
};
