/* Dense products of 1 to 8 rows: weights of any format, float in and out.
 *
 * A block makes 16 TILES outputs for all rows; its warps split the inputs (kt_dev_few.h). Each
 * weight is read once, those of the first step before the launch before has ended.
 *
 *   gemm_decode  grid (n / (16 TILES) rounded up, heads)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_few.h"
#include "kernels/cuda/gemm_calls.h"

#define WARPS KT_CONSTANT(0)
#define TILES KT_CONSTANT(1)
#define AHEAD KT_CONSTANT(2) /* 1: the next step's weights are loaded while one is multiplied */
#define FORMAT KT_CONSTANT(3)
#define THREADS (32 * WARPS)
enum { MAX_TILES = 4 };
KT_REQUIRE(WARPS >= 1 && TILES >= 1 && TILES <= MAX_TILES, "tiles");

KT_DEVICE void write_rows(const kt_gemm_decode *p, int first, const float *sum) {
    KT_UNROLL
    for (int i = 0; i < TILES * 4; i++) {
        const int output = first + i / 4 * KT_FEW_TILE + (kt_lane() >> 2) + i % 4 / 2 * 8;
        const int row = (kt_lane() & 3) * 2 + i % 2;
        float *y = p->y + kt_block_y() * p->y_head + row * p->ldy + output;
        if (output >= p->n || row >= p->rows) continue;
        *y = p->accumulate ? *y + sum[i] : sum[i];
    }
}

KT_DEVICE void load_tiles(const kt_gemm_decode *p, const uint8_t *w, int first,
                          const kt_weight_row *at, int step, kt_few_weights *to) {
    KT_UNROLL
    for (int t = 0; t < TILES; t++)
        kt_few_load(FORMAT, w + (int64_t)(t * KT_FEW_TILE) * at->bytes,
                    p->n - first - t * KT_FEW_TILE, at, p->k, step, &to[t]);
}

KT_DEVICE void product(const kt_gemm_decode *p) {
    const int first = kt_block_x() * TILES * KT_FEW_TILE, row = kt_lane() >> 2;
    const int steps = (p->k + KT_FEW_STEP - 1) / KT_FEW_STEP;
    const kt_weight_row at = kt_weight_row_of(FORMAT, p->k);
    const uint8_t *w = p->w + kt_block_y() * p->w_head + (int64_t)first * at.bytes;
    const float *x = 0;
    kt_few_weights now[MAX_TILES], next[MAX_TILES];
    float sum[MAX_TILES * 4];
    int step = kt_warp();

    if (step < steps) load_tiles(p, w, first, &at, step, now);
    KT_LAUNCH_WAIT();
    if (row < p->rows)
        x = p->x + kt_block_y() * p->x_head + (p->x_row ? p->x_row[row] : row) * p->ldx;
    KT_UNROLL
    for (int i = 0; i < TILES * 4; i++) sum[i] = 0;
    KT_ROLLED
    for (; step < steps; step += WARPS) {
        uint32_t pairs[16];
        if (AHEAD && step + WARPS < steps) load_tiles(p, w, first, &at, step + WARPS, next);
        kt_few_load_f32(FORMAT, x, p->k, step, pairs);
        KT_UNROLL
        for (int t = 0; t < TILES; t++) kt_few_multiply(FORMAT, &now[t], pairs, sum + 4 * t);
        KT_UNROLL
        for (int t = 0; AHEAD && t < TILES; t++) now[t] = next[t];
        if (!AHEAD && step + WARPS < steps) load_tiles(p, w, first, &at, step + WARPS, now);
    }
    kt_few_reduce(WARPS, 0, sum, TILES * 4);
    if (kt_warp() == 0) write_rows(p, first, sum);
}

KT_ENTRY_EARLY(gemm_decode, kt_gemm_decode, product, THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/weight_values.h"

static const int32_t warps_values[] = {1, 2, 4, 8, 16}, tiles_values[] = {1, 2, 4},
                     ahead_values[] = {0, 1};
static const kt_param params[] = {{"warps", warps_values, 5, 8},
                                  {"tiles", tiles_values, 3, 1},
                                  {"ahead", ahead_values, 2, 1},
                                  {"format", kt_weight_values, KT_WEIGHT_VALUES, KT_W_INT4_G32}};

static int threads(const kt_config *config) {
    return 32 * config->value[0];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    (void)k;
    return kt_few_reduce_bytes(config->value[0], config->value[1] * 4);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    (void)target;
    if (kt_weight_spec_of(config->value[3]).low == 0) return "no such format of weights";
    return NULL;
}

KT_CUDA_KERNEL(gemm_decode) = {
    .name = "gemm_decode",
    .about = "dense products of 1 to 8 rows, weights of any format",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 4,
    .entry_count = 1,
    .entry = {{"gemm_decode", gemm_decode}},
    .jobs = KT_CUDA_GEMM_FEW,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
