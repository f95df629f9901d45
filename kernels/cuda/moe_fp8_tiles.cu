/* Experts of many tokens, and dense products of many rows, on tensor cores for E4M3: weights in
 * blocks of 128 x 128 or with a scale per channel, activations per 128 inputs or per row
 * (quantise_rows.cu). For sm_89, sm_120 and sm_121, whose mma.sync has E4M3; elsewhere it would be
 * made of products of 16 bits.
 *
 * Tensor cores add E4M3 with few bits, so the sums of 128 inputs, which have one scale in blocks,
 * are added in float outside of them; per channel those of 64.
 *
 *   gate_up  grid (n / (bn / 2) rounded up, tiles): h = SwiGLU, as bfloat16
 *   down     grid (k / bn rounded up, tiles): y = route * down(h8), or any dense product
 *
 * The rest is in kt_dev_a8_tiles.h. SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"

#define KT_A8_BY_WARPS
#define KT_A8_BITS 8
#define KT_A8_GROUP kt_weight_spec_of(KT_A8_FORMAT).group
#define KT_A8_CODES_XOR 0u
#define KT_A8_ALL f
#define KT_A8_SHORT 1
#define KT_A8_ZERO 0.0f
#define KT_A8_VALUE(c) (c)
#define KT_A8_MMA kt_mma_e4m3
typedef float kt_a8_sum;
#include "kernels/cuda/kt_dev_a8_tiles.h"

KT_ENTRY(moe_fp8_tiles_gate_up, kt_a8_tiles, kt_a8_gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_fp8_tiles_down, kt_a8_tiles, kt_a8_down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t format_values[] = {KT_W_FP8_B128, KT_W_FP8_CHANNEL};
static const kt_param params[] = {KT_A8_PARAMS, {"format", format_values, 2, KT_W_FP8_B128}};

KT_CUDA_KERNEL(moe_fp8_tiles) = {
    .name = "moe_fp8_tiles",
    .about = "experts and dense products of many rows on tensor cores, E4M3",
    .version = 1,
    .targets = KT_CUDA_E4M3,
    .params = params,
    .param_count = 6,
    .entry_count = 2,
    .entry = {{"moe_fp8_tiles_gate_up", moe_fp8_tiles_gate_up},
              {"moe_fp8_tiles_down", moe_fp8_tiles_down}},
    .jobs = KT_CUDA_GEMM_MANY | KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_E4M3,
    .needs_opcodes = 1u << KT_OPCODE_QMMA,
    .refuse = kt_a8_refuse,
    .threads = kt_a8_threads,
    .shared_bytes = kt_a8_shared_bytes,
};
#endif
