/* wq4_1: GGUF Q4_1, 20 bytes for 32 inputs as they lie in the file:
 * d@0, m@2 (f16), qs[16]@4, nibbles as in Q4_0; w = d * code + m.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q4_1, 15);
KT_FORMAT_BLOCKS(4, 0, 32, 32, F16, F16, LINEAR, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    out->minimum[0] = kt_load_u16(p + 2);
    kt_split_halves(p + 4, out->code);
}

KT_GGUF_MEMBERS(32, 20)
KT_BLOCKS_PACK_ROWS(KT_W_Q4_1)

KT_FORMAT(wq4_1) = {
    .name = "wq4_1",
    .id = KT_W_Q4_1,
    .bits = 5.0,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .terms_row = kt_blocks_terms_row,
    .block_bytes = 20,
    .d_at = 0,
    .m_at = 2,
    .ggml_type = 3,
    .ggml_name = "Q4_1",
};
