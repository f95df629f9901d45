/* Hyper-connections (mHC): `count` residual streams X [count, hidden] of a token. Before half a
 * layer they become one row, behind it they are mixed anew (models_2026.md 3.3):
 *
 *   f = X flattened / sqrt(mean of squares + norm_eps),  m = fn f
 *   pre = sigmoid(m[0 ..] scale[0] + base) + eps,  post = 2 sigmoid(m[count ..] scale[1] + base)
 *   C = softmax of each row of (m[2 count ..] scale[2] + base) + eps, divided by (column sums +
 *       eps), then iterations - 1 times by (row sums + eps) and by (column sums + eps)
 *   x = sum_s pre[s] X[s];   X'[k] = post[k] y + sum_j C[j][k] X[j]
 *
 * The products fn X are a router's (KT_OP_ROUTER: kernels/router); what is left is here, baseline
 * code that the compiler makes vectors of: the same bits on every machine. All in f32. Thread-safe.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_HYPER_H
#define KT_KERNELS_HYPER_H

#include <stdint.h>

#define KT_HYPER_MOST 8 /* streams */

/* Rows of fn: pre, post and C. */
static inline int64_t kt_hyper_outputs(int64_t count) {
    return 2 * count + count * count;
}

/* The factor that RMSNorm without weights multiplies n numbers by. */
float kt_hyper_factor(const float *x, int64_t n, float eps);

/* m: f32 [outputs], fn X on entry; then pre [count], post [count] and C [count, count]. factor as
 * above of this token; base f32 [outputs], scale f32 [3]; count at most KT_HYPER_MOST. */
void kt_hyper_coefficients(float *m, float factor, const float *base, const float *scale,
                           int64_t count, int64_t iterations, float eps);

/* The end: m f32 [count], fn X on entry, then sigmoid(m factor scale + base) + eps. */
void kt_hyper_weights(float *m, float factor, const float *base, float scale, int64_t count,
                      float eps);

/* out[hidden] = sum_s w[s] X[s]. */
void kt_hyper_collapse(const float *streams, const float *w, int64_t count, int64_t hidden,
                       float *out);

/* X' in place of X; y f32 [hidden], post f32 [count], c f32 [count, count]. */
void kt_hyper_remix(float *streams, const float *y, const float *post, const float *c,
                    int64_t count, int64_t hidden);

#endif
