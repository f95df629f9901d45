/* Variants of several weight formats: which tile a problem takes. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_KINDS512_H
#define KT_SIMD_KINDS512_H

#include "kernels/p64/p64_ops512.h"

/* The kind of a format among `count`; accepts() saw to it that there is one. */
static inline const kt_tile_kind *kt_kind_of(const kt_tile_kind *kinds, size_t count,
                                             kt_weight_format weights) {
    size_t i = 0;
    while (i + 1 < count && kinds[i].weights != weights) i++;
    return &kinds[i];
}

#endif
