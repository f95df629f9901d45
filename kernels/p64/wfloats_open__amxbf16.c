/* E4M3 weights opened to bfloat16 tiles, and bfloat16 ones copied into them, times bfloat16 rows,
 * on AMX-BF16 and AVX512-FP16.
 *
 * Scales of E4M3 in blocks are multiplied into the weights, so that sums run over all of k; a scale
 * per channel waits for the sum. Lines, blocks and the walk: tiles_lines.h, tiles_block.h,
 * tiles_walk.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/tiles_ops.h"

KT_TILES_WAY(e4m3, KT_OPEN_E4M3, 0, KT_OPEN_SCALE, 1, 16)
KT_TILES_WAY(bf16, KT_OPEN_BF16, 0, KT_OPEN_AS_IS, 0, 32)

static void run(const kt_tiles_call *call) {
    if (call->weights == KT_W_BF16)
        kt_tiles_do(call, &kt_way_bf16, kt_how_bf16);
    else
        kt_tiles_do(call, &kt_way_e4m3, kt_how_e4m3);
}

KT_TILES_OPS(run)

KT_P64_KERNEL(wfloats_open, amxbf16, 2, 2,
              .weights = 1u << KT_W_BF16 | 1u << KT_W_FP8_B128 | 1u << KT_W_FP8_CHANNEL |
                         1u << KT_W_MXFP8,
              .acts = 1u << KT_A_BF16, .isa = KT_TILES_ISA, .numerics = KT_NUM_OPENED,
              .bits = "opened-tiles", .rank = 1, .accepts = kt_p64_accepts_opened,
              .workspace_bytes = kt_tiles_workspace);
