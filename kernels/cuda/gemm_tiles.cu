/* Dense products of many rows on tensor cores: weights of any format, bfloat16 activations, sums in
 * float (kt_dev_open_jobs.h).
 *
 *   gemm_tiles  grid (n / BN rounded up, heads * row tiles)
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels/cuda/kt_dev_open_jobs.h"

KT_ENTRY(gemm_tiles, kt_gemm_tiles, kt_open_dense, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(gemm_tiles) = {
    .name = "gemm_tiles",
    .about = "dense products of many rows on tensor cores, weights of any format",
    .version = 3,
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
