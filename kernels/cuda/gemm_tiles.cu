/* Dense products of many rows on tensor cores: weights of any format, bfloat16 activations, sums in
 * float (kt_dev_open_tiles.h).
 *
 *   gemm_tiles  grid (n / BN rounded up, heads * row tiles)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define KT_TILES_M KT_CONSTANT(0)
#define KT_TILES_N KT_CONSTANT(1)
#define KT_TILES_WARPS_M KT_CONSTANT(2)
#define KT_TILES_WARPS_N KT_CONSTANT(3)
#define KT_TILES_STAGES KT_CONSTANT(4)
#define KT_OPEN_FORMAT KT_CONSTANT(5)
#include "kernels/cuda/kt_dev_open_tiles.h"
#include "kernels/cuda/gemm_calls.h"

KT_DEVICE void product(const kt_gemm_tiles *p) {
    const int head = kt_block_y() / p->row_tiles, m0 = kt_block_y() % p->row_tiles * KT_TILES_M;
    const int n0 = kt_block_x() * KT_TILES_N, left = p->n - n0, rows = p->rows - m0;
    const int64_t bytes = kt_weight_row_of(KT_OPEN_FORMAT, p->k).bytes;
    const uint8_t *w = p->w + head * p->w_head + n0 * bytes;
    const uint16_t *x = p->x + ((int64_t)head * p->rows + m0) * p->k;
    const kt_tile_operands o =
        kt_open_operands(x, 0, rows < KT_TILES_M ? rows : KT_TILES_M, p->k, w, left,
                         w + KT_TILES_N / 2 * bytes, left - KT_TILES_N / 2);
    kt_tile_sums sum;

    kt_open_product(&o, &sum);
    kt_tiles_put_rows(sum.f, o.rows, left, 0, p->y + head * p->y_head + m0 * p->ldy + n0, p->ldy,
                      p->accumulate);
}

KT_ENTRY(gemm_tiles, kt_gemm_tiles, product, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bm_values[] = {16, 32, 64, 128}, bn_values[] = {64, 128, 256},
                     warps_m_values[] = {1, 2, 4}, warps_n_values[] = {1, 2, 4},
                     stages_values[] = {2, 3, 4};
static const kt_param params[] = {{"bm", bm_values, 4, 64},
                                  {"bn", bn_values, 3, 128},
                                  {"warps_m", warps_m_values, 3, 2},
                                  {"warps_n", warps_n_values, 3, 2},
                                  {"stages", stages_values, 3, 3},
                                  {"format", kt_weight_values, KT_WEIGHT_VALUES, KT_DEV_INT4_G32}};

static int threads(const kt_config *config) {
    return 32 * config->value[2] * config->value[3];
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const kt_tiles_shape s = kt_open_shape(config);
    (void)k;
    return kt_tiles_shared_bytes(&s);
}

KT_CUDA_KERNEL(gemm_tiles) = {
    .name = "gemm_tiles",
    .about = "dense products of many rows on tensor cores, weights of any format",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 6,
    .entry_count = 1,
    .entry = {{"gemm_tiles", gemm_tiles}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = kt_open_refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
