/* Vectors of f32 as wide as the including file's instruction set has them, for loops that are
 * written once for all widths. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_LANES_H
#define KT_LINATTN_LANES_H

#if defined(__AVX512F__)
#include "kernels/linattn/lanes512.h"
#elif defined(__AVX2__)
#include "kernels/linattn/lanes256.h"
#else
#include "kernels/linattn/lanes_scalar.h"
#endif

#endif
