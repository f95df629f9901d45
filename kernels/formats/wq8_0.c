/* wq8_0: GGUF Q8_0, 34 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), int8 qs[32]@2; w = d * qs[i].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(Q8_0, 18);
KT_FORMAT_BLOCKS(8, 0, 32, 32, F16, NONE, LINEAR, 128);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    for (int i = 0; i < 32; i++) out->code[i] = p[2 + i] ^ 0x80; /* value + 128 */
}

KT_GGUF_MEMBERS(32, 34)
KT_BLOCKS_PACK_ROWS(KT_W_Q8_0)

KT_FORMAT(wq8_0) = {
    .name = "wq8_0",
    .id = KT_W_Q8_0,
    .bits = 8.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 34,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 8,
    .ggml_name = "Q8_0",
};
