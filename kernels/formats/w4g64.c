/* w4g64: w4g32 in groups of 64. data bytes [n, k/2], scales bfloat16 [n, k/64].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_search.h"

KT_FORMAT_IS(INT4_G64, 6);
KT_FORMAT_BLOCKS(4, 0, 64, 64, BF16, NONE, LINEAR, 8);

KT_INT4_MEMBERS(64)
KT_BLOCKS_PACK_ROWS(KT_W_INT4_G64)

KT_FORMAT(w4g64) = {
    .name = "w4g64",
    .id = KT_W_INT4_G64,
    .bits = 4.25,
    KT_BLOCK_MEMBERS(kt_blocks_decode_row),
    .encode_rows = encode_rows,
};
