/* Pooling of windows in double, never selectable. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENTRIES_REF_H
#define KT_KERNELS_ENTRIES_REF_H

#include <stdint.h>

/* Entry `entry` of a sequence whose tokens from the first on have values and gates f32
 * [.., halves * dim] and ape f32 [ratio, halves * dim]: out [dim] (entries.h). */
void kt_entry_ref(const float *values, const float *gates, const float *ape, int64_t dim,
                  int64_t halves, int64_t ratio, int64_t entry, double *out);

#endif
