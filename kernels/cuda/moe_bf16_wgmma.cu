/* Experts of many tokens on the tensor cores of sm_90a, which multiply whole warpgroups out of
 * shared memory (wgmma): bfloat16 weights and activations, sums in float.
 *
 * Copies, stages and tiles are those of kt_dev_tiles.h: the turned rows of 128 bytes in shared
 * memory are what wgmma reads, and its sums lie in registers as those of mma.sync do, with one tile
 * of 16 rows a warp. A product of 64 rows by BN columns takes gate and up at once. A warpgroup does
 * not load fragments but names its operands; before the barrier each thread shows its copies to the
 * tensor cores by a fence. The products of a step go on while the next ones are put behind them.
 * Calls are those of moe_tiles.cu.
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/kt_dev_wgmma.h"

#define KT_TILES_M KT_CONSTANT(0)
#define KT_TILES_N KT_CONSTANT(1)
#define KT_TILES_WARPS_M (KT_TILES_M / 16)
#define KT_TILES_WARPS_N 1
#define KT_TILES_STAGES KT_CONSTANT(2)
#define KT_TILES_B_BYTES 128
#define KT_TILES_MORE 0
#define KT_TILES_FENCE kt_wgmma_proxy
#define KT_TILES_WIDE
#define KT_TILES_PARTS 0
#include "kernels/cuda/kt_dev_tiles.h"
#include "kernels/cuda/moe_calls.h"
KT_REQUIRE(KT_TILES_M % 64 == 0 && (KT_TILES_N == 64 || KT_TILES_N == 128 || KT_TILES_N == 256),
           "warpgroups");

KT_DEVICE void kt_tiles_fetch_own(const kt_tile_operands *o, int step, uint32_t stage) {
    (void)o, (void)step, (void)stage;
}

KT_DEVICE void kt_tiles_put(uint32_t stage, float *to) {
    const uint32_t rows = stage + (uint32_t)(kt_warp() / 4 * 64 * 128);

    kt_wgmma_fence();
    KT_UNROLL
    for (int slice = 0; slice < 4; slice++) {
        const uint64_t a = kt_wgmma_rows(rows + (uint32_t)slice * 32);
        const uint64_t b = kt_wgmma_rows(stage + (uint32_t)(KT_TILES_B + slice * 32));
        if (KT_TILES_N == 64)
            kt_wgmma_bf16_n64(to, a, b);
        else if (KT_TILES_N == 128)
            kt_wgmma_bf16_n128(to, a, b);
        else
            kt_wgmma_bf16_n256(to, a, b);
    }
    kt_wgmma_commit();
}

KT_DEVICE void kt_tiles_fold(uint32_t stage, const float *part, kt_tile_sums *sum) {
    (void)stage, (void)part, (void)sum;
}

KT_DEVICE void gate_up(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * (KT_TILES_N / 2), left = p->n - n0;
    const int64_t at = t.expert * p->gate_bytes + (int64_t)n0 * p->k * 2;
    const kt_tile_operands o = kt_tiles_operands(p->x, p->row_token + t.first, t.rows, p->k,
                                                 p->gate + at, left, p->up + at, left);
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    kt_tiles_product(&o, &sum);
    kt_tiles_put_glu(sum.f, &p->ending, t.expert, t.rows, left, p->n, n0,
                     p->h + (int64_t)t.first * p->n + n0);
}

KT_DEVICE void down(const kt_moe_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * KT_TILES_N, left = p->k - n0;
    const int64_t second = left > KT_TILES_N / 2 ? KT_TILES_N / 2 : 0;
    const uint8_t *w = p->down + t.expert * p->down_bytes + (int64_t)n0 * p->n * 2;
    const kt_tile_operands o =
        kt_tiles_operands(p->h + (int64_t)t.first * p->n, 0, t.rows, p->n, w, left,
                          w + second * p->n * 2, left - KT_TILES_N / 2);
    kt_tile_sums sum;

    if (t.rows <= 0) return;
    kt_tiles_product(&o, &sum);
    kt_tiles_put_rows(sum.f, t.rows, left, kt_dev_bias(p->ending.down_bias, t.expert, p->k, n0),
                      p->route + t.first, p->y + (int64_t)t.first * p->k + n0, p->k, 0);
}

KT_ENTRY(moe_bf16_wgmma_gate_up, kt_moe_tiles, gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_bf16_wgmma_down, kt_moe_tiles, down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bm_values[] = {64, 128, 256}, bn_values[] = {64, 128, 256},
                     stages_values[] = {3, 4, 5, 6};
static const kt_param params[] = {
    {"bm", bm_values, 3, 128}, {"bn", bn_values, 3, 256}, {"stages", stages_values, 4, 4}};

static kt_tiles_shape shape_of(const kt_config *config) {
    const int32_t *v = config->value;
    return (kt_tiles_shape){v[0], v[1], v[0] / 16, 1, v[2], 128, 0, true};
}

static int threads(const kt_config *config) {
    return config->value[0] * 2;
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const kt_tiles_shape s = shape_of(config);
    (void)k;
    return kt_tiles_shared_bytes(&s);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const kt_tiles_shape s = shape_of(config);
    return kt_tiles_refuse(&s, target);
}

KT_CUDA_KERNEL(moe_bf16_wgmma) = {
    .name = "moe_bf16_wgmma",
    .about = "experts of many tokens on tensor cores of sm_90a, bfloat16",
    .version = 4,
    .targets = KT_CUDA_WGMMA,
    .params = params,
    .param_count = 3,
    .entry_count = 2,
    .entry = {{"moe_bf16_wgmma_gate_up", moe_bf16_wgmma_gate_up},
              {"moe_bf16_wgmma_down", moe_bf16_wgmma_down}},
    .jobs = KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HGMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
