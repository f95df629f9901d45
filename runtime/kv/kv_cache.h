/* Key and value cache of one sequence. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_CACHE_H
#define KT_RUNTIME_KV_CACHE_H

#include "base/buffer.h"

/* BF16 rows of head_dim, contiguous as [layer][k, v][kv_head][position]. Never grows: the capacity is
 * what the caller paid for. */
typedef struct kt_kv_cache {
    int64_t layers, kv_heads, head_dim, capacity;
    kt_buffer buffer;
} kt_kv_cache;

/* Bytes of a cache of this shape; 0 when the product overflows. */
size_t kt_kv_cache_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity);

kt_status kt_kv_cache_init(kt_kv_cache *cache, int64_t layers, int64_t kv_heads, int64_t head_dim,
                           int64_t capacity, kt_err *err);
void kt_kv_cache_deinit(kt_kv_cache *cache);

/* First row of a head's keys (which = 0) or values (which = 1). */
static inline uint16_t *kt_kv_cache_rows(const kt_kv_cache *c, int64_t layer, int which,
                                         int64_t kv_head) {
    int64_t head = (layer * 2 + which) * c->kv_heads + kv_head;
    return (uint16_t *)c->buffer.data + head * c->capacity * c->head_dim;
}

#endif
