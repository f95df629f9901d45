/* Experts of many tokens, and dense products of many rows, on the tensor cores of sm_90a for E4M3,
 * which multiply whole warpgroups out of shared memory (wgmma): weights in blocks of 128 x 128 or
 * with a scale per channel, activations per 128 inputs or per row (quantise_rows.cu).
 *
 * Tensor cores add E4M3 with few bits: the sums of 128 inputs, a step, begin anew each step, and
 * are added in float (times both scales in blocks) while the next step is multiplied.
 *
 *   gate_up  grid (n / (bn / 2) rounded up, tiles): h = SwiGLU, as bfloat16
 *   down     grid (k / bn rounded up, tiles): y = route * down(h8), or any dense product
 *
 * Order of fences as in moe_wgmma.cu; scales and entries in kt_dev_a8_tiles.h.
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
#define KT_TILES_FENCE kt_wgmma_proxy
#define KT_TILES_WIDE
#define KT_TILES_PARTS (KT_TILES_N / 2)
#define KT_A8_FORMAT KT_CONSTANT(3)
#define KT_A8_BITS 8
#define KT_A8_GROUP kt_weight_spec_of(KT_A8_FORMAT).group
#define KT_A8_CODES_XOR 0u
#define KT_A8_ALL f
#include "kernels/cuda/kt_dev_a8_tiles.h"
KT_REQUIRE(KT_TILES_M % 64 == 0 && (KT_TILES_N == 64 || KT_TILES_N == 128), "warpgroups");

KT_DEVICE void kt_tiles_put(uint32_t stage, float *to) {
    const uint32_t rows = stage + (uint32_t)(kt_warp() / 4 * 64 * 128);

    kt_wgmma_fence();
    KT_UNROLL
    for (int slice = 0; slice < 4; slice++) {
        const uint64_t a = kt_wgmma_rows(rows + (uint32_t)slice * 32);
        const uint64_t b = kt_wgmma_rows(stage + (uint32_t)(KT_TILES_B + slice * 32));
        if (KT_TILES_N == 64)
            kt_wgmma_e4m3_n64(to, a, b, slice > 0);
        else
            kt_wgmma_e4m3_n128(to, a, b, slice > 0);
    }
    kt_wgmma_commit();
}

KT_DEVICE void kt_tiles_fold(uint32_t stage, const float *part, kt_tile_sums *sum) {
    float row[2], column[2];

    if (!KT_A8_GROUP) {
        KT_UNROLL
        for (int i = 0; i < KT_TILES_PARTS; i++) sum->f[i] += part[i];
        return;
    }
    KT_UNROLL
    for (int i = 0; i < 2; i++)
        row[i] = kt_float_bits(kt_shared_u32(kt_a8_row_at(stage, kt_tiles_row(0, i))));
    KT_UNROLL
    for (int half = 0; half < 2; half++) KT_UNROLL
    for (int j = 0; j < KT_TILES_J; j++) {
        const int at = KT_TILES_SUM(0, half, j);
        kt_shared_f32x2(kt_a8_column_at(stage, half * (KT_TILES_N / 2) + kt_tiles_column(j)),
                        column);
        KT_UNROLL
        for (int m = 0; m < 4; m++)
            sum->f[at + m] = kt_fma(part[at + m] * column[m % 2], row[m / 2], sum->f[at + m]);
    }
}

KT_ENTRY(moe_fp8_wgmma_gate_up, kt_a8_tiles, kt_a8_gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_fp8_wgmma_down, kt_a8_tiles, kt_a8_down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t bm_values[] = {64, 128}, bn_values[] = {64, 128}, stages_values[] = {3, 4, 5},
                     format_values[] = {KT_W_FP8_B128, KT_W_FP8_CHANNEL};
static const kt_param params[] = {{"bm", bm_values, 2, 128},
                                  {"bn", bn_values, 2, 128},
                                  {"stages", stages_values, 3, 4},
                                  {"format", format_values, 2, KT_W_FP8_B128}};

/* As the kernels of warps have it. */
static kt_config by_warps(const kt_config *config) {
    const int32_t *v = config->value;
    return (kt_config){{v[0], v[1], v[0] / 16, 1, v[2], v[3]}};
}

static int threads(const kt_config *config) {
    return config->value[0] * 2;
}

static size_t shared_bytes(const kt_config *config, int64_t k) {
    const kt_config c = by_warps(config);
    return kt_a8_shared_bytes(&c, k);
}

static const char *refuse(const kt_config *config, const kt_cuda_target *target) {
    const kt_config c = by_warps(config);
    return kt_a8_refuse(&c, target);
}

KT_CUDA_KERNEL(moe_fp8_wgmma) = {
    .name = "moe_fp8_wgmma",
    .about = "experts and dense products of many rows on tensor cores of sm_90a, E4M3",
    .version = 3,
    .targets = KT_CUDA_WGMMA,
    .params = params,
    .param_count = 4,
    .entry_count = 2,
    .entry = {{"moe_fp8_wgmma_gate_up", moe_fp8_wgmma_gate_up},
              {"moe_fp8_wgmma_down", moe_fp8_wgmma_down}},
    .jobs = KT_CUDA_GEMM_MANY | KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_E4M3,
    .needs_opcodes = 1u << KT_OPCODE_QGMMA,
    .refuse = refuse,
    .threads = threads,
    .shared_bytes = shared_bytes,
};
#endif
