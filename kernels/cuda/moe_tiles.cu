/* Experts of many tokens on tensor cores: weights of any format, bfloat16 activations, sums in
 * float.
 *
 * Tokens are sorted by expert, and the sorted rows of an expert are cut into tiles of at most BM
 * (kt_moe_permute makes the lists). A block does what kt_dev_open_jobs.h says.
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *
 * The format may differ between the two: then each is started from the code of its own. What is
 * left to do is the sum of each token's rows of y.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_open_jobs.h"

KT_ENTRY(moe_tiles_gate_up, kt_moe_tiles, kt_open_gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_tiles_down, kt_moe_tiles, kt_open_down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(moe_tiles) = {
    .name = "moe_tiles",
    .about = "experts of many tokens on tensor cores, weights of any format, bfloat16 products",
    .version = 3,
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
