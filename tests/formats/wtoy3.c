/* wtoy3: a format that does not exist, for toy.sh: 14 bytes for 32 inputs, d@0 (f16), two low bits of
 * each code@2 (four to a byte), the third bit@10 (eight to a byte); w = d * (code - 4). All that
 * a tree with this format has more is this file. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(TOY3, 39);
KT_FORMAT_BLOCKS(2, 1, 32, 32, F16, NONE, LINEAR, 4);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    for (int i = 0; i < 32; i++)
        out->code[i] =
            (uint8_t)((p[2 + i / 4] >> i % 4 * 2 & 3) | (p[10 + i / 8] >> i % 8 & 1) << 2);
}

KT_GGUF_MEMBERS(32, 14)
KT_BLOCKS_PACK_ROWS(KT_W_TOY3)

KT_FORMAT(wtoy3) = {
    .name = "wtoy3",
    .id = KT_W_TOY3,
    .bits = 3.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 14,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 900,
    .ggml_name = "TOY3",
};
