/* wtq2_0: GGUF TQ2_0, 66 bytes for 256 inputs as they lie in the file: qs[64]@0, d@64 (f16). With
 * h = i / 128, j = i % 128 / 32, l = i % 32: code = bits 2j of qs[32h + l], w = d * (code - 1).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(TQ2_0, 35);
KT_FORMAT_BLOCKS(2, 0, 256, 256, F16, NONE, LINEAR, 1);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p + 64);
    for (int t = 0; t < 8; t++) kt_take_bits(p + 32 * (t / 4), 2 * (t % 4), 3, out->code + 32 * t);
}

KT_GGUF_MEMBERS(256, 66)
KT_BLOCKS_PACK_ROWS(KT_W_TQ2_0)

KT_FORMAT(wtq2_0) = {
    .name = "wtq2_0",
    .id = KT_W_TQ2_0,
    .bits = 2.0625,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 66,
    .d_at = 64,
    .m_at = -1,
    .ggml_type = 35,
    .ggml_name = "TQ2_0",
};
