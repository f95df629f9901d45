/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/node_problems.h"

#include "kernels/compress/entries.h"
#include "kernels/hyper/hyper.h"

kt_problem kt_conv_problem(const kt_node *conv, int64_t rows) {
    return (kt_problem){.op = KT_OP_CONV, .m = rows, .n = conv->in.width, .k = conv->size};
}

int64_t kt_delta_tile(const kt_delta_rule *rule) {
    return rule->is_tiled ? rule->key_heads : rule->heads;
}

kt_problem kt_delta_problem(const kt_node *delta, int64_t rows) {
    const kt_delta_rule *r = &delta->delta;

    return (kt_problem){.op = KT_OP_DELTA,
                        .m = rows,
                        .n = kt_delta_tile(r),
                        .k = r->k,
                        .kv_heads = r->key_heads,
                        .v = r->v};
}

kt_problem kt_index_problem(const kt_index_rule *rule, int64_t max_context) {
    return (kt_problem){.op = KT_OP_INDEX,
                        .weights = KT_W_BF16,
                        .n = rule->heads,
                        .k = rule->dim,
                        .kv_heads = rule->block ? rule->heads : 0,
                        .context = max_context};
}

kt_problem kt_attn_problem(const kt_attention *a, kt_weight_format kv, int64_t max_context) {
    return (kt_problem){.op = KT_OP_ATTN,
                        .weights = kv,
                        .n = a->heads,
                        .k = a->k,
                        .kv_heads = a->kv_heads,
                        .v = a->v == a->k ? 0 : a->v,
                        .window = a->window,
                        .context = max_context};
}

kt_problem kt_stream_problem(const kt_node *hyper) {
    const int64_t count = hyper->streams.count;

    return (kt_problem){.op = KT_OP_ROUTER,
                        .weights = KT_W_F32,
                        .n = hyper->kind == KT_NODE_HYPER_END ? count : kt_hyper_outputs(count),
                        .k = hyper->in.width,
                        .topk = 1};
}

int64_t kt_node_most_keys(const kt_node *attend, int64_t max_context) {
    const kt_entry_rule *rule = &attend->entries;
    int64_t entries = kt_entries_of(max_context, rule->ratio);

    if (attend->in3.width > 0 && entries > attend->index.topk) entries = attend->index.topk;
    return rule->window + entries;
}
