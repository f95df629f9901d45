/* c = a * w^T over p64 panels in plain C: every format, every n, k a multiple of 32, every m.
 *
 * Panels outside, rows inside, one sum per output in ascending k: a row's bits depend neither on m
 * nor on the panels' shares. This is what selection falls back to, not what anyone should wait for.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/p64_scalar.h"

static void gemm(const kt_gemm_call *call) {
    const kt_problem *q = call->problem;
    size_t panel_bytes = kt_p64_panel_bytes(q->weights, q->k);

    for (int64_t p = call->panel_begin; p < call->panel_end; p++) {
        const uint8_t *panel = (const uint8_t *)call->weights + (size_t)p * panel_bytes;
        int64_t width = q->n - KT_P64_ROWS * p < KT_P64_ROWS ? q->n - KT_P64_ROWS * p : KT_P64_ROWS;
        for (int64_t i = 0; i < call->m; i++) {
            float *c = call->c + i * call->ldc + KT_P64_ROWS * p;
            float y[KT_P64_ROWS];
            kt_p64_row(q->weights, panel, q->k, q->acts,
                       (const char *)call->a + (size_t)i * call->a_stride, y);
            for (int64_t r = 0; r < width; r++) c[r] = call->accumulate ? c[r] + y[r] : y[r];
        }
    }
}

KT_VARIANT(any_any_p64__scalar) = {
    .name = "any_any_p64__scalar",
    .op = KT_OP_GEMM,
    .weights = (1u << KT_W_COUNT) - 2,
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2 | 1u << KT_A_F32,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "plain",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_gemm_bytes,
    .pack_gemm = kt_p64_pack_gemm,
    .gemm = gemm,
};
