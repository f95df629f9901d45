/* Key and value cache of one sequence. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_CACHE_H
#define KT_RUNTIME_KV_CACHE_H

#include "base/buffer.h"
#include "kt/problem.h"

/* Sizes and format: KT_W_BF16, or KT_W_INT8_CHANNEL or KT_W_FP8_CHANNEL, which have one f32
 * scale per row of head_dim codes (kernels/attn/attn_common.h). */
typedef struct kt_kv_shape {
    kt_weight_format format;
    int64_t layers, kv_heads, head_dim;
    int has_shared_rows; /* values are the beginning of keys' rows: no rows of their own */
    int64_t index_dim;   /* of index keys: one BF16 row per layer and position; 0 = none */
} kt_kv_shape;

/* Rows of head_dim, contiguous as [layer][k, v][kv_head][position], where layers are those that
 * keep rows; then, where the format has them, the scales in the same order. Never grows: the
 * capacity is what the caller paid for. */
typedef struct kt_kv_cache {
    kt_kv_shape shape;
    int64_t capacity;
    kt_buffer buffer;
    float *scales;        /* inside buffer, or NULL */
    uint16_t *index_keys; /* behind them, or NULL: [layer][position][index_dim] */
} kt_kv_cache;

/* Bytes of a cache of this shape; 0 when the product overflows. */
size_t kt_kv_cache_bytes(const kt_kv_shape *shape, int64_t capacity);

kt_status kt_kv_cache_init(kt_kv_cache *cache, const kt_kv_shape *shape, int64_t capacity,
                           kt_err *err);
void kt_kv_cache_deinit(kt_kv_cache *cache);

/* First row of a head's keys (which = 0) or values (which = 1), and that row's scale (NULL =
 * none). */
void *kt_kv_cache_rows(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head);
float *kt_kv_cache_scales(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head);

/* Put a row of head_dim floats at a position. */
void kt_kv_cache_put(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head,
                     int64_t position, const float *x);

#endif
