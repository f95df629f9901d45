/* wq5_1: GGUF Q5_1, 24 bytes for 32 inputs as they lie in the file:
 * d@0, m@2 (f16), qh (u32)@4, qs[16]@8 as in Q5_0; w = d * code + m.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q5_1, 17);
KT_FORMAT_BLOCKS(4, 1, 32, 32, F16, F16, LINEAR, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    out->minimum[0] = kt_load_u16(p + 2);
    kt_split_halves(p + 8, out->code);
    kt_add_fifth_bits(p + 4, out->code);
}

KT_GGUF_MEMBERS(32, 24)
KT_BLOCKS_PACK_ROWS(KT_W_Q5_1)

KT_FORMAT(wq5_1) = {
    .name = "wq5_1",
    .id = KT_W_Q5_1,
    .bits = 6.0,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
    .block_bytes = 24,
    .d_at = 0,
    .m_at = 2,
    .ggml_type = 7,
    .ggml_name = "Q5_1",
};
