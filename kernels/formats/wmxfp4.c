/* wmxfp4: GGUF MXFP4, 17 bytes for 32 inputs as they lie in the file:
 * e@0 (E8M0), qs[16]@1, nibbles as in Q4_0; w = 2^(e - 128) * kt_e2m1_values[code], the table
 * doubled. e = 255 is NaN, e = 0 is 2^-127 like any other. Checkpoints in OCP order (byte i = inputs 2i, 2i + 1)
 * have their nibbles reordered on import.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/formats/blocks_panel.h"

KT_FORMAT_IS(MXFP4, 26);
KT_FORMAT_BLOCKS(4, 0, 32, 32, E8M0, NONE, E2M1, 0);

static void take_apart(const uint8_t *p, kt_block *out) {
    out->scale[0] = p[0];
    kt_split_halves(p + 1, out->code);
}

KT_GGUF_MEMBERS(32, 17)
KT_BLOCKS_PACK_ROWS(KT_W_MXFP4)

/* The power of two that is nearest, by its exponent. */
static void put_scale(uint8_t *block, size_t number, double scale) {
    (void)number;
    block[0] = (uint8_t)(128 + lround(log2(fabs(scale))));
}

KT_FORMAT(wmxfp4) = {
    .name = "wmxfp4",
    .id = KT_W_MXFP4,
    .bits = 4.25,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .block_bytes = 17,
    .d_at = -1,
    .m_at = -1,
    .put_scale = put_scale,
    .ggml_type = 39,
    .ggml_name = "MXFP4",
};
