/* Verbs of compressed attention: the last tokens as they are and, before them, entries that stand
 * for several tokens each (models_2026.md 3.4 and 3.5, kernels/compress).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_COMPRESSED_H
#define KT_DISPATCH_COMPRESSED_H

#include "dispatch/model/build.h"

/* Tokens that an entry of each layer stands for: 0 (no entries), 4 or 128. config.json has numbers,
 * or kinds of layers; GGUF files have numbers. */
kt_status kt_entry_ratios_read(const kt_config_source *s, int64_t layers, int64_t *ratio,
                               kt_err *err);

/* Refuses an indexer that layers of ratio 4 cannot work with; rotated: numbers of a key. */
kt_status kt_entry_index_check(const kt_config_source *s, const int64_t *ratio, int64_t layers,
                               int64_t rotated, const kt_index_rule *index, kt_err *err);

/* A compressor: values and gates are columns [halves * dim] of a row, halves 2 where windows
 * overlap; ape [ratio, halves * dim] is added to the gates by the token's place in its window;
 * norm [dim], then the last rotation->rotary_dim columns are rotated at the window's first
 * position. */
typedef struct kt_compressor {
    kt_view values, gates;
    int64_t dim, ratio;
    kt_name ape;
    kt_name norm;
    double eps;
    const kt_rope_rule *rotation;
} kt_compressor;

/* The entries of a layer: rows of k numbers, each for `ratio` tokens, and index keys of `index`
 * numbers (0 = none). */
int kt_entries(kt_build *b, int64_t k, int64_t index, int64_t ratio);
/* Rows that end a window leave an entry in the plane, or (is_index) its index key. */
void kt_compress(kt_build *b, int plane, const kt_compressor *c, bool is_index);
/* Numbers of the entries with the highest scores by the index queries and the weights of heads. */
kt_view kt_pick_entries(kt_build *b, int plane, const kt_index_rule *index, int64_t ratio);
/* Attention of q, whose keys are also the values, with a sink per head: over the rows kv of the
 * last `window` tokens, the row's own included, and over entries of the plane that the row sees:
 * those that `picked` names, or (width 0) all. plane -1: no entries. */
typedef struct kt_compressed_attention {
    kt_attention attention;
    kt_view kv, picked;
    int plane;
    int64_t window, ratio, topk;
    kt_name sink;
} kt_compressed_attention;
kt_view kt_attend_entries(kt_build *b, kt_view q, const kt_compressed_attention *a);

#endif
