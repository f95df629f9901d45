/* Causal convolution of each channel over the last TAPS rows of its sequence, then SiLU.
 *
 * A thread takes a channel and ROWS rows of the batch, and keeps the last inputs in registers. The
 * inputs before a sequence's first row are its state. The thread that has the first row also leaves
 * the new state, so that nobody else may read the old one: the first TAPS - 1 rows of a sequence
 * all belong to the block of its first row, wherever they lie.
 *
 *   conv_rows  grid (channels / THREADS rounded up, rows / ROWS rounded up)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define TAPS KT_CONSTANT(0)
#define ROWS KT_CONSTANT(1)
#define THREADS (32 * KT_CONSTANT(2))
enum { MAX_TAPS = 8 };
KT_REQUIRE(TAPS >= 2 && TAPS <= MAX_TAPS, "inputs in registers");

/* Input `i` of a sequence, counted from its first row in the batch; those before come from the
 * state. */
KT_DEVICE float input(const kt_conv_rows *p, const kt_state_span *s, int i, int channel) {
    if (i >= 0) return p->x[(int64_t)(s->first_row + i) * p->ldx + channel];
    return p->states[s->from * p->stride + (int64_t)(TAPS - 1 + i) * p->channels + channel];
}

/* The last inputs, the oldest first: what is read is never older than what is written, so that both
 * may be one place. */
KT_DEVICE void leave_state(const kt_conv_rows *p, const kt_state_span *s, int channel) {
    for (int j = 0; j < TAPS - 1; j++)
        p->states[s->to * p->stride + (int64_t)j * p->channels + channel] =
            input(p, s, s->rows - (TAPS - 1) + j, channel);
}

KT_DEVICE void conv(const kt_conv_rows *p) {
    const int channel = kt_block_x() * THREADS + kt_thread();
    const int first = kt_block_y() * ROWS, last = first + ROWS < p->rows ? first + ROWS : p->rows;
    const int behind = last + TAPS - 2 < p->rows ? last + TAPS - 2 : p->rows;
    float w[MAX_TAPS], x[MAX_TAPS];
    int next = -1; /* the row whose older inputs x has */

    if (channel >= p->channels) return;
    KT_UNROLL
    for (int j = 0; j < TAPS; j++) w[j] = p->w[(int64_t)j * p->channels + channel];
    for (int r = first; r < behind; r++) {
        const kt_state_span s = p->spans[p->span[r]];
        const int i = r - s.first_row, is_early = i < TAPS - 1;
        float sum = 0;
        if (is_early ? s.first_row < first || s.first_row >= last : r >= last) continue;
        if (i == 0 || r != next) {
            KT_UNROLL
            for (int j = 0; j < TAPS - 1; j++) x[j] = input(p, &s, i - (TAPS - 1) + j, channel);
        }
        if (i == 0) leave_state(p, &s, channel);
        x[TAPS - 1] = p->x[(int64_t)r * p->ldx + channel];
        KT_UNROLL
        for (int j = 0; j < TAPS; j++) sum = kt_fma(w[j], x[j], sum);
        p->y[(int64_t)r * p->ldy + channel] = sum * kt_sigmoid(sum);
        KT_UNROLL
        for (int j = 0; j < TAPS - 1; j++) x[j] = x[j + 1];
        next = r + 1;
    }
}

KT_ENTRY(conv_rows, kt_conv_rows, conv, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t taps_values[] = {2, 3, 4, 8}, rows_values[] = {8, 32, 128},
                     warps_values[] = {2, 4};
static const kt_param params[] = {
    {"taps", taps_values, 4, 4}, {"rows", rows_values, 3, 32}, {"warps", warps_values, 2, 4}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[2];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(conv) = {
    .name = "conv",
    .about = "causal convolution of channels, with SiLU and state",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 3,
    .entry_count = 1,
    .entry = {{"conv_rows", conv_rows}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
