/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/compressed.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/build_impl.h"
#include "dispatch/model/gqa.h"
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

/* ---- what the configuration says ---- */

/* Tokens that an entry of layer l stands for: a list of numbers, or kinds of layers; -1 = unknown.
 */
static int64_t read_ratio(const kt_config_source *s, int64_t l) {
    const kt_json *ratios = kt_json_get(s->json, "compress_ratios");
    const kt_json *kinds = kt_json_get(s->json, "layer_types");
    const char *kind = kt_json_string(kt_json_at(kinds, (size_t)l), NULL);
    const kt_gguf_value *array;
    char key[128];

    if (kt_json_length(ratios)) return kt_json_int(kt_json_at(ratios, (size_t)l), -1);
    if (s->json && !kind) return -1;
    if (s->json && strcmp(kind, "sliding_attention") == 0) return 0;
    if (s->json && strcmp(kind, "compressed_sparse_attention") == 0) return 4;
    if (s->json) return strcmp(kind, "heavily_compressed_attention") == 0 ? 128 : -1;
    snprintf(key, sizeof key, "%.60s.attention.compress_ratios", s->arch);
    array = kt_gguf_find(s->gguf, key);
    if (!array || array->type != KT_GGUF_ARRAY || (uint64_t)l >= array->count) return -1;
    if (array->element_type != KT_GGUF_I32 && array->element_type != KT_GGUF_U32) return -1;
    return kt_gguf_i32(array, (uint64_t)l);
}

kt_status kt_entry_ratios_read(const kt_config_source *s, int64_t layers, int64_t *ratio,
                               kt_err *err) {
    for (int64_t l = 0; l < layers; l++) {
        ratio[l] = read_ratio(s, l);
        if (ratio[l] != 0 && ratio[l] != 4 && ratio[l] != 128)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: compress_ratios says %lld of layer %lld, expected 0, 4 or 128",
                           s->where, (long long)ratio[l], (long long)l);
    }
    return KT_OK;
}

kt_status kt_entry_index_check(const kt_config_source *s, const int64_t *ratio, int64_t layers,
                               int64_t rotated, const kt_index_rule *index, kt_err *err) {
    bool has_index = false;

    for (int64_t l = 0; l < layers; l++) has_index |= ratio[l] == 4;
    if (!has_index) return KT_OK;
    if (index->heads >= 1 && index->topk >= 1 && index->dim >= rotated)
        return kt_need_multiple(s, "index_head_dim", index->dim, err);
    return kt_fail(err, KT_E_FORMAT,
                   "%.200s: an indexer of %lld heads of %lld that picks %lld, expected at least "
                   "one head of %lld or more and one entry",
                   s->where, (long long)index->heads, (long long)index->dim, (long long)index->topk,
                   (long long)rotated);
}
