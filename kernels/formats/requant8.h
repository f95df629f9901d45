/* INT4 panels as INT8 ones with a scale per 256 inputs, for tiles that pay for every scale.
 *
 * An exact product with weights in groups of 32 scales its sums every 32 inputs, on the very ports that
 * multiply. Many rows can have the panel rounded once more instead: each output's 256 inputs from a
 * multiple of 256 on (a block; the last may be shorter) get one step, and their codes become 8 bits.
 *
 *     reach_g  = the largest |code - offset| of a group: 8; with zero points max(zero, 15 - zero)
 *     largest  = max over the block's groups of |scale_g| * reach_g
 *     factor   = min(127 * 256 / largest, 2^127)            f32, one division a block
 *     step     = max(largest / 127, 2^-119)                 the weight that one unit of 8 bits stands for
 *     ratio_g  = round_to_nearest_even(scale_g * factor)    |ratio_g * reach_g| <= 127 * 256
 *     byte     = ((code - offset) * ratio_g + 128 * 256 + 128) >> 8         = 128 + value in 8 bits
 *
 * No code is looked at to choose a step, and a byte takes one 16-bit multiplication and one addition:
 * code * ratio_g + (128 * 256 + 128 - offset * ratio_g), modulo 2^16, whose high half it is.
 *
 * Error. value = q ratio / 256 + e, |e| <= 1/2, with q = code - offset; ratio = 256 scale / step + d with
 * |d| <= 0.501 (half a unit, and three f32 roundings of a number up to 4064). So
 *     |step * value - q scale| <= step * (1/2 + 0.501 |q| / 256)
 * Gaussian weights: largest is about 3 of their deviations, so the steps' uniform error is 0.7 % of them;
 * one group that is 100 times as large as its neighbours makes them lose 8 bits less 6.6: formats with
 * groups keep such weights apart, this form does not. Products with it are therefore never exact
 * (KT_NUM_REQUANT), and nothing that was asked to be exact may use it.
 *
 * A kernel may take a larger step for a block whose own is below KT_R8_RANGE of the largest in its row: ratios of
 * steps then stay where sums can be carried from block to block.
 *
 * A scale that is not finite makes the step NaN or infinite, and with it every output of the row.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_REQUANT8_H
#define KT_KERNELS_REQUANT8_H

#include <math.h>
#include <string.h>

#include "base/numeric.h"
#include "kernels/formats/p64_spec.h"

#define KT_R8_BLOCK 256      /* inputs per step */
#define KT_R8_RANGE 0x1p-32f /* of a row's largest step: smaller ones may be raised to it */

/* What formats this is defined for: linear 4-bit codes with a scale per 32 inputs or more. */
static inline int kt_r8_takes(kt_p64_spec s) {
    return s.low == 4 && !s.high && s.values == KT_P64_LINEAR && s.span == s.group &&
           (s.scale == KT_P64_BF16 || s.scale == KT_P64_F16) &&
           (s.minimum == KT_P64_MIN_NONE || s.minimum == KT_P64_MIN_ZERO);
}

/* The requantised panel of 64 rows: uint8 [k/4][64][4], value + 128, as in w8c; then float
 * step[ceil(k / 256)][64]. */
static inline int64_t kt_r8_blocks(int64_t k) {
    return (k + KT_R8_BLOCK - 1) / KT_R8_BLOCK;
}
static inline size_t kt_r8_panel_bytes(int64_t k) {
    return (size_t)k * 64 + (size_t)kt_r8_blocks(k) * 256;
}

static inline int kt_r8_reach(int offset) {
    return offset > 15 - offset ? offset : 15 - offset;
}

/* Largest error of a weight, of its block's step (derived above). */
static inline double kt_r8_error(int reach) {
    return 0.5 + 0.501 * reach / 256;
}

/* Step and factor of a block from its `largest`. */
static inline float kt_r8_step(float largest, float *factor) {
    const float step = largest / 127.0f, ratio = 32512.0f / largest;
    *factor = ratio < 0x1p127f ? ratio : 0x1p127f;
    return step < 0x1p-119f ? 0x1p-119f : step;
}

static inline int32_t kt_r8_ratio(float scale, float factor) {
    const float r = scale * factor;
    return r >= -32512.0f && r <= 32512.0f ? (int32_t)lrintf(r) : 0;
}

static inline uint8_t kt_r8_byte(int value, int32_t ratio) {
    return (uint8_t)((uint32_t)(value * ratio + 128 * 256 + 128) >> 8);
}

/* Requantise a p64 panel of reductions of length k, a multiple of s.group. `out` has kt_r8_panel_bytes.
 * The plain statement of what vector kernels write, bit for bit. */
static inline void kt_r8_panel(kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *out) {
    const size_t plane_bytes = kt_p64_plane_bytes(s), run_bytes = kt_p64_run_bytes(s);
    const size_t scales_at = (size_t)(s.group / 32) * plane_bytes;

    for (int64_t first = 0; first < k; first += KT_R8_BLOCK) {
        const int64_t end = first + KT_R8_BLOCK < k ? first + KT_R8_BLOCK : k;
        for (int r = 0; r < 64; r++) {
            float largest = 0, factor, step;
            for (int pass = 0; pass < 2; pass++) {
                for (int64_t i = first; i < end; i += s.group) {
                    const uint8_t *run = panel + (size_t)(i / s.group) * run_bytes;
                    const uint8_t *at = run + scales_at + 2 * r;
                    const uint16_t bits = (uint16_t)(at[0] | at[1] << 8);
                    const float scale =
                        s.scale == KT_P64_BF16 ? kt_bf16_to_f32(bits) : kt_f16_to_f32(bits);
                    const int offset =
                        s.minimum == KT_P64_MIN_ZERO ? run[scales_at + 128 + r] : s.offset;
                    const float reach = fabsf(scale) * (float)kt_r8_reach(offset);
                    if (pass == 0) {
                        if (!(reach <= largest) && largest == largest) largest = reach;
                        continue;
                    }
                    const int32_t ratio = kt_r8_ratio(scale, factor);
                    for (int64_t j = i; j < i + s.group; j++) {
                        const int in = (int)(j - i);
                        const uint8_t pair = run[(size_t)(in / 32) * plane_bytes +
                                                 256 * (in % 16 / 4) + 4 * r + in % 4];
                        const int code = in % 32 < 16 ? pair & 15 : pair >> 4;
                        out[j / 4 * 256 + 4 * r + j % 4] = kt_r8_byte(code - offset, ratio);
                    }
                }
                step = kt_r8_step(largest, &factor);
            }
            memcpy(out + 64 * k + first / KT_R8_BLOCK * 256 + 4 * r, &step, sizeof step);
        }
    }
}

#endif
