/* IQ1_S and IQ1_M opened to bfloat16 tiles, times bfloat16 or INT8 rows, on AMX-BF16 and
 * AVX512-FP16.
 *
 * The points of a slice are looked up first, into planes of four bits; from there on they are codes
 * with a table and a scale per 16 inputs. Lines, blocks and the walk: tiles_lines.h, tiles_block.h,
 * tiles_walk.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/tiles_ops.h"

KT_TILES_WAY(points, 4, 0, KT_OPEN_MINIMUM, 1, 4)

static void run(const kt_tiles_call *call) {
    kt_tiles_do(call, &kt_way_points, kt_how_points);
}

KT_TILES_OPS(run)

KT_P64_KERNEL(wiq1_open, amxbf16, 2, 2, .weights = KT_W_BIT(KT_W_IQ1_S) | KT_W_BIT(KT_W_IQ1_M),
              .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
              .isa = KT_TILES_ISA, .numerics = KT_NUM_OPENED, .bits = "opened-tiles", .rank = 1,
              .accepts = kt_p64_accepts_opened, .workspace_bytes = kt_tiles_workspace);
