/* Weights of 2, 3, 5, 6 and 8 bits opened to bfloat16 tiles, times bfloat16 or INT8 rows, on
 * AMX-BF16 and AVX512-FP16.
 *
 * Codes of up to 5 bits are looked up, wider ones subtracted from 1024 plus themselves; all get a
 * scale and a minimum, which is zero where the format has none, per 16 inputs. INT8 with a scale
 * per channel is opened exactly: the scale waits for the sum. Lines, blocks and the walk:
 * tiles_lines.h, tiles_block.h, tiles_walk.h.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/tiles_ops.h"

KT_TILES_WAY(bits2, 2, 0, KT_OPEN_MINIMUM, 1, 6)
KT_TILES_WAY(bits3, 2, 1, KT_OPEN_MINIMUM, 1, 8)
KT_TILES_WAY(bits5, 4, 1, KT_OPEN_MINIMUM, 1, 12)
KT_TILES_WAY(bits6, 4, 2, KT_OPEN_MINIMUM, 1, 14)
KT_TILES_WAY(bits8, 8, 0, KT_OPEN_MINIMUM, 1, 17)
KT_TILES_WAY(channel8, 8, 0, KT_OPEN_AS_IS, 0, 16)

KT_OPEN_SLICES(Q2_K)
KT_OPEN_SLICES(Q3_K)
KT_OPEN_SLICES(Q5_K)
KT_OPEN_SLICES(Q6_K)
KT_OPEN_SLICES(Q8_0)

static kt_open_slices *slices_of(kt_weight_format format) {
    switch (format) {
    case KT_W_Q2_K: return kt_open_slice_Q2_K;
    case KT_W_Q3_K: return kt_open_slice_Q3_K;
    case KT_W_Q5_K: return kt_open_slice_Q5_K;
    case KT_W_Q6_K: return kt_open_slice_Q6_K;
    case KT_W_Q8_0: return kt_open_slice_Q8_0;
    default: return NULL;
    }
}

static void run(const kt_tiles_call *call) {
    const kt_p64_spec s = kt_p64_spec_of(call->weights);
    kt_tiles_call x = *call;

    x.slices = slices_of(call->weights);

    switch (s.low + s.high) {
    case 2: kt_tiles_do(&x, &kt_way_bits2, kt_how_bits2); return;
    case 3: kt_tiles_do(&x, &kt_way_bits3, kt_how_bits3); return;
    case 5: kt_tiles_do(&x, &kt_way_bits5, kt_how_bits5); return;
    case 6: kt_tiles_do(&x, &kt_way_bits6, kt_how_bits6); return;
    case 8: kt_tiles_do(&x, &kt_way_bits8, kt_how_bits8); return;
    default: kt_tiles_do(&x, &kt_way_channel8, kt_how_channel8); return;
    }
}

KT_TILES_OPS(run)

KT_P64_KERNEL(wcodes_open, amxbf16, 2, 2,
              .weights = 1u << KT_W_INT8_CHANNEL | 1u << KT_W_INT8_G128 | 1u << KT_W_INT8_G16M |
                         1u << KT_W_Q2_K | 1u << KT_W_Q3_K | 1u << KT_W_Q5_0 | 1u << KT_W_Q5_1 |
                         1u << KT_W_Q5_K | 1u << KT_W_Q6_K | 1u << KT_W_Q8_0 |
                         KT_W_BIT(KT_W_TQ2_0) | KT_W_BIT(KT_W_TQ1_0),
              .acts = 1u << KT_A_BF16 | 1u << KT_A_INT8_G32 | 1u << KT_A_INT8_G16P2,
              .isa = KT_TILES_ISA, .numerics = KT_NUM_OPENED, .bits = "opened-tiles", .rank = 1,
              .accepts = kt_p64_accepts_opened, .workspace_bytes = kt_tiles_workspace);
