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
#include "kernels/cuda/kt_dev_open_tiles.h"
#include "kernels/cuda/moe_calls.h"

KT_DEVICE void gate_up(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * (KT_TILES_N / 2), left = p->n - n0;
    const int64_t at =
        t.expert * p->gate_bytes + (int64_t)n0 * kt_weight_row_of(KT_OPEN_FORMAT, p->k).bytes;
    const kt_tile_operands o = kt_tiles_operands(p->x, p->row_token + t.first, t.rows, p->k,
                                                 p->gate + at, left, p->up + at, left);
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    kt_open_product(&o, &sum);
    kt_tiles_put_glu(sum.f, &p->ending, t.expert, t.rows, left, p->n, n0,
                     p->h + (int64_t)t.first * p->n + n0);
}

KT_DEVICE void down(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * KT_TILES_N, left = p->k - n0;
    const int64_t bytes = kt_weight_row_of(KT_OPEN_FORMAT, p->n).bytes;
    const uint8_t *w = p->down + t.expert * p->down_bytes + n0 * bytes;
    const kt_tile_operands o =
        kt_tiles_operands(p->h + (int64_t)t.first * p->n, 0, t.rows, p->n, w, left,
                          w + KT_TILES_N / 2 * bytes, left - KT_TILES_N / 2);
    kt_tile_sums sum;

    if (t.rows <= 0) return;
    kt_open_product(&o, &sum);
    kt_tiles_put_rows(sum.f, t.rows, left, kt_dev_bias(p->ending.down_bias, t.expert, p->k, n0),
                      p->route + t.first, p->y + (int64_t)t.first * p->k + n0, p->k, 0);
}

KT_ENTRY(moe_tiles_gate_up, kt_moe_tiles, gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_tiles_down, kt_moe_tiles, down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(moe_tiles) = {
    .name = "moe_tiles",
    .about = "experts of many tokens on tensor cores, weights of any format, bfloat16 products",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = kt_open_params,
    .param_count = KT_OPEN_PARAMS,
    .entry_count = 2,
    .entry = {{"moe_tiles_gate_up", moe_tiles_gate_up}, {"moe_tiles_down", moe_tiles_down}},
    .jobs = KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = kt_open_refuse,
    .threads = kt_open_threads,
    .shared_bytes = kt_open_shared_bytes,
};
#endif
