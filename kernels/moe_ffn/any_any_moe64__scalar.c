/* One expert's feed-forward over p64 panels in plain C: every format, every m.
 *
 *   h   = encode(silu(gate . a) * (up . a))        silu(g) = g / (1 + e^-g)
 *   out += route_weight * (down . h)
 *
 * A gate-and-up panel yields one activation group of 32, complete. Sums run in ascending k for each
 * row by itself: a row's bits depend neither on m nor on the panels' shares.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>

#include "kernels/formats/p64_scalar.h"

static void store_group(const kt_problem *q, const float x[32], int64_t group, char *h) {
    if (q->acts == KT_A_INT8_G32) {
        kt_a8_encode_group(x, (int8_t *)h + 32 * group, kt_a8_scales_mut(h, q->n) + group,
                           kt_a8_comps_mut(h, q->n) + group);
        return;
    }
    for (int i = 0; i < 32; i++) {
        uint16_t bits = kt_f32_to_bf16(x[i]);
        memcpy(h + 2 * (32 * group + i), &bits, sizeof bits);
    }
}

static void gate_up(const kt_moe_call *call) {
    const kt_problem *q = call->problem;

    for (int64_t p = call->panel_begin; p < call->panel_end; p++)
        for (int64_t i = 0; i < call->m; i++) {
            float y[KT_P64_ROWS], x[32];
            kt_p64_row(q->weights, kt_p64_gate_up(q, call->weights, p), q->k,
                       (const char *)call->a + (size_t)call->rows[i] * call->a_stride, y);
            for (int r = 0; r < 32; r++) x[r] = y[r] / (1 + expf(-y[r])) * y[32 + r];
            store_group(q, x, p, (char *)call->h + (size_t)i * call->h_stride);
        }
}

static void down(const kt_moe_call *call) {
    const kt_problem *q = call->problem;

    for (int64_t p = call->panel_begin; p < call->panel_end; p++) {
        int64_t width = q->k - KT_P64_ROWS * p < KT_P64_ROWS ? q->k - KT_P64_ROWS * p : KT_P64_ROWS;
        for (int64_t i = 0; i < call->m; i++) {
            float *out = call->out + call->rows[i] * call->ldo + KT_P64_ROWS * p;
            float y[KT_P64_ROWS];
            kt_p64_row(q->weights, kt_p64_down(q, call->weights, p), q->n,
                       (const char *)call->h + (size_t)i * call->h_stride, y);
            for (int64_t r = 0; r < width; r++) out[r] += call->route_weight[i] * y[r];
        }
    }
}

KT_VARIANT(any_any_moe64__scalar) = {
    .name = "any_any_moe64__scalar",
    .op = KT_OP_MOE_FFN,
    .weights = 1u << KT_W_BF16 | 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT4_G32,
    .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32,
    .isa = KT_ISA_SCALAR,
    .numerics = KT_NUM_EXACT_INT32,
    .version = 1,
    .layout = "p64",
    .accepts = kt_p64_accepts,
    .packed_bytes = kt_p64_expert_bytes,
    .pack_expert = kt_p64_pack_expert,
    .moe_gate_up = gate_up,
    .moe_down = down,
};
