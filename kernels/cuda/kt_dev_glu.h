/* What experts do between their matrices: the kinds of kt_glu, and biases.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_CUDA_KT_DEV_GLU_H
#define KT_CUDA_KT_DEV_GLU_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/moe_calls.h"

enum { KT_DEV_GLU_SILU = 0, KT_DEV_GLU_CLAMP_SILU, KT_DEV_GLU_OAI }; /* as kt_glu counts */

/* The vector of an expert with `size` numbers, from number `first`; 0 = there is none. */
KT_DEVICE const float *kt_dev_bias(const float *all, int expert, int size, int first) {
    return all ? all + (int64_t)expert * size + first : 0;
}

/* NaN stays NaN. */
KT_DEVICE float kt_dev_clamp(float x, float low, float high) {
    return x > high ? high : x < low ? low : x;
}

KT_DEVICE float kt_dev_glu(const kt_dev_ending *e, float gate, float up) {
    if (e->glu == KT_DEV_GLU_SILU) return kt_silu(gate) * up;
    gate = gate > e->limit ? e->limit : gate;
    up = kt_dev_clamp(up, -e->limit, e->limit);
    if (e->glu == KT_DEV_GLU_CLAMP_SILU) return kt_silu(gate) * up;
    return (up + 1.0f) * (gate / (1.0f + kt_exp2(-1.4426950408889634f * (e->alpha * gate))));
}

#endif
