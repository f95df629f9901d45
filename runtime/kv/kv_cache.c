/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/kv_cache.h"

#include "base/err.h"
#include "base/numeric.h"

size_t kt_kv_cache_bytes(int64_t layers, int64_t kv_heads, int64_t head_dim, int64_t capacity) {
    const int64_t factors[] = {layers, kv_heads, head_dim, capacity};
    uint64_t bytes = 2 * sizeof(uint16_t);

    for (int i = 0; i < 4; i++)
        if (factors[i] < 1 || kt_mul_overflow(bytes, (uint64_t)factors[i], &bytes)) return 0;
    return (size_t)bytes;
}

kt_status kt_kv_cache_init(kt_kv_cache *cache, int64_t layers, int64_t kv_heads, int64_t head_dim,
                           int64_t capacity, kt_err *err) {
    size_t bytes = kt_kv_cache_bytes(layers, kv_heads, head_dim, capacity);

    *cache = (kt_kv_cache){
        .layers = layers, .kv_heads = kv_heads, .head_dim = head_dim, .capacity = capacity};
    if (!bytes)
        return kt_fail(err, KT_E_INVALID, "a cache of %lld tokens is not possible",
                       (long long)capacity);
    if (kt_buffer_create(bytes, KT_PAGES_ADVISED, -1, &cache->buffer, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_NOMEM, "cache of %lld tokens", (long long)capacity);
    return KT_OK;
}

void kt_kv_cache_deinit(kt_kv_cache *cache) {
    kt_buffer_destroy(&cache->buffer);
}
