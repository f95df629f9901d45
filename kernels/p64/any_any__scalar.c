/* Products over p64 panels in plain C, dense and of experts: every format, every n, k a multiple of
 * 32, every m.
 *
 *   c    = a * w^T
 *   h    = encode(glu(gate . a + bias, up . a + bias))        glu: kt_glu
 *   out += route_weight * (down . h + bias)
 *
 * Panels outside, rows inside, one sum per output in ascending k: a row's bits depend neither on m
 * nor on the panels' shares. A gate-and-up panel yields one activation group of 32, complete. This
 * is what selection falls back to, not what anyone should wait for. Experts have no f32 weights.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/p64_scalar.h"
#include "kernels/p64/p64_kernel.h"
#include "kernels/simd/swiglu_scalar.h"

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

static void gate_up(const kt_moe_call *call) {
    const kt_problem *q = call->problem;

    for (int64_t p = call->panel_begin; p < call->panel_end; p++)
        for (int64_t i = 0; i < call->m; i++) {
            char *h = (char *)call->h + (size_t)i * call->h_stride;
            float y[KT_P64_ROWS];
            kt_p64_row(q->weights, kt_p64_gate_up(q, call->weights, p), q->k, q->acts,
                       (const char *)call->a + (size_t)call->rows[i] * call->a_stride, y);
            for (int j = 0; j < 32 && call->gate_bias; j++) {
                y[j] += call->gate_bias[32 * p + j];
                y[32 + j] += call->up_bias[32 * p + j];
            }
            if (q->acts == KT_A_INT8_G32)
                kt_swiglu_a8_scalar(y, h, q->n, p, &call->glu);
            else if (q->acts == KT_A_INT8_G16P2)
                kt_swiglu_a8p_scalar(y, h, q->n, p, &call->glu);
            else
                kt_swiglu_abf16_scalar(y, h, q->n, p, &call->glu);
        }
}

static void down(const kt_moe_call *call) {
    const kt_problem *q = call->problem;

    for (int64_t p = call->panel_begin; p < call->panel_end; p++) {
        int64_t width = q->k - KT_P64_ROWS * p < KT_P64_ROWS ? q->k - KT_P64_ROWS * p : KT_P64_ROWS;
        for (int64_t i = 0; i < call->m; i++) {
            float *out = call->out + call->rows[i] * call->ldo + KT_P64_ROWS * p;
            float y[KT_P64_ROWS];
            kt_p64_row(q->weights, kt_p64_down(q, call->weights, p), q->n, q->acts,
                       (const char *)call->h + (size_t)i * call->h_stride, y);
            for (int64_t r = 0; r < width && call->down_bias; r++)
                y[r] += call->down_bias[KT_P64_ROWS * p + r];
            for (int64_t r = 0; r < width; r++) out[r] += call->route_weight[i] * y[r];
        }
    }
}

KT_P64_KERNEL_APART(any_any, scalar,
                    (.version = 1, .weights = KT_W_BIT(KT_W_COUNT) - 2,
                     .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2 |
                             1u << KT_A_F32),
                    (.version = 1, .weights = (KT_W_BIT(KT_W_COUNT) - 2) & ~KT_W_BIT(KT_W_F32),
                     .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2),
                    .isa = KT_ISA_SCALAR, .numerics = KT_NUM_EXACT_INT32, .bits = "plain",
                    .rank = 1, .accepts = kt_p64_accepts);
