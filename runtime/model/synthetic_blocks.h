/* Random GGUF blocks whose weights have a given spread. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SYNTHETIC_BLOCKS_H
#define KT_RUNTIME_SYNTHETIC_BLOCKS_H

#include "base/rng.h"
#include "kernels/formats/format.h"

/* Write `count` blocks of a format with block_bytes: random codes and small scales under one f16
 * scale (and minimum), so that weights have mean 0 and about this deviation (1e-3 to 1; MXFP4:
 * within a factor of sqrt(2), its scales being powers of two). */
void kt_synthetic_blocks(const kt_format *format, size_t count, double deviation, kt_rng *rng,
                         uint8_t *out);

#endif
