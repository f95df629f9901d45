/* wq6_k: GGUF Q6_K, 210 bytes for 256 inputs as they lie in the file:
 * ql[128]@0, qh[64]@128, int8 scales[16]@192, d@208 (f16). With h = i / 128, j = i % 128 / 32,
 * l = i % 32: low four bits = nibble j / 2 of ql[64h + 32 (j % 2) + l], high two = bits 2j of
 * qh[32h + l]; w = d * scales[i / 16] * (code - 32).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q6_K, 23);
KT_FORMAT_BLOCKS(4, 2, 256, 16, S8, NONE, LINEAR, 32);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->d = kt_load_u16(p + 208);
    for (int g = 0; g < 16; g++) out->scale[g] = p[192 + g];
    for (int t = 0; t < 8; t++) {
        const int h = t / 4, j = t % 4;
        kt_take_bits(p + 64 * h + 32 * (j % 2), 4 * (j / 2), 15, out->code + 32 * t);
        kt_add_bits(p + 128 + 32 * h, 2 * j, 3, 4, out->code + 32 * t);
    }
}

KT_GGUF_MEMBERS(256, 210)
KT_BLOCKS_PACK_ROWS(KT_W_Q6_K)

KT_FORMAT(wq6_k) = {
    .name = "wq6_k",
    .id = KT_W_Q6_K,
    .bits = 6.5625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 210,
    .d_at = 208,
    .m_at = -1,
    .ggml_type = 14,
    .ggml_name = "Q6_K",
};
