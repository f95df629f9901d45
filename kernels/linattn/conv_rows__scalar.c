/* Causal convolution and SiLU on plain C: conv_lanes.h. SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/conv_lanes.h"

KT_VARIANT(conv_rows__scalar) = {
    .name = "conv_rows__scalar",
    .op = KT_OP_CONV,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "plain",
    .version = 2,
    .layout = "",
    .rank = 1,
    .accepts = accepts,
    .conv = conv,
};
