/* f32 rows -> f32 rows: a copy, for kernels that read plain floats. memcpy is as fast as any ISA.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "kernels/encode/encode_common.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++)
        memcpy(kt_encode_target(c, row), kt_encode_source(c, row), (size_t)c->k * sizeof(float));
}

KT_VARIANT(af32_rows__scalar) = {
    .name = "af32_rows__scalar",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_F32,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "af32",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
