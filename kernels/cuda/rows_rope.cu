/* Rotary embedding of heads, in place, by the host's table of cosines and sines.
 *
 * A thread turns one pair: (a, b) becomes (a cos - b sin, b cos + a sin). What is behind rotary_dim
 * in a head is not touched.
 *
 *   rows_rope_turn  grid (heads * rotary_dim / 2 / THREADS rounded up, rows)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define THREADS (32 * KT_CONSTANT(0))

KT_DEVICE void turn(const kt_rows_rope *p) {
    const int half = p->rotary_dim / 2, i = kt_block_x() * THREADS + kt_thread();
    const int head = i / half, pair = i - head * half;
    const int64_t row = kt_block_y();
    const float *angle = p->cos_sin + (int64_t)p->position[row] * p->rotary_dim + pair;
    float *x = p->x + row * p->ld + (int64_t)head * p->head_dim;
    const int first = p->is_interleaved ? 2 * pair : pair;
    const int second = p->is_interleaved ? 2 * pair + 1 : pair + half;
    const float sign = p->is_inverse ? -1.0f : 1.0f; /* of the angle, moved to b */
    float a, b;

    if (head >= p->heads) return;
    a = x[first], b = sign * x[second];
    kt_turn(&a, &b, angle[0], angle[half]);
    x[first] = a;
    x[second] = sign * b;
}

KT_ENTRY(rows_rope_turn, kt_rows_rope, turn, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8};
static const kt_param params[] = {{"warps", warps_values, 3, 4}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(rows_rope) = {
    .name = "rows_rope",
    .about = "rotary embedding of heads",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 1,
    .entry = {{"rows_rope_turn", rows_rope_turn}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
