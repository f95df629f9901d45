/* Panels of codes in groups as INT8 ones with a scale per 256 inputs, for tiles that pay for every
 * scale.
 *
 * An exact product scales its sums every 16 or 32 inputs, on the very ports that multiply, and
 * those of formats with minima have a second sum to add. Many rows can have the panel rounded once
 * more instead: each output's 256 inputs from a multiple of 256 on (a block; the last may be
 * shorter) get one step, and their codes become 8 bits. With value = code - offset, or that of a
 * table,
 *
 *     largest  = max over the block's groups of |scale_g * value + minimum_g|, for the lowest and
 *                the highest value that there is (4 bits: - offset and 15 - offset)
 *     factor   = min(127 * 256 / largest, 2^127)     f32, one division a block
 *     step     = max(largest / 127, 2^-119)          the weight that one unit of 8 bits stands for
 *     ratio_g  = round_to_nearest_even(scale_g * factor)
 *     start_g  = round_to_nearest_even(minimum_g * factor)
 *     byte     = (value * ratio_g + start_g + 128 * 256 + 128) >> 8
 *
 * |value * ratio_g + start_g| <= 127 * 256 + 65, so a byte is 128 + the weight in 8 bits.
 *
 * No code is looked at to choose a step, and a byte takes one 16-bit multiplication and one
 * addition: code * ratio_g + (start_g + 128 * 256 + 128 - offset * ratio_g), modulo 2^16, whose
 * high half it is.
 *
 * Error. byte - 128 = (value ratio + start) / 256 + e, |e| <= 1/2. ratio is off by half a unit and
 * by three f32 roundings, which move value ratio, up to 127 * 256, by 0.006; so is start, if there
 * is a minimum. The largest |value| of a format, its reach, is 3 or more, so
 *     |step * (byte - 128) - w| <= step * (1/2 + 0.503 (reach + has minimum) / 256)
 * Gaussian weights: largest is about 3 of their deviations, so the steps' uniform error is 0.7 % of
 * them; one group that is 100 times as large as its neighbours makes them lose 8 bits less 6.6:
 * formats with groups keep such weights apart, this form does not. Products with it are therefore
 * never exact (KT_NUM_REQUANT), and nothing that was asked to be exact may use it.
 *
 * A kernel may take a larger step for a block whose own is below KT_R8_RANGE of the largest in its
 * row: ratios of steps then stay where sums can be carried from block to block.
 *
 * A scale that is not finite makes the step NaN or infinite, and with it every output of the row.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_REQUANT8_H
#define KT_KERNELS_REQUANT8_H

#include <math.h>
#include <string.h>

#include "kernels/formats/p64_scalar.h"

#define KT_R8_BLOCK 256      /* inputs per step */
#define KT_R8_RANGE 0x1p-32f /* of a row's largest step: smaller ones may be raised to it */

/* What formats this is defined for: linear codes of 2 to 6 bits and IQ4's, whose scales and minima
 * are halves, bfloat16 or integers. */
