/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/compressed.h"

#include "dispatch/model/build_impl.h"
#include "kernels/compress/entries.h"

int kt_entries(kt_build *b, int64_t k, int64_t index, int64_t ratio) {
    return kt_build_plane(b, &(kt_plane){.heads = 1, .k = k, .index = index, .ratio = ratio});
}

void kt_compress(kt_build *b, int plane, const kt_compressor *c, bool is_index) {
    const int64_t halves = c->values.width / c->dim;
    const kt_entry_rule rule = {.ratio = c->ratio, .is_index = is_index};
    kt_node pool = kt_build_node_of(KT_NODE_COMPRESS, c->values, kt_build_value(b, c->dim)), keep;

    pool.in2 = c->gates;
    pool.size = c->dim;
    pool.entries = rule;
    pool.weight = kt_build_vector(
        b, (kt_vec){.name = c->ape, .n = c->ratio * halves * c->dim, .rows = c->ratio});
    pool.slot = kt_build_slot(b, kt_pool_state_floats(c->dim, halves));
    kt_build_add_node(b, &pool);
    keep = kt_build_node_of(KT_NODE_KEEP_ENTRY, pool.out, pool.out);
    keep.plane = plane;
    keep.entries = rule;
    keep.eps = c->eps;
    keep.weight = kt_build_vector(b, (kt_vec){.name = c->norm, .n = c->dim});
    keep.rotation = kt_build_rotation(b, c->rotation);
    kt_build_add_node(b, &keep);
}

kt_view kt_pick_entries(kt_build *b, int plane, const kt_index_rule *index, int64_t ratio) {
    kt_node n =
        kt_build_node_of(KT_NODE_PICK_ENTRIES, index->queries, kt_build_value(b, index->topk));

    n.in2 = index->weights;
    n.plane = plane;
    n.index = *index;
    n.entries.ratio = ratio;
    kt_build_add_node(b, &n);
    return n.out;
}

kt_view kt_attend_entries(kt_build *b, kt_view q, const kt_compressed_attention *a) {
    const int64_t floats = kt_packed_row_floats(a->attention.k);
    kt_node pack = kt_build_node_of(KT_NODE_PACK_ROWS, a->kv, kt_build_value(b, floats)), n;

    kt_build_add_node(b, &pack);
    n = kt_build_node_of(KT_NODE_ATTEND_ENTRIES, q,
                         kt_build_value(b, a->attention.heads * a->attention.v));
    n.in2 = pack.out;
    n.in3 = a->picked;
    n.attention = a->attention;
    n.plane = a->plane;
    n.index.topk = a->topk;
    n.entries = (kt_entry_rule){.window = a->window, .ratio = a->ratio};
    n.weight = kt_build_vector(b, (kt_vec){.name = a->sink, .n = a->attention.heads});
    n.slot = kt_build_slot(b, a->window * floats);
    kt_build_add_node(b, &n);
    return n.out;
}
