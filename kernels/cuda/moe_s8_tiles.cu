/* Experts of many tokens, and dense products of many rows, on integer tensor cores: weights of 8 or
 * 4 bits, activations of 8 bits (quantise_rows.cu).
 *
 * Sums of products are exact. A group's begins at 0x4b400000 instead of 0: as a float that is
 * 1.5 * 2^23, whose last place is 1, so that a sum below 2^22 in magnitude is read as a float and
 * 1.5 * 2^23 taken off, with no conversion. The largest is that of 128 inputs, 127 * 128 * 128 =
 * 1.98 * 2^20. Weights per channel are summed over all k: k is at most 131072, as 127 * 128 * k
 * must stay below 2^31.
 *
 *   gate_up  grid (n / (bn / 2) rounded up, tiles): h = SwiGLU, as bfloat16
 *   down     grid (k / bn rounded up, tiles): y = route * down(h8), or any dense product
 *
 * Not for sm_103, whose integer tensor cores are slow. The rest is in kt_dev_a8_tiles.h.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev.h"

#define KT_A8_BY_WARPS
#define KT_A8_BITS kt_weight_spec_of(KT_A8_FORMAT).low
#define KT_A8_GROUP kt_weight_spec_of(KT_A8_FORMAT).group
#define KT_A8_CODES_XOR 0x80808080u
#define KT_A8_ALL i
#define KT_A8_SHORT 0
#define KT_A8_ZERO 0x4b400000
#define KT_A8_VALUE(c) (kt_float_bits((uint32_t)(c)) - 12582912.0f)
#define KT_A8_MMA kt_mma_s8
typedef int32_t kt_a8_sum;
#include "kernels/cuda/kt_dev_a8_tiles.h"

KT_ENTRY(moe_s8_tiles_gate_up, kt_a8_tiles, kt_a8_gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_s8_tiles_down, kt_a8_tiles, kt_a8_down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

static const int32_t format_values[] = {KT_W_INT4_G32,     KT_W_INT4_G64,  KT_W_INT4_G128,
                                        KT_W_INT8_CHANNEL, KT_W_INT8_G128, KT_W_Q4_0,
                                        KT_W_Q8_0};
static const kt_param params[] = {KT_A8_PARAMS, {"format", format_values, 7, KT_W_INT4_G32}};

KT_CUDA_KERNEL(moe_s8_tiles) = {
    .name = "moe_s8_tiles",
    .about = "experts and dense products of many rows on tensor cores, 8-bit integers",
    .version = 1,
    .targets = KT_CUDA_FAST_INT8,
    .params = params,
    .param_count = 6,
    .entry_count = 2,
    .entry = {{"moe_s8_tiles_gate_up", moe_s8_tiles_gate_up},
              {"moe_s8_tiles_down", moe_s8_tiles_down}},
    .jobs = KT_CUDA_GEMM_MANY | KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_INT8,
    .needs_opcodes = 1u << KT_OPCODE_IMMA,
    .refuse = kt_a8_refuse,
    .threads = kt_a8_threads,
    .shared_bytes = kt_a8_shared_bytes,
};
#endif
