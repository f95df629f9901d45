/* Causal convolution and SiLU on AVX2: conv_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/conv_lanes.h"

KT_VARIANT(conv_rows__avx2) = {
    .name = "conv_rows__avx2",
    .op = KT_OP_CONV,
    .isa = KT_ISA_AVX2,
    .numerics = KT_NUM_F32,
    .bits = "lanes256",
    .version = 3,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .conv = conv,
};
