/* Rows from one place to another: embeddings of tokens, sums, rows by number, bfloat16 copies.
 *
 * All have grid (width / THREADS rounded up, rows).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define IS_BF16 KT_CONSTANT(0) /* the table of embeddings; else f32 */
#define THREADS (32 * KT_CONSTANT(1))

KT_DEVICE void embed(const kt_rows_embed *p) {
    const int i = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y(), at = (int64_t)p->token[row] * p->width + i;

    if (i >= p->width) return;
    p->out[row * p->ldo + i] =
        IS_BF16 ? kt_bf16_low(((const uint16_t *)p->table)[at]) : ((const float *)p->table)[at];
}

KT_DEVICE void add(const kt_rows_add *p) {
    const int i = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y();

    if (i < p->width) p->y[row * p->ldy + i] += p->x[row * p->ldx + i];
}

KT_DEVICE void copy(const kt_rows_copy *p) {
    const int i = kt_block_x() * THREADS + kt_thread();
    const int64_t row = kt_block_y(), from = p->row ? p->row[row] : row;
    float v = 0;

    if (i >= p->width) return;
    if (from >= 0) v = p->x[from * p->ldx + i];
    if (p->y) p->y[row * p->ldy + i] = v;
    if (p->y16) p->y16[row * p->ldy16 + i] = (uint16_t)kt_bf16_pair(v, 0);
}

KT_ENTRY(rows_copy_embed, kt_rows_embed, embed, THREADS)
KT_ENTRY(rows_copy_add, kt_rows_add, add, THREADS)
KT_ENTRY(rows_copy_rows, kt_rows_copy, copy, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bf16_values[] = {0, 1}, warps_values[] = {2, 4, 8};
static const kt_param params[] = {{"bf16", bf16_values, 2, 1}, {"warps", warps_values, 3, 8}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[1];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)config, (void)k;
    return 0;
}

KT_CUDA_KERNEL(rows_copy) = {
    .name = "rows_copy",
    .about = "embeddings of tokens, sums of rows, rows by number, bfloat16 copies",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 2,
    .entry_count = 3,
    .entry = {{"rows_copy_embed", rows_copy_embed},
              {"rows_copy_add", rows_copy_add},
              {"rows_copy_rows", rows_copy_rows}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
