/* 4-bit weights opened to bfloat16 tiles, times bfloat16 or INT8 rows, on AMX-BF16 and AVX512-FP16.
 *
 * Codes -8..7 and the tables of IQ4, MXFP4 and NVFP4 are looked up, times a scale; zero points are
 * subtracted first; minima are added in the multiplication. Lines, blocks and the walk:
 * tiles_lines.h, tiles_block.h, tiles_walk.h; INT8 rows become bfloat16 on the way into tiles.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/tiles_ops.h"

KT_TILES_WAY(table4, 4, 0, KT_OPEN_SCALE, 0, 9)
KT_TILES_WAY(zero4, 4, 0, KT_OPEN_ZERO, 1, 10)
KT_TILES_WAY(minimum4, 4, 0, KT_OPEN_MINIMUM, 1, 10)

KT_OPEN_SLICES(Q4_0)
KT_OPEN_SLICES(Q4_K)
KT_OPEN_SLICES(IQ4_NL)
KT_OPEN_SLICES(IQ4_XS)
KT_OPEN_SLICES(MXFP4)

static kt_open_slices *slices_of(kt_weight_format format) {
    switch (format) {
    case KT_W_Q4_0: return kt_open_slice_Q4_0;
    case KT_W_Q4_K: return kt_open_slice_Q4_K;
    case KT_W_IQ4_NL: return kt_open_slice_IQ4_NL;
    case KT_W_IQ4_XS: return kt_open_slice_IQ4_XS;
    case KT_W_MXFP4: return kt_open_slice_MXFP4;
    default: return NULL;
    }
}

static void run(const kt_tiles_call *call) {
    kt_tiles_call x = *call;

    x.slices = slices_of(call->weights);
    if (call->weights == KT_W_NVFP4) { /* scales of 16 inputs, and minima of zero */
        kt_tiles_do(&x, &kt_way_minimum4, kt_how_minimum4);
        return;
    }
    switch (kt_p64_spec_of(call->weights).minimum) {
    case KT_P64_MIN_NONE: kt_tiles_do(&x, &kt_way_table4, kt_how_table4); return;
    case KT_P64_MIN_ZERO: kt_tiles_do(&x, &kt_way_zero4, kt_how_zero4); return;
    default: kt_tiles_do(&x, &kt_way_minimum4, kt_how_minimum4); return;
    }
}

KT_TILES_OPS(run)

KT_P64_KERNEL(w4codes_open, amxbf16, 2, 2,
              .weights = 1u << KT_W_INT4_G32 | 1u << KT_W_INT4_G64 | 1u << KT_W_INT4_G128 |
                         1u << KT_W_INT4Z_G32 | 1u << KT_W_INT4Z_G64 | 1u << KT_W_INT4Z_G128 |
                         1u << KT_W_Q4_0 | 1u << KT_W_Q4_1 | 1u << KT_W_Q4_K | 1u << KT_W_IQ4_NL |
                         1u << KT_W_IQ4_XS | 1u << KT_W_MXFP4 | KT_W_BIT(KT_W_NVFP4),
              .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
              .isa = KT_TILES_ISA, .numerics = KT_NUM_OPENED, .bits = "opened-tiles", .rank = 1,
              .accepts = kt_p64_accepts_opened, .workspace_bytes = kt_tiles_workspace);
