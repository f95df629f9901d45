/* Dense products of many rows on tensor cores: weights of any format, bfloat16 activations, sums in
 * float (kt_dev_open_tiles.h).
 *
 *   gemm_tiles  grid (n / BN rounded up, heads * row tiles)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_open_tiles.h"
#include "kernels/cuda/gemm_calls.h"

KT_DEVICE void product(const kt_gemm_tiles *p) {
    const int head = kt_block_y() / p->row_tiles, m0 = kt_block_y() % p->row_tiles * KT_TILES_M;
    const int n0 = kt_block_x() * KT_TILES_N, left = p->n - n0, rows = p->rows - m0;
    const int64_t bytes = kt_weight_row_of(KT_OPEN_FORMAT, p->k).bytes;
    const uint8_t *w = p->w + head * p->w_head + n0 * bytes;
    const uint16_t *x = p->x + ((int64_t)head * p->rows + m0) * p->k;
    const kt_tile_operands o =
        kt_tiles_operands(x, 0, rows < KT_TILES_M ? rows : KT_TILES_M, p->k, w, left,
                          w + KT_TILES_N / 2 * bytes, left - KT_TILES_N / 2);
    kt_tile_sums sum;

    kt_open_product(&o, &sum);
    kt_tiles_put_rows(sum.f, o.rows, left, 0, 0, p->y + head * p->y_head + m0 * p->ldy + n0, p->ldy,
                      p->accumulate);
}

KT_ENTRY(gemm_tiles, kt_gemm_tiles, product, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(gemm_tiles) = {
    .name = "gemm_tiles",
    .about = "dense products of many rows on tensor cores, weights of any format",
    .version = 2,
    .targets = KT_CUDA_BASELINE,
    .params = kt_open_params,
    .param_count = KT_OPEN_PARAMS,
    .entry_count = 1,
    .entry = {{"gemm_tiles", gemm_tiles}},
    .jobs = KT_CUDA_GEMM_MANY,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = kt_open_refuse,
    .threads = kt_open_threads,
    .shared_bytes = kt_open_shared_bytes,
};
#endif
