/* wq3_k: GGUF Q3_K, 110 bytes for 256 inputs as they lie in the file:
 * hmask[32]@0, qs[64]@32, scales[12]@96, d@108 (f16). With h = i / 128, j = i % 128 / 32,
 * l = i % 32: code = bits 2j of qs[32h + l], plus 4 if bit 4h + j of hmask[l] is set; w = d * s *
 * (code - 4). The scale s + 32 of group t = i / 16 has its low four bits in nibble t / 8 of
 * scales[t % 8] and its high two in bits 2 (t / 4) of scales[8 + t % 4].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q3_K, 20);
KT_FORMAT_BLOCKS(2, 1, 256, 16, S8, NONE, LINEAR, 4);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->d = kt_load_u16(p + 108);
    for (int t = 0; t < 16; t++) {
        int low = p[96 + t % 8] >> 4 * (t / 8) & 15, high = p[104 + t % 4] >> 2 * (t / 4) & 3;
        out->scale[t] = (uint8_t)((low | high << 4) - 32);
    }
    for (int t = 0; t < 8; t++) { /* t = 4h + j */
        kt_take_bits(p + 32 + 32 * (t / 4), 2 * (t % 4), 3, out->code + 32 * t);
        kt_add_bits(p, t, 1, 2, out->code + 32 * t);
    }
}

KT_GGUF_MEMBERS(256, 110)
KT_BLOCKS_PACK_ROWS(KT_W_Q3_K)

KT_FORMAT(wq3_k) = {
    .name = "wq3_k",
    .id = KT_W_Q3_K,
    .bits = 3.4375,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 110,
    .d_at = 108,
    .m_at = -1,
    .ggml_type = 11,
    .ggml_name = "Q3_K",
};
