/* Experts of many tokens on tensor cores: weights of any format, bfloat16 activations, sums in
 * float.
 *
 * Tokens are sorted by expert, and the sorted rows of an expert are cut into tiles of at most BM
 * (kt_moe_permute makes the lists). A block multiplies one tile by BN / 2 columns of gate and the
 * same of up (or BN of down), so that SwiGLU happens in registers (kt_dev_open_tiles.h).
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *
 * The format may differ between the two: then each is started from the code of its own. What is
 * left to do is the sum of each token's rows of y.
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
#include "kernels/cuda/moe_calls.h"

KT_DEVICE void gate_up(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * (KT_TILES_N / 2), left = p->n - n0;
    const int64_t at =
        t.expert * p->gate_bytes + (int64_t)n0 * kt_weight_row_of(KT_OPEN_FORMAT, p->k).bytes;
    const kt_tile_operands o = kt_open_operands(p->x, p->row_token + t.first, t.rows, p->k,
                                                p->gate + at, left, p->up + at, left);
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    kt_open_product(&o, &sum);
    kt_tiles_put_swiglu(sum.f, t.rows, left, p->h + (int64_t)t.first * p->n + n0, p->n);
}

KT_DEVICE void down(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * KT_TILES_N, left = p->k - n0;
    const int64_t bytes = kt_weight_row_of(KT_OPEN_FORMAT, p->n).bytes;
    const uint8_t *w = p->down + t.expert * p->down_bytes + n0 * bytes;
    const kt_tile_operands o =
        kt_open_operands(p->h + (int64_t)t.first * p->n, 0, t.rows, p->n, w, left,
                         w + KT_TILES_N / 2 * bytes, left - KT_TILES_N / 2);
    kt_tile_sums sum;

    if (t.rows <= 0) return;
    kt_open_product(&o, &sum);
    kt_tiles_put_rows(sum.f, t.rows, left, p->route + t.first, p->y + (int64_t)t.first * p->k + n0,
                      p->k, 0);
}

KT_ENTRY(moe_tiles_gate_up, kt_moe_tiles, gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_tiles_down, kt_moe_tiles, down, KT_TILES_THREADS)

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

KT_CUDA_KERNEL(moe_tiles) = {
    .name = "moe_tiles",
    .about = "experts of many tokens on tensor cores, weights of any format, bfloat16 products",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 6,
    .entry_count = 2,
    .entry = {{"moe_tiles_gate_up", moe_tiles_gate_up}, {"moe_tiles_down", moe_tiles_down}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = kt_open_refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
