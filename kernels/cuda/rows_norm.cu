/* Norms of rows: RMSNorm, RMSNorm of heads, LayerNorm; f32, and a bfloat16 copy where one is
 * wanted.
 *
 * A block takes a row, or (heads) a warp takes a piece. Sums are formed in one order whatever the
 * batch: lane by lane over the row, by halves over the warp, then warp after warp, so that a row
 * gets the same bits alone and among others. Every thread writes the numbers that it has read,
 * hence in place is allowed.
 *
 *   rms, layer  grid (rows, 1), pieces = 1
 *   heads       grid (rows * pieces / WARPS rounded up, 1)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/row_calls.h"

#define WARPS KT_CONSTANT(0)
#define THREADS (32 * WARPS)
enum { HELD = 16 }; /* numbers of a row that a thread keeps: all, of rows up to HELD * THREADS */
KT_REQUIRE(WARPS >= 1 && WARPS <= 32, "threads of a block");

KT_DEVICE void put(const kt_rows_norm *p, int64_t row, int column, float v) {
    if (p->y) p->y[row * p->ldy + column] = v;
    if (p->y16) p->y16[row * p->ldy16 + column] = (uint16_t)kt_bf16_pair(v, 0);
}

/* The column of number j of a thread. */
KT_DEVICE int at(int j) {
    return kt_thread() + j * THREADS;
}

/* The weights are on their way before the launch before has ended, and the row is read once: of one
 * row alone the time is that of loads that wait for each other. */
KT_DEVICE void rms(const kt_rows_norm *p) {
    const int64_t row = kt_block_x();
    const float *x = p->x + row * p->ldx;
    float w[HELD], held[HELD], sum = 0, r;

    KT_UNROLL
    for (int j = 0; j < HELD; j++) w[j] = at(j) < p->k ? p->w[at(j)] : 0;
    KT_LAUNCH_WAIT();
    KT_UNROLL
    for (int j = 0; j < HELD; j++) held[j] = at(j) < p->k ? x[at(j)] : 0;
    KT_UNROLL
    for (int j = 0; j < HELD; j++) sum = kt_fma(held[j], held[j], sum);
    for (int i = at(HELD); i < p->k; i += THREADS) sum = kt_fma(x[i], x[i], sum);
    sum = kt_block_sum(sum, 0, WARPS);
    r = 1.0f / kt_sqrt(sum / (float)p->k + p->eps);
    KT_UNROLL
    for (int j = 0; j < HELD; j++)
        if (at(j) < p->k) put(p, row, at(j), held[j] * r * w[j]);
    for (int i = at(HELD); i < p->k; i += THREADS) put(p, row, i, x[i] * r * p->w[i]);
}

KT_DEVICE void heads(const kt_rows_norm *p) {
    const int piece = kt_block_x() * WARPS + kt_warp();
    const int64_t row = piece / p->pieces;
    const int first = (piece - (int)row * p->pieces) * p->k;
    const float *x = p->x + row * p->ldx + first;
    float sum = 0, r;

    if (row >= p->rows) return;
    for (int i = kt_lane(); i < p->k; i += 32) sum = kt_fma(x[i], x[i], sum);
    sum = kt_warp_sum(sum);
    r = 1.0f / kt_sqrt(sum / (float)p->k + p->eps);
    for (int i = kt_lane(); i < p->k; i += 32)
        put(p, row, first + i, p->w ? x[i] * r * p->w[i] : x[i] * r);
}

/* The variance comes from the differences: mean(x^2) - mean^2 would cancel. */
KT_DEVICE void layer(const kt_rows_norm *p) {
    const int64_t row = kt_block_x();
    const float *x = p->x + row * p->ldx;
    float sum = 0, mean, r;

    for (int i = kt_thread(); i < p->k; i += THREADS) sum += x[i];
    mean = kt_block_sum(sum, 0, WARPS) / (float)p->k;
    sum = 0;
    for (int i = kt_thread(); i < p->k; i += THREADS) sum = kt_fma(x[i] - mean, x[i] - mean, sum);
    sum = kt_block_sum(sum, (uint32_t)WARPS * 4, WARPS);
    r = 1.0f / kt_sqrt(sum / (float)p->k + p->eps);
    for (int i = kt_thread(); i < p->k; i += THREADS)
        put(p, row, i, (x[i] - mean) * r * p->w[i] + p->bias[i]);
}

KT_ENTRY_EARLY(rows_norm_rms, kt_rows_norm, rms, THREADS)
KT_ENTRY(rows_norm_heads, kt_rows_norm, heads, THREADS)
KT_ENTRY(rows_norm_layer, kt_rows_norm, layer, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t warps_values[] = {2, 4, 8, 16};
static const kt_param params[] = {{"warps", warps_values, 4, 8}};

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)config, (void)target;
    return NULL;
}

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)k;
    return (size_t)config->value[0] * 8;
}

KT_CUDA_KERNEL(rows_norm) = {
    .name = "rows_norm",
    .about = "RMSNorm of rows and heads, LayerNorm",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 1,
    .entry_count = 3,
    .entry = {{"rows_norm_rms", rows_norm_rms},
              {"rows_norm_heads", rows_norm_heads},
              {"rows_norm_layer", rows_norm_layer}},
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
