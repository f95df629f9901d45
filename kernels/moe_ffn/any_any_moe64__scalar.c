/* One expert's feed-forward over p64 panels in plain C: every format, every m.
 *
 *   h   = encode(silu(gate . a) * (up . a))        silu(g) = g / (1 + e^-g)
 *   out += route_weight * (down . h)
 *
 * A gate-and-up panel yields one activation group of 32, complete. Sums run in ascending k for each
 * row by itself: a row's bits depend neither on m nor on the panels' shares.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/formats/p64_scalar.h"
#include "kernels/simd/swiglu_scalar.h"

static void gate_up(const kt_moe_call *call) {
    const kt_problem *q = call->problem;

    for (int64_t p = call->panel_begin; p < call->panel_end; p++)
        for (int64_t i = 0; i < call->m; i++) {
            char *h = (char *)call->h + (size_t)i * call->h_stride;
            float y[KT_P64_ROWS];
            kt_p64_row(q->weights, kt_p64_gate_up(q, call->weights, p), q->k, q->acts,
                       (const char *)call->a + (size_t)call->rows[i] * call->a_stride, y);
            if (q->acts == KT_A_INT8_G32)
                kt_swiglu_a8_scalar(y, h, q->n, p);
            else if (q->acts == KT_A_INT8_G16P2)
                kt_swiglu_a8p_scalar(y, h, q->n, p);
            else
                kt_swiglu_abf16_scalar(y, h, q->n, p);
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
            for (int64_t r = 0; r < width; r++) out[r] += call->route_weight[i] * y[r];
        }
    }
}

KT_VARIANT(any_any_moe64__scalar) = {
    .name = "any_any_moe64__scalar",
    .op = KT_OP_MOE_FFN,
    .weights = ((1u << KT_W_COUNT) - 2) & ~(1u << KT_W_F32),
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .bits = "plain",
    .version = 1,
    .layout = "p64",
    .rank = 1,
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
