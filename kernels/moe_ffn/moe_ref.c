/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/moe_ffn/moe_ref.h"

#include <math.h>

#define U 0x1p-24 /* unit roundoff of f32 */

kt_problem kt_moe_gate_up_problem(const kt_problem *q) {
    return (kt_problem){
        .op = KT_OP_GEMM, .weights = q->weights, .acts = q->acts, .n = q->n, .k = q->k};
}

kt_problem kt_moe_down_problem(const kt_problem *q) {
    return (kt_problem){
        .op = KT_OP_GEMM, .weights = q->weights, .acts = q->acts, .n = q->k, .k = q->n};
}

/* g / (1 + e^-(alpha g)); its derivative is at most 1.1 everywhere, whatever alpha. */
static double silu(double g, double alpha) {
    return g / (1 + exp(-alpha * g));
}

static double clamp(double x, double low, double high) {
    return x > high ? high : x < low ? low : x; /* NaN passes */
}

/* Inputs: g is off by at most d_g and u by d_u, so silu(g) u is off by
 *     1.1 d_g (|u| + d_u) + |silu(g)| d_u.
 * Adding a bias rounds once, and so does up + 1; a clamp moves nothing apart.
 * Arithmetic: e^-x within 2^-22 where the argument was reduced well, plus |x| u where it was reduced
 * in one f32 product, and |x| u where x = alpha g was rounded; sum, quotient and product round once
 * each: (16 + 2 |x|) u of the result.
 * Range: e^-x may overflow (x below -88) or be clamped there, when the true value is |g| e^-88 or
 * less: |g u| 2^-120 absolute. */
kt_ref_value kt_moe_ref_h(const kt_problem *q, kt_numerics numerics, const kt_ref_sum *gate,
                          const kt_ref_sum *up, const kt_moe_ending *ending) {
    const kt_glu_rule *glu = &ending->glu;
    const double alpha = glu->kind == KT_GLU_OAI ? glu->alpha : 1;
    kt_problem product = kt_moe_gate_up_problem(q);
    double d_g = kt_gemm_bound(&product, numerics, gate);
    double d_u = kt_gemm_bound(&product, numerics, up);
    double g = gate->value + ending->gate_bias, u = up->value + ending->up_bias, s, bound;

    if (ending->gate_bias != 0) d_g += U * (fabs(g) + d_g);
    if (ending->up_bias != 0) d_u += U * (fabs(u) + d_u);
    if (glu->kind != KT_GLU_SILU) {
        g = clamp(g, -INFINITY, glu->limit);
        u = clamp(u, -glu->limit, glu->limit);
    }
    if (glu->kind == KT_GLU_OAI) {
        u += 1;
        d_u += U * (fabs(u) + d_u);
    }
    s = silu(g, alpha);
    bound = 1.1 * d_g * (fabs(u) + d_u) + fabs(s) * d_u;
    bound += 1.01 * (16 + 2 * fabs(alpha * g)) * U * (fabs(s * u) + bound);
    return (kt_ref_value){s * u, bound + fabs(g * u) * 0x1p-120 + 0x1p-126};
}

/* a8: half a step, and (127 x / A) A / 127 in f32 moves a value by less than 2^-15 steps more; the
 * step is A / 127 for the A that the variant saw. Groups below 127 / FLT_MAX become zero.
 * a8p: half a step, the least 2^e >= 2^-126 with A / 2^e < 127.5, for the A of 16; scaling is exact.
 * bf16: 2^-8 of the value. */
void kt_moe_ref_encode(kt_act_format acts, kt_ref_value h[32]) {
    double largest = 0;

    for (int g = 0; g < 32 && acts == KT_A_INT8_G16P2; g += 16) {
        int e;
        for (int i = g; i < g + 16; i++) largest = fmax(largest, fabs(h[i].value) + h[i].bound);
        frexp(largest / 127.5, &e); /* 2^(e - 1) <= largest / 127.5 < 2^e */
        for (int i = g; i < g + 16; i++) h[i].bound += 0.5 * ldexp(1, e < -126 ? -126 : e);
        largest = 0;
    }

    for (int i = 0; i < 32; i++) largest = fmax(largest, fabs(h[i].value) + h[i].bound);
    for (int i = 0; i < 32; i++) {
        if (acts == KT_A_INT8_G32)
            h[i].bound += largest / 127 * (0.5 + 0x1p-15) * (1 + 4 * U) + 4e-37;
        if (acts == KT_A_BF16) h[i].bound += 0x1p-8 * (fabs(h[i].value) + h[i].bound) + 0x1p-133;
    }
}

kt_ref_value kt_moe_ref_down(const kt_problem *q, kt_numerics numerics, const kt_ref_sum *sum,
                             const double *w_row, const kt_ref_value *h) {
    kt_problem product = kt_moe_down_problem(q);
    kt_ref_sum seen = *sum; /* the sums of the h that the variant has, at worst */
    double carried = 0;

    for (int64_t j = 0; j < q->n; j++) {
        carried += fabs(w_row[j]) * h[j].bound;
        seen.moved += h[j].bound * sum->move_max;
        seen.a_max = fmax(seen.a_max, fabs(h[j].value) + h[j].bound);
    }
    seen.magnitude += carried;
    return (kt_ref_value){sum->value, carried + kt_gemm_bound(&product, numerics, &seen)};
}

kt_ref_value kt_moe_ref_bias(kt_ref_value down, double bias) {
    if (bias == 0) return down;
    down.value += bias;
    down.bound += U * (fabs(down.value) + down.bound);
    return down;
}

/* Product, sum and, where the variant folds the weight into a scale, one rounding more. */
kt_ref_value kt_moe_ref_add(double old, double route_weight, kt_ref_value down) {
    double term = fabs(route_weight) * (fabs(down.value) + down.bound);
    return (kt_ref_value){old + route_weight * down.value,
                          fabs(route_weight) * down.bound + 1.01 * U * (4 * term + 2 * fabs(old))};
}
