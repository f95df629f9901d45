/* w4zg64: 4-bit codes in groups of 64 inputs with zero points: w = scale * (code - zero).
 *
 *     data    bytes [n, k/2]: byte i holds input 2i in its low nibble, 2i + 1 in its high one
 *     scales  rows of 3 k/64 bytes: IEEE half [k/64], then zero points uint8 [k/64] (0..255)
 *
 * Holds AWQ and GPTQ checkpoints, and asymmetric compressed-tensors ones, without loss
 * (kernels/formats/int4_import.h). SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/int4z_search.h"

KT_FORMAT_IS(INT4Z_G64, 9);
KT_FORMAT_BLOCKS(4, 0, 64, 64, F16, ZERO, LINEAR, 0);

KT_INT4Z_FORMAT(w4zg64, KT_W_INT4Z_G64, 64);
