/* SwiGLU of one activation group in plain C, written as encoded activations.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_SWIGLU_SCALAR_H
#define KT_SIMD_SWIGLU_SCALAR_H

#include <math.h>

#include "base/numeric.h"
#include "kernels/formats/acts.h"
#include "kt/problem.h"

/* NaN passes the clamps. */
static inline float kt_glu_scalar(float gate, float up, const kt_glu_rule *glu) {
    float steep = gate;

    if (glu->kind != KT_GLU_SILU) {
        steep = gate = gate > glu->limit ? glu->limit : gate;
        up = up > glu->limit ? glu->limit : up < -glu->limit ? -glu->limit : up;
    }
    if (glu->kind == KT_GLU_OAI) {
        steep = gate * glu->alpha;
        up += 1.0f;
    }
    return gate / (1.0f + expf(-steep)) * up;
}

static inline void kt_swiglu_scalar(const float *tile, float out[32], const kt_glu_rule *glu) {
    for (int j = 0; j < 32; j++) out[j] = kt_glu_scalar(tile[j], tile[32 + j], glu);
}

static inline void kt_swiglu_a8_scalar(const float *tile, void *h, int64_t n, int64_t p,
                                       const kt_glu_rule *glu) {
    float product[32];
    kt_swiglu_scalar(tile, product, glu);
    kt_a8_encode_group(product, (int8_t *)h + 32 * p, kt_a8_scales_mut(h, n) + p,
                       kt_a8_comps_mut(h, n) + p);
}

static inline void kt_swiglu_a8p_scalar(const float *tile, void *h, int64_t n, int64_t p,
                                        const kt_glu_rule *glu) {
    float product[32];
    kt_swiglu_scalar(tile, product, glu);
    kt_a8p_encode_group(product, h, n, 2 * p);
    kt_a8p_encode_group(product + 16, h, n, 2 * p + 1);
}

static inline void kt_swiglu_abf16_scalar(const float *tile, void *h, int64_t n, int64_t p,
                                          const kt_glu_rule *glu) {
    float product[32];
    (void)n;
    kt_swiglu_scalar(tile, product, glu);
    for (int j = 0; j < 32; j++) ((uint16_t *)h)[32 * p + j] = kt_f32_to_bf16(product[j]);
}

#endif
