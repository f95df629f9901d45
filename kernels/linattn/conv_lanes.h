/* The causal convolution, once for all widths. A vector is as many channels: the rows pass through
 * its last taps, which stay in registers. The order of the sum is that of the taps.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_CONV_LANES_H
#define KT_LINATTN_CONV_LANES_H

#include "kernels/linattn/lanes.h"
#include "kernels/linattn/linattn_common.h"

/* Channels [at, at + LANES). taps: a constant where it is worth it. */
KT_INLINE void conv_columns(const kt_conv_call *c, int64_t at, const int taps) {
    const int64_t n = c->problem->n;
    LANES_VEC w[KT_CONV_TAPS], x[KT_CONV_TAPS];

    for (int j = 0; j < taps; j++) w[j] = lanes_load(c->w + j * n + at);
    for (int j = 0; j + 1 < taps; j++) x[j] = lanes_load(c->state + j * n + at);
    for (int64_t row = 0; row < c->rows; row++) {
        LANES_VEC sum;
        x[taps - 1] = lanes_load(c->x + row * c->ldx + at);
        sum = lanes_mul(w[0], x[0]);
        for (int j = 1; j < taps; j++) sum = lanes_fma(w[j], x[j], sum);
        for (int j = 1; j < taps; j++) x[j - 1] = x[j];
        lanes_store(c->y + row * c->ldy + at, lanes_silu(sum));
    }
    for (int j = 0; j + 1 < taps; j++) lanes_store(c->state + j * n + at, x[j]);
}

static void conv(const kt_conv_call *c) {
    const int taps = (int)c->problem->k;

    for (int64_t at = c->channel_begin; at < c->channel_end; at += LANES) {
        if (taps == 4)
            conv_columns(c, at, 4);
        else
            conv_columns(c, at, taps);
    }
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    return kt_conv_accepts(p, LANES, why);
}

#endif
