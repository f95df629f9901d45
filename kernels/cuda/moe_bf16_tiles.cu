/* Experts of many tokens on tensor cores: bfloat16 weights and activations, sums in float.
 *
 * Tokens are sorted by expert (`row_token` names the token of each sorted row), and the sorted rows
 * of an expert are cut into tiles of at most BM. A block multiplies one tile by BN / 2 columns of
 * gate and the same of up (or BN of down), so that SwiGLU happens in registers. The pipeline is
 * that of kt_dev_tiles.h, 64 inputs a step.
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *   combine  grid (k / THREADS rounded up, tokens): out = sum of a token's rows of y, in slot order
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define KT_TILES_M KT_CONSTANT(0)
#define KT_TILES_N KT_CONSTANT(1)
#define KT_TILES_WARPS_M KT_CONSTANT(2)
#define KT_TILES_WARPS_N KT_CONSTANT(3)
#define KT_TILES_STAGES KT_CONSTANT(4)
#define KT_TILES_B_BYTES 128
#define KT_TILES_MORE 0
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/kt_dev_tiles.h"
#include "kernels/cuda/moe_calls.h"

KT_DEVICE void kt_tiles_fetch_own(const kt_tile_operands *o, int step, uint32_t stage) {
    (void)o, (void)step, (void)stage;
}

KT_DEVICE void kt_tiles_multiply(const kt_tile_operands *o, int step, uint32_t stage,
                                 kt_tile_sums *sum) {
    (void)o, (void)step;
    KT_UNROLL
    for (int slice = 0; slice < 4; slice++) {
        uint32_t a[KT_TILES_MAX_I * 4];
        kt_tiles_load_a(stage, slice, a);
        KT_UNROLL
        for (int half = 0; half < 2; half++) KT_UNROLL
        for (int j = 0; j < KT_TILES_J; j += 2) {
            uint32_t b[4];
            kt_tiles_load_b(stage, half, j, slice, b);
            KT_UNROLL
            for (int i = 0; i < KT_TILES_I; i++) {
                float *c = sum->f + KT_TILES_SUM(i, half, j);
                kt_mma_bf16(c, a + i * 4, b[0], b[1]);
                kt_mma_bf16(c + 4, a + i * 4, b[2], b[3]);
            }
        }
    }
}

KT_DEVICE void gate_up(const kt_moe_bf16_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * (KT_TILES_N / 2), left = p->n - n0;
    const int64_t at = ((int64_t)t.expert * p->n + n0) * p->k;
    const kt_tile_operands o = {(const uint8_t *)p->x,
                                {(const uint8_t *)(p->gate + at), (const uint8_t *)(p->up + at)},
                                p->row_token + t.first,
                                t.rows,
                                {left, left},
                                p->k * 2,
                                p->k * 2,
                                p->k * 2,
                                (p->k + 63) / 64,
                                0,
                                0,
                                0};
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    kt_tiles_product(&o, &sum);
    kt_tiles_put_swiglu(sum.f, t.rows, left, p->h + (int64_t)t.first * p->n + n0, p->n);
}

KT_DEVICE void down(const kt_moe_bf16_tiles *p) {
    const kt_moe_tile t = p->tile[kt_block_y()];
    const int n0 = kt_block_x() * KT_TILES_N, left = p->k - n0;
    const int64_t second = left > KT_TILES_N / 2 ? KT_TILES_N / 2 : 0;
    const uint16_t *w = p->down + ((int64_t)t.expert * p->k + n0) * p->n;
    const kt_tile_operands o = {(const uint8_t *)(p->h + (int64_t)t.first * p->n),
                                {(const uint8_t *)w, (const uint8_t *)(w + second * p->n)},
                                0,
                                t.rows,
                                {left, left - KT_TILES_N / 2},
                                p->n * 2,
                                p->n * 2,
                                p->n * 2,
                                (p->n + 63) / 64,
                                0,
                                0,
                                0};
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    kt_tiles_product(&o, &sum);
    kt_tiles_put_rows(sum.f, t.rows, left, p->route + t.first, p->y + (int64_t)t.first * p->k + n0,
                      p->k, 0);
}

KT_DEVICE void combine(const kt_moe_bf16_tiles *p) {
    kt_tiles_combine(p->row_of, p->slots, p->y, p->k, p->out);
}

KT_ENTRY(moe_bf16_tiles_gate_up, kt_moe_bf16_tiles, gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_bf16_tiles_down, kt_moe_bf16_tiles, down, KT_TILES_THREADS)
KT_ENTRY(moe_bf16_tiles_combine, kt_moe_bf16_tiles, combine, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bm_values[] = {16, 32, 64, 128}, bn_values[] = {64, 128, 256},
                     warps_m_values[] = {1, 2, 4}, warps_n_values[] = {1, 2, 4},
                     stages_values[] = {2, 3, 4};
static const kt_param params[] = {{"bm", bm_values, 4, 64},
                                  {"bn", bn_values, 3, 128},
                                  {"warps_m", warps_m_values, 3, 2},
                                  {"warps_n", warps_n_values, 3, 2},
                                  {"stages", stages_values, 3, 3}};

static int threads(const kt_config *config) {
    return 32 * config->value[2] * config->value[3];
}

static kt_tiles_shape shape_of(const kt_config *config) {
    const int32_t *v = config->value;
    return (kt_tiles_shape){v[0], v[1], v[2], v[3], v[4], 128, 0};
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

KT_CUDA_KERNEL(moe_bf16_tiles) = {
    .name = "moe_bf16_tiles",
    .about = "experts of many tokens on tensor cores, bfloat16",
    .version = 1,
    .targets = KT_CUDA_BASELINE,
    .params = params,
    .param_count = 5,
    .entry_count = 3,
    .entry = {{"moe_bf16_tiles_gate_up", moe_bf16_tiles_gate_up},
              {"moe_bf16_tiles_down", moe_bf16_tiles_down},
              {"moe_bf16_tiles_combine", moe_bf16_tiles_combine}},
    .needs_opcodes = 1u << KT_OPCODE_HMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
