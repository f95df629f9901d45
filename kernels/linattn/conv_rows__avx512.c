/* Causal convolution and SiLU on AVX-512: conv_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/conv_lanes.h"

KT_VARIANT(conv_rows__avx512) = {
    .name = "conv_rows__avx512",
    .op = KT_OP_CONV,
    .isa = KT_ISA_AVX512,
    .numerics = KT_NUM_F32,
    .bits = "lanes512",
    .version = 2,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .conv = conv,
};
