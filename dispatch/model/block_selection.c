/* SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/model/block_selection.h"

#include <string.h>

#include "base/err.h"

kt_status kt_read_flags(const kt_config_source *s, const kt_json *holder, const char *key,
                        int64_t layers, bool fallback, bool *out, kt_err *err) {
    const kt_json *list = kt_json_get(holder, key);

    for (int64_t l = 0; l < layers; l++) out[l] = fallback;
    if (kt_json_type_of(list) == KT_JSON_NULL) return KT_OK;
    if ((int64_t)kt_json_length(list) < layers)
        return kt_fail(err, KT_E_FORMAT, "%.200s: %s has %zu entries, expected %lld, one per layer",
                       s->where, key, kt_json_length(list), (long long)layers);
    for (int64_t l = 0; l < layers; l++) out[l] = kt_json_int(kt_json_at(list, (size_t)l), 0) != 0;
    return KT_OK;
}

kt_status kt_need_word(const kt_config_source *s, const kt_json *holder, const char *key,
                       const char *want, kt_err *err) {
    const char *found = kt_json_string(kt_json_get(holder, key), NULL);

    if (!found || strcmp(found, want) == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: %s '%.40s', expected '%s'", s->where, key, found,
                   want);
}

/* sparse_attention_config: which layers pick blocks, and how. */
static kt_status read_selection(const kt_config_source *s, int64_t layers, kt_key_blocks *c,
                                kt_err *err) {
    const kt_json *j = kt_json_get(s->json, "sparse_attention_config");
    bool is_valueless[KT_MAX_LAYERS];

    if (!kt_json_bool(kt_json_get(j, "use_sparse_attention"), false)) return KT_OK;
    c->index.heads = kt_json_int(kt_json_get(j, "sparse_num_index_heads"), 0);
    c->index.dim = kt_json_int(kt_json_get(j, "sparse_index_dim"), 0);
    c->index.topk = kt_json_int(kt_json_get(j, "sparse_topk_blocks"), 0);
    c->index.block = kt_json_int(kt_json_get(j, "sparse_block_size"), 0);
    c->index.local = kt_json_int(kt_json_get(j, "sparse_local_block"), 1);
    KT_TRY(kt_need_word(s, j, "sparse_score_type", "max", err));
    if (kt_json_int(kt_json_get(j, "sparse_init_block"), 0) != 0)
        return kt_fail(err, KT_E_UNSUPPORTED, "%.200s: sparse_init_block is %lld, expected 0",
                       s->where, (long long)kt_json_int(kt_json_get(j, "sparse_init_block"), 0));
    KT_TRY(kt_read_flags(s, j, "sparse_attention_freq", layers, true, c->is_sparse, err));
    KT_TRY(kt_read_flags(s, j, "sparse_disable_index_value", layers, true, is_valueless, err));
    for (int64_t l = 0; l < layers; l++)
        if (c->is_sparse[l] && !is_valueless[l])
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%.200s: sparse_disable_index_value is 0 for layer %lld, which picks "
                           "blocks, expected 1",
                           s->where, (long long)l);
    return KT_OK;
}

/* Layers behind the dense ones pick; a file without an index has none. */
static void read_gguf(const kt_config_source *s, int64_t layers, int64_t first, kt_key_blocks *c) {
    c->index.heads = (int64_t)kt_config_gguf_number(s, "attention.indexer.head_count", 0);
    c->index.dim = (int64_t)kt_config_gguf_number(s, "attention.indexer.key_length", 0);
    c->index.topk = (int64_t)kt_config_gguf_number(s, "attention.indexer.top_k", 0);
    c->index.block = (int64_t)kt_config_gguf_number(s, "attention.indexer.block_size", 0);
    c->index.local = (int64_t)kt_config_gguf_number(s, "attention.indexer.local_blocks", 1);
    for (int64_t l = 0; l < layers; l++) c->is_sparse[l] = c->index.heads > 0 && l >= first;
}

static kt_status check_index(const kt_config_source *s, int64_t layers, const kt_gqa_numbers *a,
                             const kt_key_blocks *c, kt_err *err) {
    const kt_index_rule *x = &c->index;
    bool is_any = false;

    for (int64_t l = 0; l < layers; l++) is_any |= c->is_sparse[l];
    if (!is_any) return KT_OK;
    if (x->heads != a->kv_heads)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "%.200s: %lld index heads for %lld kv heads, expected one for each",
                       s->where, (long long)x->heads, (long long)a->kv_heads);
    if (x->block < 1 || x->block > 1 << 20 || x->topk < 1 || x->topk > 1 << 20 || x->local < 1 ||
        x->local > x->topk)
        return kt_fail(
            err, KT_E_FORMAT,
            "%.200s: %lld blocks of %lld keys, %lld of them local, expected at least one "
            "of each and no more local ones than all",
            s->where, (long long)x->topk, (long long)x->block, (long long)x->local);
    if (x->dim < a->rotation.rotary_dim || x->dim > 4096)
        return kt_fail(err, KT_E_FORMAT,
                       "%.200s: index keys of %lld numbers, expected %lld, which are rotated, to "
                       "4096",
                       s->where, (long long)x->dim, (long long)a->rotation.rotary_dim);
    return kt_need_multiple(s, "sparse_index_dim", x->dim, err);
}

kt_status kt_key_blocks_read(const kt_config_source *s, int64_t layers, int64_t first_dense,
                             const kt_gqa_numbers *attention, kt_key_blocks *out, kt_err *err) {
    if (s->json)
        KT_TRY(read_selection(s, layers, out, err));
    else
        read_gguf(s, layers, first_dense, out);
    return check_index(s, layers, attention, out, err);
}
