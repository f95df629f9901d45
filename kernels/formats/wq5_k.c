/* wq5_k: GGUF Q5_K, 176 bytes for 256 inputs as they lie in the file:
 * d@0, dmin@2 (f16), scales[12]@4, qh[32]@16, qs[128]@48: Q4_K with bit t of qh[i % 32] as the
 * fifth bit of the inputs of group t = i / 32.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q5_K, 22);
KT_FORMAT_BLOCKS(4, 1, 256, 32, S8, U8, LINEAR, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->d = kt_load_u16(p);
    out->dmin = kt_load_u16(p + 2);
    kt_k_scales(p + 4, out);
    for (int t = 0; t < 8; t++) {
        kt_take_bits(p + 48 + 32 * (t / 2), 4 * (t % 2), 15, out->code + 32 * t);
        kt_add_bits(p + 16, t, 1, 4, out->code + 32 * t);
    }
}

KT_GGUF_MEMBERS(256, 176)
KT_BLOCKS_PACK_ROWS(KT_W_Q5_K)

KT_FORMAT(wq5_k) = {
    .name = "wq5_k",
    .id = KT_W_Q5_K,
    .bits = 5.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
    .block_bytes = 176,
    .d_at = 0,
    .m_at = 2,
    .ggml_type = 13,
    .ggml_name = "Q5_K",
};
