/* Causal convolution in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_CONV_REF_H
#define KT_KERNELS_CONV_REF_H

#include "kt/variant.h"

/* Every row of one channel: call->rows results and, for each, how far an f32 kernel may be off,
 * `step` apart. Neither state nor y is written. */
void kt_conv_ref(const kt_conv_call *call, int64_t channel, int64_t step, double *want,
                 double *bound);

#endif
