/* wq4_0: GGUF Q4_0, 18 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), qs[16]@2: byte i holds inputs i (low nibble) and 16 + i; w = d * (code - 8).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q4_0, 14);
KT_FORMAT_BLOCKS(4, 0, 32, 32, F16, NONE, LINEAR, 8);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    kt_split_halves(p + 2, out->code);
}

KT_GGUF_MEMBERS(32, 18)
KT_BLOCKS_PACK_ROWS(KT_W_Q4_0)

KT_FORMAT(wq4_0) = {
    .name = "wq4_0",
    .id = KT_W_Q4_0,
    .bits = 4.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 18,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 2,
    .ggml_name = "Q4_0",
};
