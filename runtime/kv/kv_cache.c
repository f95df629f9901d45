/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/kv_cache.h"

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"

/* Keys and values of so many positions, in rows. */
static int rows_of(const kt_kv_shape *s, int64_t capacity, uint64_t *rows) {
    const int64_t factors[] = {s->layers, s->kv_heads, capacity};

    *rows = s->has_shared_rows ? 1 : 2;
    for (int i = 0; i < 3; i++)
        if (factors[i] < 1 || kt_mul_overflow(*rows, (uint64_t)factors[i], rows)) return 0;
    return 1;
}

/* Where the scales begin, on a line of their own. */
static size_t scales_offset(const kt_kv_shape *s, uint64_t rows) {
    uint64_t bytes;

    if (s->head_dim < 1 || kt_mul_overflow(rows, (uint64_t)s->head_dim, &bytes) ||
        kt_mul_overflow(bytes, kt_attn_item_bytes(s->format), &bytes) || bytes > SIZE_MAX / 2)
        return 0;
    return ((size_t)bytes + 63) / 64 * 64;
}

/* Where index keys would begin, behind rows and scales. */
static size_t index_offset(const kt_kv_shape *s, uint64_t rows) {
    const size_t data = scales_offset(s, rows);
    uint64_t total;

    if (data == 0 || !kt_attn_has_scales(s->format)) return data;
    if (kt_mul_overflow(rows, sizeof(float), &total) || kt_add_overflow(total, data, &total) ||
        total > SIZE_MAX / 2)
        return 0;
    return s->index_dim ? ((size_t)total + 63) / 64 * 64 : (size_t)total;
}

size_t kt_kv_cache_bytes(const kt_kv_shape *s, int64_t capacity) {
    uint64_t rows, total;
    size_t data;

    if (!rows_of(s, capacity, &rows)) return 0;
    data = index_offset(s, rows);
    if (data == 0 || s->index_dim == 0) return data;
    if (kt_mul_overflow((uint64_t)(s->layers * s->index_dim), 2 * (uint64_t)capacity, &total) ||
        kt_add_overflow(total, data, &total) || total > SIZE_MAX)
        return 0;
    return (size_t)total;
}

kt_status kt_kv_cache_init(kt_kv_cache *cache, const kt_kv_shape *shape, int64_t capacity,
                           kt_err *err) {
    size_t bytes = kt_kv_cache_bytes(shape, capacity);
    uint64_t rows;

    *cache = (kt_kv_cache){0};
    if (!bytes)
        return kt_fail(err, KT_E_INVALID, "a cache of %lld tokens is not possible",
                       (long long)capacity);
    if (kt_buffer_create(bytes, KT_PAGES_ADVISED, -1, &cache->buffer, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_NOMEM, "cache of %lld tokens", (long long)capacity);
    cache->shape = *shape;
    cache->capacity = capacity;
    if (shape->index_dim && rows_of(shape, capacity, &rows))
        cache->index_keys =
            (uint16_t *)(void *)((char *)cache->buffer.data + index_offset(shape, rows));
    if (kt_attn_has_scales(shape->format) && rows_of(shape, capacity, &rows))
        cache->scales = (float *)(void *)((char *)cache->buffer.data + scales_offset(shape, rows));
    return KT_OK;
}

void kt_kv_cache_deinit(kt_kv_cache *cache) {
    kt_buffer_destroy(&cache->buffer);
}

/* Rows before this head's. */
static int64_t first_row(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head) {
    const int64_t side = c->shape.has_shared_rows ? layer : layer * 2 + which;

    return (side * c->shape.kv_heads + kv_head) * c->capacity;
}

static char *row_at(const kt_kv_cache *c, int64_t row) {
    return (char *)c->buffer.data +
           (size_t)(row * c->shape.head_dim) * kt_attn_item_bytes(c->shape.format);
}

void *kt_kv_cache_rows(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head) {
    return row_at(c, first_row(c, layer, which, kv_head));
}

float *kt_kv_cache_scales(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head) {
    return c->scales ? c->scales + first_row(c, layer, which, kv_head) : NULL;
}

void kt_kv_cache_put(const kt_kv_cache *c, int64_t layer, int which, int64_t kv_head,
                     int64_t position, const float *x) {
    int64_t row = first_row(c, layer, which, kv_head) + position;

    kt_attn_store(c->shape.format, x, c->shape.head_dim, row_at(c, row),
                  c->scales ? c->scales + row : NULL);
}
