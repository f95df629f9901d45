/* w4zg128: 4-bit codes in groups of 128 inputs with zero points: w = scale * (code - zero).
 *
 *     data    bytes [n, k/2]: byte i holds input 2i in its low nibble, 2i + 1 in its high one
 *     scales  rows of 3 k/128 bytes: IEEE half [k/128], then zero points uint8 [k/128] (0..255)
 *
 * Holds AWQ and GPTQ checkpoints, and asymmetric compressed-tensors ones, without loss
 * (kernels/formats/int4_import.h). SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4z_search.h"

KT_FORMAT_IS(INT4Z_G128, 10);
KT_FORMAT_BLOCKS(4, 0, 128, 128, F16, ZERO, LINEAR, 0);

KT_INT4Z_FORMAT(w4zg128, KT_W_INT4Z_G128, 128);
