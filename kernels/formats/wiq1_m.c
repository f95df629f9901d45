/* wiq1_m: GGUF IQ1_M, 56 bytes for 256 inputs as they lie in the file: of 8 inputs the low byte of
 * an index@0 and a nibble@32 with its three high bits and a bit below; four u16@48, each with 3
 * bits s of four times 16 inputs and, on top, four bits of d (f16); w = d * (2 s + 1) * (point +
 * 1/8), - 1/8 below. The grid and panels, which give each unit's scales a byte (1.81 bits a weight
 * instead of 1.75):
 * iq1.h.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/iq1_panel.h"

static void take_apart(const uint8_t *p, kt_iq1_block *out) {
    memcpy(out->point, p, sizeof out->point);
    for (int u = 0; u < 8; u++) {
        const unsigned word = kt_load_u16(p + 48 + u / 2 * 2);
        out->field[u] = kt_load_u16(p + 32 + 2 * u);
        out->scale[u] = (uint8_t)(word >> u % 2 * 6 & 63);
    }
    out->d = kt_iq1_m_d(p);
}

KT_IQ1_MEMBERS(KT_W_IQ1_M, 56)

KT_FORMAT(wiq1_m) = {
    .name = "wiq1_m",
    .id = KT_W_IQ1_M,
    .acts = KT_A_INT8_G32,
    .group = 16,
    .block = 256,
    .bits = 1.75,
    .plain_bytes = plain_bytes,
    .decode_row = kt_blocks_decode_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .block_bytes = 56,
    .d_at = -1,
    .m_at = -1,
};
