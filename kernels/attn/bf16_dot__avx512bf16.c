/* Grouped-query attention over a BF16 or 8-bit cache with VDPBF16PS: kernels/attn/dot512.h explains it.
 * 8-bit rows are widened by shifts and conversions; with VBMI there is a faster way (bf16_dot__avx512vbmi.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/dot512.h"
#include "kernels/attn/widen512.h"

static void load_keys(const kt_attn_part *t, void *keys) {
    turn_keys(&t->k, keys, _mm512_setzero_si512(), 2);
}

static const kt_attn_inner inner = {DOT_INNER, .load_keys = load_keys, .widen = kt_widen512,
                                    .weigh = weigh};

KT_ATTN_VARIANT(bf16_dot__avx512bf16, .weights = KT_ATTN_CACHES, .isa = KT_ISA_AVX512BF16,
                .numerics = KT_NUM_BF16_F32, .bits = "dot", .version = 5, .rank = 1,
                .params = params, .accepts = kt_attn_accepts);
