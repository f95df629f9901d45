/* wq4_k: GGUF Q4_K, 144 bytes for 256 inputs as they lie in the file:
 * d@0, dmin@2 (f16), scales[12]@4, qs[128]@16. Inputs of group t = i / 32 are nibble t % 2 of
 * qs[32 (t / 2) + i % 32]; w = d * sc[t] * code - dmin * mn[t], the 6-bit sc and mn as kt_k_scales
 * has them. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q4_K, 21);
KT_FORMAT_BLOCKS(4, 0, 256, 32, S8, U8, LINEAR, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->d = kt_load_u16(p);
    out->dmin = kt_load_u16(p + 2);
    kt_k_scales(p + 4, out);
    for (int t = 0; t < 8; t++)
        kt_take_bits(p + 16 + 32 * (t / 2), 4 * (t % 2), 15, out->code + 32 * t);
}

KT_GGUF_MEMBERS(256, 144)
KT_BLOCKS_PACK_ROWS(KT_W_Q4_K)

KT_FORMAT(wq4_k) = {
    .name = "wq4_k",
    .id = KT_W_Q4_K,
    .bits = 4.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
    .block_bytes = 144,
    .d_at = 0,
    .m_at = 2,
    .ggml_type = 12,
    .ggml_name = "Q4_K",
};
