/* The causal convolution, once for all widths. A few vectors of channels: the rows pass through
 * their last taps, which stay in registers. The order of the sum is that of the taps.
 *
 * Rows lie thousands of bytes apart, each in a page of its own, where no hardware prefetcher
 * follows: ACROSS lines of a row at a time, and those of a row to come fetched ahead.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_CONV_LANES_H
#define KT_LINATTN_CONV_LANES_H

#include "kernels/linattn/lanes.h"
#include "kernels/linattn/linattn_common.h"

#define ACROSS (LANES == 16 ? 4 : 2) /* vectors at a time: their taps are registers */
#define ACROSS_FEW 2                 /* of a few rows, which wait for taps and state instead */
#define FEW 8                        /* rows */
#define AHEAD 8                      /* rows */

/* Channels [at, at + nv * LANES). nv is a constant; taps where it is worth it. */
KT_INLINE void conv_columns(const kt_conv_call *c, int64_t at, const int taps, const int nv) {
    const int64_t n = c->problem->n;
    LANES_VEC x[KT_CONV_TAPS][ACROSS], w[KT_CONV_TAPS][ACROSS];

    for (int j = 0; j < taps; j++)
        KT_EACH (i, nv) w[j][i] = lanes_load(c->w + j * n + at + i * LANES);
    for (int j = 0; j + 1 < taps; j++)
        KT_EACH (i, nv) x[j][i] = lanes_load(c->state + j * n + at + i * LANES);
    for (int64_t row = 0; row < c->rows; row++) {
        const float *in = c->x + row * c->ldx + at;
        float *out = c->y + row * c->ldy + at;
        if (row + AHEAD < c->rows)
            for (int i = 0; i < nv * LANES; i += 16)
                __builtin_prefetch(in + AHEAD * c->ldx + i, 0, 3);
        KT_EACH (i, nv) {
            LANES_VEC sum;
            x[taps - 1][i] = lanes_load(in + i * LANES);
            sum = lanes_mul(w[0][i], x[0][i]);
            for (int j = 1; j < taps; j++) sum = lanes_fma(w[j][i], x[j][i], sum);
            for (int j = 1; j < taps; j++) x[j - 1][i] = x[j][i];
            lanes_store(out + i * LANES, lanes_silu(sum));
        }
    }
    for (int j = 0; j + 1 < taps; j++)
        KT_EACH (i, nv) lanes_store(c->state + j * n + at + i * LANES, x[j][i]);
}

static void conv(const kt_conv_call *c) {
    const int taps = (int)c->problem->k;
    int64_t at = c->channel_begin;

    if (taps == 4 && c->rows >= FEW)
        for (; at + ACROSS * LANES <= c->channel_end; at += ACROSS * LANES)
            conv_columns(c, at, 4, ACROSS);
    else if (taps == 4)
        for (; at + ACROSS_FEW * LANES <= c->channel_end; at += ACROSS_FEW * LANES)
            conv_columns(c, at, 4, ACROSS_FEW);
    for (; at < c->channel_end; at += LANES) conv_columns(c, at, taps, 1);
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    return kt_conv_accepts(p, LANES, why);
}

#endif
