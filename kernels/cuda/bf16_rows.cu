/* Rows of floats as bfloat16, one behind the other: what tensor cores read of many rows.
 *
 *   bf16_rows        grid (k / (8 THREADS) rounded up, heads * rows)
 *   bf16_rows_tails  grid (heads, rows): floats that go past a product of heads as they are
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/gemm_calls.h"

#define THREADS KT_CONSTANT(0)

KT_DEVICE void convert(const kt_bf16_rows *p) {
    const int row = kt_block_y() % p->rows, head = kt_block_y() / p->rows;
    const int at = (kt_block_x() * THREADS + kt_thread()) * 8;
    const float *x = p->x + (p->x_row ? p->x_row[row] : row) * p->ldx + head * p->x_head + at;
    uint32_t *to = (uint32_t *)(p->to + (int64_t)kt_block_y() * p->k + at);

    if (at >= p->k) return;
    KT_UNROLL
    for (int i = 0; i < 4; i++) to[i] = kt_bf16_pair(x[2 * i], x[2 * i + 1]);
}

KT_DEVICE void copy_tails(const kt_head_tails *p) {
    const int64_t row = kt_block_y(), head = kt_block_x();

    for (int i = kt_thread(); i < p->width; i += THREADS)
        p->y[row * p->ldy + head * p->y_head + i] = p->x[row * p->ldx + head * p->x_head + i];
}

KT_ENTRY(bf16_rows, kt_bf16_rows, convert, THREADS)
KT_ENTRY(bf16_rows_tails, kt_head_tails, copy_tails, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t threads_values[] = {32, 64, 128, 256};
static const kt_param params[] = {{"threads", threads_values, 4, 128}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(bf16_rows) = {
    .name = "bf16_rows",
    .about = "rows of floats as bfloat16",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 2,
    .entry = {{"bf16_rows", bf16_rows}, {"bf16_rows_tails", bf16_rows_tails}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
