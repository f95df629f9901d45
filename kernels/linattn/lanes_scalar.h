/* One float as a vector, for loops that are written once for all widths.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_LANES_SCALAR_H
#define KT_LINATTN_LANES_SCALAR_H

#include <math.h>

#include "kernels/simd/unroll.h"

#define LANES 1
#define LANES_VEC float

KT_INLINE float lanes_load(const float *p) {
    return *p;
}
KT_INLINE void lanes_store(float *p, float x) {
    *p = x;
}
KT_INLINE float lanes_set(float x) {
    return x;
}
KT_INLINE float lanes_add(float a, float b) {
    return a + b;
}
KT_INLINE float lanes_mul(float a, float b) {
    return a * b;
}
/* a * b + c, and c - a * b. */
KT_INLINE float lanes_fma(float a, float b, float c) {
    return a * b + c;
}
KT_INLINE float lanes_fnma(float a, float b, float c) {
    return c - a * b;
}
KT_INLINE float lanes_exp(float x) {
    return expf(x);
}
KT_INLINE float lanes_silu(float x) {
    return x / (1.0f + expf(-x));
}
KT_INLINE float lanes_sum(float x) {
    return x;
}

#endif
