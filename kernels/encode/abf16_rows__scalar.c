/* f32 rows -> bfloat16 rows, plain C. SPDX-License-Identifier: Apache-2.0 */
#include "base/numeric.h"
#include "kernels/encode/encode_common.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        uint16_t *out = kt_encode_target(c, row);
        for (int64_t i = 0; i < c->k; i++) out[i] = kt_f32_to_bf16(x[i]);
    }
}

KT_VARIANT(abf16_rows__scalar) = {
    .name = "abf16_rows__scalar",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_BF16,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_F32,
    .bits = "abf16",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
