/* wq4_0: GGUF Q4_0, 18 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), qs[16]@2: byte i holds inputs i (low nibble) and 16 + i; w = d * (code - 8).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    kt_split_halves(p + 2, out->code);
}

KT_GGUF_MEMBERS(32, 18)
KT_BLOCKS_PACK_ROWS(KT_W_Q4_0)

KT_FORMAT(wq4_0) = {
    .name = "wq4_0",
    .id = KT_W_Q4_0,
    .acts = KT_A_INT8_G32,
    .group = 32,
    .block = 32,
    .bits = 4.5,
    .plain_bytes = plain_bytes,
    .decode_row = kt_blocks_decode_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .block_bytes = 18,
    .d_at = 0,
    .m_at = -1,
};
