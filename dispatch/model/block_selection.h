/* Which layers meet blocks of keys, and how many (models_2026.md 6): what the configuration says.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_BLOCK_SELECTION_H
#define KT_DISPATCH_BLOCK_SELECTION_H

#include "dispatch/model/build.h"
#include "dispatch/model/gqa.h"

typedef struct kt_key_blocks {
    kt_index_rule index; /* sizes */
    bool is_sparse[KT_MAX_LAYERS];
} kt_key_blocks;

/* Fills out, all zeros before, and refuses what no published model has. GGUF files have no list:
 * layers from first_dense on pick blocks, if there is an index at all. */
kt_status kt_key_blocks_read(const kt_config_source *s, int64_t layers, int64_t first_dense,
                             const kt_gqa_numbers *attention, kt_key_blocks *out, kt_err *err);

/* A list of 0 and 1, one for each layer; absent: all are `fallback`. */
kt_status kt_read_flags(const kt_config_source *s, const kt_json *holder, const char *key,
                        int64_t layers, bool fallback, bool *out, kt_err *err);
/* A string other than `want` is refused; absent is right. */
kt_status kt_need_word(const kt_config_source *s, const kt_json *holder, const char *key,
                       const char *want, kt_err *err);

#endif
