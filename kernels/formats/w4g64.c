/* w4g64: w4g32 in groups of 64. data bytes [n, k/2], scales bfloat16 [n, k/64].
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4_search.h"

KT_INT4_MEMBERS(64)
KT_BLOCKS_PACK_ROWS(KT_W_INT4_G64)

KT_FORMAT(w4g64) = {
    .name = "w4g64",
    .id = KT_W_INT4_G64,
    .acts = KT_A_INT8_G32,
    .group = 64,
    .block = 64,
    .bits = 4.25,
    .plain_bytes = plain_bytes,
    .decode_row = kt_blocks_decode_row,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .encode_rows = encode_rows,
};