KT_INLINE int kt_r8_takes(kt_p64_spec s) {
    return s.low >= 2 && s.low + s.high <= 6 && s.values != KT_P64_E2M1 &&
           (s.scale == KT_P64_BF16 || s.scale == KT_P64_F16 || s.scale == KT_P64_S8 ||
            s.scale == KT_P64_NIBBLES);
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

/* The lowest and the highest value; `offset` is the group's zero point where it has one. */
KT_INLINE int kt_r8_lowest(kt_p64_spec s, int offset) {
    return s.values == KT_P64_LINEAR ? -offset : kt_iq4_values[0];
}
KT_INLINE int kt_r8_highest(kt_p64_spec s, int offset) {
    return s.values == KT_P64_LINEAR ? (1 << (s.low + s.high)) - 1 - offset : kt_iq4_values[15];
}

/* The largest weight that a group's scale and minimum allow. NaN if one of them is no number. */
KT_INLINE double kt_r8_largest_of(kt_p64_spec s, int offset, double scale, double minimum) {
    const double low = fabs(scale * kt_r8_lowest(s, offset) + minimum);
    const double high = fabs(scale * kt_r8_highest(s, offset) + minimum);
    return low > high ? low : high;
}

/* Largest error of a weight, of its block's step (derived above). */
KT_INLINE double kt_r8_error(kt_p64_spec s, int offset) {
    const int low = -kt_r8_lowest(s, offset), high = kt_r8_highest(s, offset);
    const int is_shifted = s.minimum != KT_P64_MIN_NONE && s.minimum != KT_P64_MIN_ZERO;
    return 0.5 + 0.503 * ((low > high ? low : high) + is_shifted) / 256;
}

/* Step and factor of a block from its `largest`. */
static inline float kt_r8_step(float largest, float *factor) {
    const float step = largest / 127.0f, ratio = 32512.0f / largest;
    *factor = ratio < 0x1p127f ? ratio : 0x1p127f;
    return step < 0x1p-119f ? 0x1p-119f : step;
}

/* Of a scale or a minimum; 0 for what is no number (else |r| <= 127 * 256 and its rounding). */
static inline int32_t kt_r8_ratio(float scale, float factor) {
    const float r = scale * factor;
    return r > -32640.0f && r < 32640.0f ? (int32_t)lrintf(r) : 0;
}

static inline uint8_t kt_r8_byte(int value, int32_t ratio, int32_t start) {
    return (uint8_t)((uint32_t)(value * ratio + start + 128 * 256 + 128) >> 8);
}

/* The group of a panel's inputs from i on, a multiple of s.group, for all 64 rows. */
typedef struct kt_r8_group {
    const uint8_t *head, *scales, *minima; /* fields of p64_spec.h */
    int16_t value[KT_P64_ROWS][32]; /* of the 32 inputs that i is among, before zero points */
} kt_r8_group;

static inline void kt_r8_open(const kt_p64_spec *s, const uint8_t *panel, int64_t i,
                              kt_r8_group *g) {
    const int in = (int)(i % s->span), inputs = kt_p64_run_inputs(*s), run = in / inputs * inputs;
    const size_t at = (size_t)((in - run) / s->group), groups = (size_t)(inputs / s->group);
    const uint8_t *fields;

    g->head = panel + (size_t)(i / s->span) * kt_p64_block_bytes(*s);
    fields = g->head + kt_p64_scales_at(*s, run);
    g->scales = fields + at * kt_p64_scale_bytes(*s);
    g->minima = fields + groups * kt_p64_scale_bytes(*s) + at * kt_p64_minimum_bytes(*s);
}

static inline int kt_r8_offset(const kt_p64_spec *s, const kt_r8_group *g, int r) {
    return s->minimum == KT_P64_MIN_ZERO ? g->minima[r] : s->offset;
}

/* The bytes of the 32 inputs from i on, of which group g has s.group or more, at `out`. */
static inline void kt_r8_write(const kt_p64_spec *s, const kt_r8_group *g, int64_t i, int inputs,
                               const float factor[KT_P64_ROWS], uint8_t *out) {
    for (int r = 0; r < KT_P64_ROWS; r++) {
        const int zero = s->minimum == KT_P64_MIN_ZERO ? g->minima[r] : 0;
        const float scale = kt_p64_scale_of(s, g->head, g->scales, r);
        const int32_t ratio = kt_r8_ratio(scale, factor[r]);
        const int32_t start =
            kt_r8_ratio(kt_p64_minimum_of(s, g->head, g->scales, g->minima, r), factor[r]);
        for (int64_t j = i; j < i + inputs; j++)
            out[j / 4 * 256 + 4 * r + j % 4] = kt_r8_byte(g->value[r][j % 32] - zero, ratio, start);
    }
}

/* Requantise a p64 panel of reductions of length k, a multiple of s.group. `out` has
 * kt_r8_panel_bytes. The plain statement of what vector kernels write, bit for bit. */
KT_INLINE void kt_r8_panel(kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *out) {
    const int part = s.group < 32 ? s.group : 32;
    kt_r8_group g;

    for (int64_t first = 0; first < k; first += KT_R8_BLOCK) {
        const int64_t end = first + KT_R8_BLOCK < k ? first + KT_R8_BLOCK : k;
        float largest[KT_P64_ROWS] = {0}, factor[KT_P64_ROWS], step[KT_P64_ROWS];

        for (int64_t i = first; i < end; i += s.group) {
            kt_r8_open(&s, panel, i, &g);
            for (int r = 0; r < KT_P64_ROWS; r++) {
                const float of_group = (float)kt_r8_largest_of(
                    s, kt_r8_offset(&s, &g, r), kt_p64_scale_of(&s, g.head, g.scales, r),
                    kt_p64_minimum_of(&s, g.head, g.scales, g.minima, r));
                if (!(of_group <= largest[r]) && largest[r] == largest[r]) largest[r] = of_group;
            }
        }
        for (int r = 0; r < KT_P64_ROWS; r++) step[r] = kt_r8_step(largest[r], &factor[r]);
        for (int64_t i = first; i < end; i += part) {
            kt_r8_open(&s, panel, i, &g);
            const int in = (int)(i % kt_p64_run_inputs(s));
            const uint8_t *run = g.head + kt_p64_run_at(s, (int)(i % s.span));
            kt_p64_expand32(&s, run + (size_t)(in / 32) * kt_p64_plane_bytes(s), g.value);
            kt_r8_write(&s, &g, i, part, factor, out);
        }
        memcpy(out + 64 * k + first / KT_R8_BLOCK * 256, step, sizeof step);
    }
}

#endif
