/* The causal convolution, once for all widths. A few vectors of channels: the rows pass through
 * their last taps, which stay in registers. The order of the sum is that of the taps.
 *
 * Rows lie thousands of bytes apart, each in a page of its own, where no hardware prefetcher
 * follows: ACROSS lines of a row at a time, and those of a row to come fetched ahead; with eight
 * lanes, for whose narrow columns rows are in each other's way, WIDE channels at a time.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_CONV_LANES_H
#define KT_LINATTN_CONV_LANES_H

#include <string.h>

#include "kernels/linattn/lanes.h"
#include "kernels/linattn/linattn_common.h"

#define ACROSS (LANES == 16 ? 4 : 2) /* vectors at a time: their taps are registers */
#define ACROSS_FEW 2                 /* of a few rows, which wait for taps and state instead */
#define FEW 8                        /* rows */
#define WIDE 512                     /* channels */
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

#if LANES == 8
/* Channels [at, at + n), n <= WIDE and whole lines, of many rows: some lines of a row lie behind
 * each other, in sets of their own, where one line of 16 rows would meet the 8 ways of one set.
 * The last inputs are kept beside each other, as y may be x. */
KT_INLINE void conv_wide(const kt_conv_call *c, int64_t at, int64_t n) {
    const int64_t ldw = c->problem->n;
    const float *w = c->w + at;
    _Alignas(64) float kept[3][WIDE];
    float *past[3] = {kept[0], kept[1], kept[2]};

    for (int j = 0; j < 3; j++) memcpy(past[j], c->state + j * ldw + at, (size_t)n * sizeof **past);
    for (int64_t row = 0; row < c->rows; row++) {
        const float *in = c->x + row * c->ldx + at;
        float *const out = c->y + row * c->ldy + at, *const oldest = past[0];
        const int64_t ahead = row + 1 < c->rows;
        for (int64_t i = 0; i < n; i += 16) {
            __builtin_prefetch(in + ahead * c->ldx + i, 0, 3);
            __builtin_prefetch(out + ahead * c->ldy + i, 1, 3);
            KT_EACH (v, 2) {
                const int64_t k = i + 8 * v;
                const LANES_VEC x = lanes_load(in + k);
                LANES_VEC sum = lanes_mul(lanes_load(w + k), lanes_load(oldest + k));
                sum = lanes_fma(lanes_load(w + ldw + k), lanes_load(past[1] + k), sum);
                sum = lanes_fma(lanes_load(w + 2 * ldw + k), lanes_load(past[2] + k), sum);
                sum = lanes_fma(lanes_load(w + 3 * ldw + k), x, sum);
                lanes_store(oldest + k, x);
                lanes_store(out + k, lanes_silu(sum));
            }
        }
        past[0] = past[1];
        past[1] = past[2];
        past[2] = oldest;
    }
    for (int j = 0; j < 3; j++) memcpy(c->state + j * ldw + at, past[j], (size_t)n * sizeof **past);
}
#endif

static void conv(const kt_conv_call *c) {
    const int taps = (int)c->problem->k;
    int64_t at = c->channel_begin;

#if LANES == 8
    for (int64_t n; taps == 4 && c->rows >= FEW && c->channel_end - at >= 16; at += n) {
        n = c->channel_end - at < WIDE ? (c->channel_end - at) / 16 * 16 : WIDE;
        conv_wide(c, at, n);
    }
#endif
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
