/* wiq4_nl: GGUF IQ4_NL, 18 bytes for 32 inputs as they lie in the file:
 * d@0 (f16), qs[16]@2, nibbles as in Q4_0; w = d * kt_iq4_values[code].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(IQ4_NL, 24);
KT_FORMAT_BLOCKS(4, 0, 32, 32, F16, NONE, IQ4, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = kt_load_u16(p);
    kt_split_halves(p + 2, out->code);
}

KT_GGUF_MEMBERS(32, 18)
KT_BLOCKS_PACK_ROWS(KT_W_IQ4_NL)

KT_FORMAT(wiq4_nl) = {
    .name = "wiq4_nl",
    .id = KT_W_IQ4_NL,
    .bits = 4.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 18,
    .d_at = 0,
    .m_at = -1,
    .ggml_type = 20,
    .ggml_name = "IQ4_NL",
};
