/* wq5_0: GGUF Q5_0, 22 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), qh (u32)@2: fifth bits by input, qs[16]@6 as in Q4_0; w = d * (code - 16).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q5_0, 16);
KT_FORMAT_BLOCKS(4, 1, 32, 32, F16, NONE, LINEAR, 16);

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
    .bits = 5.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 22,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 6,
    .ggml_name = "Q5_0",
};
