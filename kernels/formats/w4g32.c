/* w4g32: 4-bit codes in groups of 32 inputs, one bfloat16 scale per group: w = scale * (nibble - 8).
 *
 *     data    bytes [n, k/2]: byte i holds input 2i in its low nibble, 2i + 1 in its high one
 *     scales  bfloat16 [n, k/32], of either sign
 *
 * Kimi-K2's native INT4 (compressed-tensors "pack-quantized", symmetric, 4 bits, groups of 32, bfloat16
 * scales) is this format byte for byte: weight_packed, read as bytes, is data; weight_scale is scales.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_search.h"

KT_FORMAT_IS(INT4_G32, 3);
KT_FORMAT_PANEL(4, 0, 32, 32, BF16, NONE, LINEAR, 8);

KT_INT4_MEMBERS(32)
KT_BLOCKS_PACK_ROWS(KT_W_INT4_G32)

KT_FORMAT(w4g32) = {
    .name = "w4g32",
    .id = KT_W_INT4_G32,
    .bits = 4.5,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .encode_rows = encode_rows,
};
