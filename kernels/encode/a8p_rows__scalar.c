/* f32 rows -> INT8 rows with a power-of-two scale per 16 (KT_A_INT8_G16P2), plain C.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/encode/encode_common.h"
#include "kernels/formats/acts.h"

static void encode(const kt_encode_call *c) {
    for (int64_t row = c->row_begin; row < c->row_end; row++) {
        const float *x = kt_encode_source(c, row);
        void *out = kt_encode_target(c, row);
        for (int64_t g = 0; g < c->k / 16; g++) kt_a8p_encode_group(x + 16 * g, out, c->k, g);
    }
}

KT_VARIANT(a8p_rows__scalar) = {
    .name = "a8p_rows__scalar",
    .op = KT_OP_ENCODE,
    .acts = 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "a8p",
    .version = 1,
    .layout = "",
    .rank = 1,
    .accepts = kt_encode_accepts,
    .encode = encode,
};
