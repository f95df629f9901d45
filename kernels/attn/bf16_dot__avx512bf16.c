/* Grouped-query attention over a BF16 or 8-bit cache with VDPBF16PS: kernels/attn/dot512.h explains it.
 * 8-bit rows are widened by shifts and conversions; with VBMI there is a faster way (bf16_dot__avx512vbmi.c).
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/dot512.h"
#include "kernels/attn/widen512.h"

static const kt_attn_inner inner = {.lanes = 32,
                                    .load_query = load_query,
                                    .widen = kt_widen512,
                                    .keys_bytes = keys_bytes,
                                    .load_keys = load_keys,
                                    .scores_loaded = scores,
                                    .soften = soften,
                                    .soften_rows = soften_rows,
                                    .weigh_step = 2,
                                    .weigh = weigh,
                                    .store_sums = store_sums};

/* More queries than elsewhere: they share the turning of the keys. */
static const int32_t tile_queries[] = {32, 64, 128};
static const kt_param params[] = {{"queries", tile_queries, 3, 128}};

static void attn(const kt_attn_call *call) {
    kt_attn_walk(call, &inner);
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return kt_attn_walk_bytes(problem, config, &inner);
}

KT_VARIANT(bf16_dot__avx512bf16) = {
    .name = "bf16_dot__avx512bf16",
    .op = KT_OP_ATTN,
    .weights = KT_ATTN_CACHES,
    .isa = KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .bits = "dot",
    .version = 4,
    .layout = "",
    .rank = 1,
    .params = params,
    .n_params = 1,
    .accepts = kt_attn_accepts,
    .workspace_bytes = workspace_bytes,
    .attn = attn,
};
