/* Hyper-connections in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_HYPER_REF_H
#define KT_KERNELS_HYPER_REF_H

#include <stdint.h>

/* pre [count], post [count] and C [count, count] of streams f32 [count * hidden], by the formulas
 * of hyper.h with fn f32 [outputs, count * hidden]. */
void kt_hyper_ref_coefficients(const float *streams, const float *fn, const float *base,
                               const float *scale, int64_t count, int64_t hidden,
                               int64_t iterations, double eps, double norm_eps, double *out);

/* X' [count, hidden] of the streams, y and coefficients as above. */
void kt_hyper_ref_join(const float *streams, const float *y, const double *coefficients,
                       int64_t count, int64_t hidden, double *out);

#endif
