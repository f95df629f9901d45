/* wq5_0: GGUF Q5_0, 22 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), qh (u32)@2: fifth bits by input, qs[16]@6 as in Q4_0; w = d * (code - 16).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    kt_split_halves(p + 6, out->code);
    kt_add_fifth_bits(p + 2, out->code);
}

KT_GGUF_MEMBERS(32, 22)
KT_BLOCKS_PACK_ROWS(KT_W_Q5_0)

KT_FORMAT(wq5_0) = {
    .name = "wq5_0",
    .id = KT_W_Q5_0,
    .acts = KT_A_INT8_G32,
    .group = 32,
    .block = 32,
    .bits = 5.5,
    .plain_bytes = plain_bytes,
    .decode_row = kt_blocks_decode_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .block_bytes = 22,
    .d_at = 0,
    .m_at = -1,
};
