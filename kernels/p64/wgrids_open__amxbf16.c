/* Blocks with grids (IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S) opened to bfloat16 tiles, times
 * bfloat16 or INT8 rows, on AMX-BF16 and AVX512-FP16.
 *
 * The points of a slice are looked up 64 at a time (grids_open512.h) when the slice is prepared;
 * the bytes that this yields, in L1, are opened behind products like codes of 8 bits. Lines, blocks
 * and the walk: tiles_lines.h, tiles_block.h, tiles_walk.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/grids_open512.h"
#include "kernels/p64/tiles_ops.h"

KT_TILES_WAY(grid2, 8, 0, KT_OPEN_MINIMUM, 1, 5)
KT_TILES_WAY(grid3, 8, 0, KT_OPEN_MINIMUM, 1, 7)

#define POINTS(grid)                                                                        \
    static void points_##grid(const uint8_t *unit, const uint8_t *more, int first, int end, \
                              uint8_t *out) {                                               \
        const kt_grid_words words = kt_grid_words_of(KT_P64_##grid);                        \
        kt_grid_open_unit(KT_P64_##grid, &words, unit, more, first, end, out);              \
    }
POINTS(IQ2_XXS)
POINTS(IQ2_XS)
POINTS(IQ2_S)
POINTS(IQ3_XXS)
POINTS(IQ3_S)

static kt_open_points *const points[KT_P64_GRIDS] = {
    [KT_P64_IQ2_XXS] = points_IQ2_XXS, [KT_P64_IQ2_XS] = points_IQ2_XS,
    [KT_P64_IQ2_S] = points_IQ2_S,     [KT_P64_IQ3_XXS] = points_IQ3_XXS,
    [KT_P64_IQ3_S] = points_IQ3_S,
};

static void run(const kt_tiles_call *call) {
    const kt_p64_grid grid = kt_p64_spec_of(call->weights).grid;
    kt_tiles_call x = *call;

    x.points = points[grid];
    if (kt_grid_inputs(grid) == 8)
        kt_tiles_do(&x, &kt_way_grid2, kt_how_grid2);
    else
        kt_tiles_do(&x, &kt_way_grid3, kt_how_grid3);
}

KT_TILES_OPS(run)

KT_P64_KERNEL(wgrids_open, amxbf16, 2, 2,
              .weights = KT_W_BIT(KT_W_IQ2_XXS) | KT_W_BIT(KT_W_IQ2_XS) | KT_W_BIT(KT_W_IQ2_S) |
                         KT_W_BIT(KT_W_IQ3_XXS) | KT_W_BIT(KT_W_IQ3_S),
              .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
              .isa = KT_TILES_ISA, .numerics = KT_NUM_OPENED, .bits = "opened-tiles", .rank = 1,
              .accepts = kt_p64_accepts_opened, .workspace_bytes = kt_tiles_workspace);
