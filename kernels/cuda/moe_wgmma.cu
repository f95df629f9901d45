/* Experts of many tokens by warpgroups, which multiply out of shared memory on the tensor cores of
 * sm_90a (wgmma): weights of any format, bfloat16 activations, sums in float. What moe_tiles.cu is
 * for the others; its calls and grids.
 *
 * A weight is opened once for the BM rows of a tile, under the products of the step before
 * (kt_dev_open_tiles.h), so that codes cost few bytes and no time of the tensor cores.
 *
 *   gate_up  grid (n / (BN / 2) rounded up, tiles)
 *   down     grid (k / BN rounded up, tiles): y[row] = route[row] * down(h[row])
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define KT_TILES_WIDE
#include "kernels/cuda/kt_dev_open_jobs.h"

KT_ENTRY(moe_wgmma_gate_up, kt_moe_tiles, kt_open_gate_up, KT_TILES_THREADS)
KT_ENTRY(moe_wgmma_down, kt_moe_tiles, kt_open_down, KT_TILES_THREADS)

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

KT_CUDA_KERNEL(moe_wgmma) = {
    .name = "moe_wgmma",
    .about = "experts of many tokens on tensor cores of sm_90a, weights of any format",
    .version = 1,
    .targets = KT_CUDA_WGMMA,
    .params = kt_open_params,
    .param_count = KT_OPEN_PARAMS,
    .entry_count = 2,
    .entry = {{"moe_wgmma_gate_up", moe_wgmma_gate_up}, {"moe_wgmma_down", moe_wgmma_down}},
    .jobs = KT_CUDA_EXPERTS_MANY,
    .rows = KT_CUDA_ROWS_BF16,
    .needs_opcodes = 1u << KT_OPCODE_HGMMA,
    .refuse = kt_open_refuse,
    .threads = kt_open_threads,
    .shared_bytes = kt_open_shared_bytes,
};
#endif
