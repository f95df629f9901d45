/* wq5_k: GGUF Q5_K, 176 bytes for 256 inputs as they lie in the file:
 * d@0, dmin@2 (f16), scales[12]@4, qh[32]@16, qs[128]@48: Q4_K with bit t of qh[i % 32] as the
 * fifth bit of the inputs of group t = i / 32.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

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
    .acts = KT_A_INT8_G32,
    .group = 32,
    .block = 256,
    .bits = 5.5,
    .plain_bytes = plain_bytes,
    .decode_row = kt_blocks_decode_row,
    .terms_row = kt_blocks_terms_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .block_bytes = 176,
    .d_at = 0,
    .m_at = 2,
};
