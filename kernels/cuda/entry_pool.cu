/* Windows of tokens are pooled to entries that stand for all of them (kernels/compress/entries.h).
 *
 * A thread has a channel of a sequence and walks its rows, with the entry that the present window
 * ends and, where windows overlap, the next one's in registers: a token's work does not depend on
 * what comes with it, and chunks give the same bits.
 *
 *   entry_pool_rows  grid (dim / THREADS rounded up, spans)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/gather_calls.h"

#define THREADS (32 * KT_CONSTANT(0))

/* Largest gate, sum of weights (0 = empty) and weighted values. */
typedef struct pooled {
    float top, sum, values;
} pooled;

KT_DEVICE void add_token(pooled *e, float value, float gate) {
    const float was = e->sum > 0 ? e->top : gate, above = gate - was;
    const float less = kt_exp(above > 0 ? -above : above);
    const float keep = above > 0 ? less : 1.0f, add = above > 0 ? 1.0f : less;

    e->top = above > 0 ? gate : was;
    e->sum = e->sum * keep + add;
    e->values = e->values * keep + value * add;
}

KT_DEVICE pooled load(const float *at, int dim, int is) {
    pooled e;

    e.top = is ? at[0] : 0;
    e.sum = is ? at[dim] : 0;
    e.values = is ? at[2 * dim] : 0;
    return e;
}

KT_DEVICE void leave(float *at, int dim, const pooled *e) {
    at[0] = e->top;
    at[dim] = e->sum;
    at[2 * dim] = e->values;
}

/* The last half of the channels is the window's own, the first the next one's. */
KT_DEVICE void pool(const kt_entry_pool *p) {
    const kt_state_span s = p->spans[kt_block_y()];
    const int channel = kt_block_x() * THREADS + kt_thread(), overlaps = p->halves == 2;
    const int own_at = overlaps ? p->dim + channel : channel;
    const float *from = p->states + s.from * p->stride + channel;
    float *to = p->states + s.to * p->stride + channel;
    pooled own, next;

    if (channel >= p->dim) return;
    own = load(from, p->dim, 1);
    next = load(from + 3 * p->dim, p->dim, overlaps);
    for (int r = 0; r < s.rows; r++) {
        const int64_t row = s.first_row + r;
        const int place = (s.position + r) % p->ratio;
        const float *v = p->values + row * p->ldv, *g = p->gates + row * p->ldg;
        const float *ape = p->ape + (int64_t)place * p->halves * p->dim;
        add_token(&own, v[own_at], g[own_at] + ape[own_at]);
        if (overlaps) add_token(&next, v[channel], g[channel] + ape[channel]);
        if (place < p->ratio - 1) continue;
        p->out[row * p->ldo + channel] = own.values / own.sum;
        own = next;
        next = load(from, p->dim, 0);
    }
    leave(to, p->dim, &own);
    if (overlaps) leave(to + 3 * p->dim, p->dim, &next);
}

KT_ENTRY(entry_pool_rows, kt_entry_pool, pool, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {1, 2, 4};
static const kt_param params[] = {{"warps", warps_values, 3, 2}};

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

KT_CUDA_KERNEL(entry_pool) = {
    .name = "entry_pool",
    .about = "windows of tokens are pooled to entries",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 1,
    .entry = {{"entry_pool_rows", entry_pool_rows}},
    .refuse = kt_cuda_refuse_none,
    .threads = threads,
    .shared_bytes = kt_cuda_nothing_shared,
};
#endif
