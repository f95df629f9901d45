/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/kv/pages.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/numeric.h"
#include "kernels/attn/attn_common.h"
#include "runtime/kv/page_tier.h"

#define TOKENS KT_ATTN_BLOCK /* of a page */

_Static_assert(TOKENS == KT_PREFIX_TOKENS, "what is known is whole pages");

/* Rows of keys and values of a page in one layer. */
static int64_t rows_of(const kt_kv_shape *s) {
    return (s->has_shared_rows ? 1 : 2) * s->kv_heads * TOKENS;
}

static size_t row_bytes(const kt_kv_shape *s) {
    return (size_t)s->head_dim * kt_attn_item_bytes(s->format);
}

static bool is_bare(const kt_kv_shape *s, int64_t layer) {
    return layer < KT_KV_LAYERS && (s->bare[layer / 64] >> (layer % 64) & 1);
}

/* Of the first n layers, those that keep index keys. */
static int64_t index_layers(const kt_kv_shape *s, int64_t n) {
    int64_t bare = 0;

    for (int64_t i = 0; i < KT_KV_LAYERS / 64 && 64 * i < n; i++) {
        const uint64_t below = n - 64 * i < 64 ? ((uint64_t)1 << (n - 64 * i)) - 1 : UINT64_MAX;
        bare += __builtin_popcountll(s->bare[i] & below);
    }
    return n - bare;
}

/* Bytes of a page's rows in one layer; 0 when they, or index keys, overflow. */
static size_t layer_bytes(const kt_kv_shape *s) {
    const size_t scale = kt_attn_has_scales(s->format) ? sizeof(float) : 0;
    uint64_t rows, total, index;

    if (s->layers < 1 || s->kv_heads < 1 || s->head_dim < 1 || s->index_dim < 0) return 0;
    if (kt_mul_overflow(2 * TOKENS, (uint64_t)s->kv_heads, &rows) ||
        kt_mul_overflow(rows, 2 * (uint64_t)s->head_dim + sizeof(float), &total) ||
        kt_mul_overflow(2 * TOKENS, (uint64_t)s->index_dim, &index) || total > SIZE_MAX / 4 ||
        index > SIZE_MAX / 4)
        return 0;
    return (size_t)rows_of(s) * (row_bytes(s) + scale);
}

size_t kt_kv_page_bytes(const kt_kv_shape *s) {
    const size_t rows = layer_bytes(s);
    uint64_t bytes, index;

    if (!rows || kt_mul_overflow(rows, (uint64_t)s->layers, &bytes) || bytes > SIZE_MAX / 4 ||
        kt_mul_overflow(2 * TOKENS * (uint64_t)s->index_dim, (uint64_t)index_layers(s, s->layers),
                        &index) ||
        index > SIZE_MAX / 4 || s->entry_bytes > SIZE_MAX / 4)
        return 0;
    return (size_t)(bytes + index) + s->entry_bytes;
}

int64_t kt_kv_pages_for(int64_t tokens) {
    return tokens / TOKENS + (tokens % TOKENS != 0);
}

size_t kt_kv_bytes(const kt_kv_shape *s, int64_t tokens) {
    uint64_t bytes;

    if (tokens < 1 ||
        kt_mul_overflow(kt_kv_page_bytes(s), (uint64_t)kt_kv_pages_for(tokens), &bytes) ||
        bytes > SIZE_MAX / 2)
        return 0;
    return (size_t)bytes;
}

/* ---- memory ---- */

/* Rows, scales, index keys and entries, each on a line of its own. */
static size_t lay_out(kt_page_pool *p, uint8_t *base) {
    const size_t heads = (size_t)(p->n * p->shape.layers * (rows_of(&p->shape) / TOKENS));
    const size_t scale = kt_attn_has_scales(p->shape.format) ? TOKENS * sizeof *p->scales : 0;
    const size_t scales = heads * p->page_bytes, index = scales + heads * scale;
    const size_t index_bytes =
        (size_t)(p->n * index_layers(&p->shape, p->shape.layers) * TOKENS * p->shape.index_dim) *
        sizeof *p->index;

    const size_t entries = (index + index_bytes + 63) / 64 * 64;

    if (base) {
        p->entries = base + entries;
        p->rows = base;
        p->scales = scale ? (float *)(void *)(base + scales) : NULL;
        p->index = index_bytes ? (uint16_t *)(void *)(base + index) : NULL;
    }
    return entries + (size_t)p->n * p->shape.entry_bytes;
}

static kt_status allocate(kt_page_pool *p, kt_err *err) {
    const uint64_t seed = (uint64_t)p->shape.format;

    p->free = malloc((size_t)p->n * sizeof *p->free);
    p->refs = calloc((size_t)p->n, sizeof *p->refs);
    if (!p->free || !p->refs)
        return kt_fail(err, KT_E_NOMEM, "no memory for %lld pages of the cache", (long long)p->n);
    KT_TRY(kt_prefix_create(p->n, seed, 64, &p->prefix, err));
    if (kt_buffer_reserve(lay_out(p, NULL), KT_PAGES_ADVISED, -1, &p->buffer, err) != KT_OK)
        return kt_fail_prefix(err, KT_E_NOMEM, "cache of %lld pages of %d tokens", (long long)p->n,
                              TOKENS);
    lay_out(p, p->buffer.data);
    return KT_OK;
}

