/* E2M1 codes of safetensors, two neighbours in a byte, in the order that blocks of GGUF have.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_FP4_PAIRS_H
#define KT_RUNTIME_FP4_PAIRS_H

#include <stdint.h>

/* One row of k inputs as blocks of wmxfp4 (kernels/formats/wmxfp4.c).
 *
 * pairs      [k / 2]: input 2i in the low nibble of byte i, 2i + 1 in the high one.
 * exponents  [k / 32], E8M0: w = value of the code * 2^(exponent - 127).
 * k          a multiple of 32.
 * blocks     17 bytes for 32 inputs, overwritten; must not overlap the others.
 *
 * Any alignment. Every bit is kept. Never fails; any thread. */
void kt_mxfp4_from_pairs(const uint8_t *pairs, const uint8_t *exponents, int64_t k,
                         uint8_t *blocks);

/* One row of k inputs as blocks of wnvfp4 (kernels/formats/wnvfp4.c), 36 bytes for 64 inputs.
 * scales [k / 16] are E4M3: w = factor of the matrix * scale * value of the code; k is a multiple
 * of 64. Blocks have no sign in their scales: where one has it, its 16 codes change theirs, which
 * is the same number. Returns -1, or which scale is NaN (blocks have none; then they are not to be
 * used). The rest as above. */
int64_t kt_nvfp4_from_pairs(const uint8_t *pairs, const uint8_t *scales, int64_t k,
                            uint8_t *blocks);

#endif
