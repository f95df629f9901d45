/* Experts of many tokens and dense products of many rows, as the kernels that open weights to
 * bfloat16 have them: a block multiplies one tile by BN / 2 columns of gate and the same of up, so
 * that SwiGLU happens in registers, or by BN columns of down or of a dense matrix.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_OPEN_JOBS_H
#define KT_DEV_OPEN_JOBS_H

#include "kernels/cuda/kt_dev_open_tiles.h"

#include "kernels/cuda/gemm_calls.h"
#include "kernels/cuda/moe_calls.h"

KT_DEVICE void kt_open_gate_up(const kt_moe_tiles *p) {
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

KT_DEVICE void kt_open_down(const kt_moe_tiles *p) {
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

KT_DEVICE void kt_open_dense(const kt_gemm_tiles *p) {
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

#endif