kt_status kt_pages_init(kt_page_pool *p, const kt_kv_shape *shape, int64_t n, kt_states *states,
                        kt_err *err) {
    kt_status st;

    *p = (kt_page_pool){.shape = *shape, .n = n, .states = states};
    if (n < 1 || n > INT32_MAX || !kt_kv_bytes(shape, n * TOKENS))
        return kt_fail(err, KT_E_INVALID, "a cache of %lld pages of %d tokens is not possible",
                       (long long)n, TOKENS);
    p->page_bytes = TOKENS * row_bytes(shape); /* whole lines */
    st = allocate(p, err);
    if (st != KT_OK) {
        kt_pages_deinit(p);
        return st;
    }
    for (int64_t i = 0; i < n; i++) p->free[i] = (uint32_t)(n - 1 - i);
    p->n_free = n;
    return KT_OK;
}

void kt_pages_deinit(kt_page_pool *p) {
    kt_buffer_destroy(&p->buffer);
    kt_prefix_destroy(p->prefix);
    kt_page_tier_destroy(p->tier);
    free(p->free);
    free(p->refs);
    memset(p, 0, sizeof *p);
}

/* ---- who has which ---- */

int64_t kt_pages_room(const kt_page_pool *p) {
    return p->n_free + kt_prefix_idle(p->prefix);
}

static void forget_oldest(kt_page_pool *p) {
    const uint32_t page = (uint32_t)kt_prefix_oldest(p->prefix);

    if (p->states) kt_states_drop(p->states, page);
    kt_prefix_remove(p->prefix, page);
    p->free[p->n_free++] = page;
}

int64_t kt_pages_take(kt_page_pool *p) {
    uint32_t page;

    if (p->n_free == 0 && kt_prefix_idle(p->prefix) > 0) forget_oldest(p);
    if (p->n_free == 0) return -1;
    page = p->free[--p->n_free];
    p->refs[page] = 1;
    return page;
}

void kt_pages_share(kt_page_pool *p, uint32_t page) {
    if (p->refs[page]++ == 0) kt_prefix_set_idle(p->prefix, page, false);
}

void kt_pages_give(kt_page_pool *p, uint32_t page) {
    if (--p->refs[page] > 0) return;
    if (kt_prefix_has(p->prefix, page))
        kt_prefix_set_idle(p->prefix, page, true);
    else
        p->free[p->n_free++] = page;
}

void kt_pages_drop(kt_page_pool *p) {
    while (kt_prefix_idle(p->prefix) > 0) forget_oldest(p);
}

/* ---- rows ---- */

/* Pages before the first one of a head. */
static int64_t pages_before(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head) {
    const int64_t side = p->shape.has_shared_rows ? layer : layer * 2 + which;

    return (side * p->shape.kv_heads + kv_head) * p->n;
}

void *kt_pages_rows(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head) {
    return p->rows + (size_t)pages_before(p, layer, which, kv_head) * p->page_bytes;
}

float *kt_pages_scales(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head) {
    return p->scales ? p->scales + pages_before(p, layer, which, kv_head) * TOKENS : NULL;
}

uint16_t *kt_pages_index(const kt_page_pool *p, int64_t layer, uint32_t page) {
    return p->index + (index_layers(&p->shape, layer) * p->n + page) * TOKENS * p->shape.index_dim;
}

uint8_t *kt_pages_entries(const kt_page_pool *p, uint32_t page) {
    return p->entries + (size_t)page * p->shape.entry_bytes;
}

void kt_pages_put(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head, uint32_t page,
                  int64_t at, const float *x) {
    uint8_t *rows = (uint8_t *)kt_pages_rows(p, layer, which, kv_head) + page * p->page_bytes;
    float *scales = kt_pages_scales(p, layer, which, kv_head);

    kt_attn_store(p->shape.format, x, p->shape.head_dim, rows + (size_t)at * row_bytes(&p->shape),
                  scales ? scales + (int64_t)page * TOKENS + at : NULL);
}

static void copy_head(const kt_page_pool *p, int64_t layer, int which, int64_t head, uint32_t from,
                      uint32_t to, int64_t n) {
    uint8_t *rows = kt_pages_rows(p, layer, which, head);
    float *scales = kt_pages_scales(p, layer, which, head);

    memcpy(rows + to * p->page_bytes, rows + from * p->page_bytes,
           (size_t)n * row_bytes(&p->shape));
    if (scales)
        memcpy(scales + (int64_t)to * TOKENS, scales + (int64_t)from * TOKENS,
               (size_t)n * sizeof *scales);
}

void kt_pages_copy(const kt_page_pool *p, uint32_t from, uint32_t to, int64_t n) {
    if (p->elsewhere.arg) p->elsewhere.copy_page(p->elsewhere.arg, from, to, n);
    if (p->shape.entry_bytes)
        memcpy(kt_pages_entries(p, to), kt_pages_entries(p, from), p->shape.entry_bytes);
    if (p->elsewhere.has_all) return;
    for (int64_t layer = 0; layer < p->shape.layers; layer++) {
        for (int which = 0; which < (p->shape.has_shared_rows ? 1 : 2); which++)
            for (int64_t h = 0; h < p->shape.kv_heads; h++)
                copy_head(p, layer, which, h, from, to, n);
    }
    for (int64_t layer = 0; p->index && layer < p->shape.layers; layer++)
        if (!is_bare(&p->shape, layer))
            memcpy(kt_pages_index(p, layer, to), kt_pages_index(p, layer, from),
                   (size_t)(n * p->shape.index_dim) * sizeof *p->index);
}
