/* Keys and values in pages of 64 tokens: one pool for all sequences, one page number for all
 * layers. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_PAGES_H
#define KT_RUNTIME_KV_PAGES_H

#include "base/buffer.h"
#include "kt/problem.h"
#include "runtime/kv/prefix.h"
#include "runtime/kv/state.h"

#define KT_KV_LAYERS 1024 /* that can be told apart; KT_MAX_LAYERS */

/* Sizes and format: KT_W_BF16, or KT_W_INT8_CHANNEL or KT_W_FP8_CHANNEL, which have one f32
 * scale per row of head_dim codes (kernels/attn/attn_common.h). */
typedef struct kt_kv_shape {
    kt_weight_format format;
    int64_t layers, kv_heads, head_dim; /* layers that keep rows */
    int has_shared_rows; /* values are the beginning of keys' rows: no rows of their own */
    int64_t index_dim;   /* of index keys: one BF16 row per layer and token; 0 = none */
    uint64_t bare[KT_KV_LAYERS / 64]; /* bit i: layer i keeps rows, but no index keys */
    size_t entry_bytes; /* of a page: rows that stand for several tokens, all layers; 0 = none */
} kt_kv_shape;

/* Bytes of a page, all layers and scales; 0 when that overflows or the shape is no shape. */
size_t kt_kv_page_bytes(const kt_kv_shape *shape);
/* Bytes of the pages of so many tokens; 0 likewise. */
size_t kt_kv_bytes(const kt_kv_shape *shape, int64_t tokens);
int64_t kt_kv_pages_for(int64_t tokens); /* rounded up */

/* Rows lie as [layer][keys, values][kv_head][page][64][head_dim], scales as the same without
 * head_dim, index keys as [layers that are not bare][page][64][index_dim]: a sequence whose pages follow each other,
 * as those of a fresh pool do, is read as one piece by each head. Plain struct so that hot paths
 * read it directly.
 *
 * A page is free, or has users (refs), or is kept for reuse alone (`prefix` holds it and refs is
 * 0). Not thread-safe. */
typedef struct kt_page_pool {
    kt_kv_shape shape;
    int64_t n;
    size_t page_bytes; /* of a page's rows of one head */
    kt_buffer buffer;
    uint8_t *rows;
    float *scales;   /* NULL = none */
    uint16_t *index; /* NULL = none */
    uint8_t *entries;
    uint32_t *free; /* owned: [n_free] numbers, the next one last */
    int64_t n_free;
    uint32_t *refs;    /* owned: [n] */
    kt_prefix *prefix; /* owned */
    kt_states *states; /* borrowed; NULL = none: snapshots of pages that are given up go too */
    kt_kept_elsewhere elsewhere;
    struct kt_page_tier *tier; /* owned: page_tier.h; NULL = what is given up is gone */
} kt_page_pool;

/* n pages, whose memory is taken when it is first written. */
kt_status kt_pages_init(kt_page_pool *p, const kt_kv_shape *shape, int64_t n, kt_states *states,
                        kt_err *err);
void kt_pages_deinit(kt_page_pool *p); /* accepts a zeroed one */

/* Pages that can be had: free or kept for reuse alone. */
int64_t kt_pages_room(const kt_page_pool *p);
/* A page with one user; the longest unused of the kept ones if none is free. -1 = there is none. */
int64_t kt_pages_take(kt_page_pool *p);
void kt_pages_share(kt_page_pool *p, uint32_t page); /* one more user, also of a kept page */
/* One user less; without any the page is kept for reuse, if its prefix is known, or free. Sequences
 * give their last pages first. */
void kt_pages_give(kt_page_pool *p, uint32_t page);
/* Copy the rows of the first n tokens. */
void kt_pages_copy(const kt_page_pool *p, uint32_t from, uint32_t to, int64_t n);
/* Free all pages that are kept for reuse alone. */
void kt_pages_drop(kt_page_pool *p);

/* Page 0 of a head's keys (which = 0) or values (which = 1), and its scales (NULL = none). Page i
 * begins i * page_bytes bytes, or i * 64 floats, behind; the next head n pages. Shared rows have
 * keys only. */
void *kt_pages_rows(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head);
float *kt_pages_scales(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head);
/* What a page keeps beside rows of single tokens: entry_bytes, 64-byte aligned. */
uint8_t *kt_pages_entries(const kt_page_pool *p, uint32_t page);
/* Index keys of a page, of a layer that is not bare. */
uint16_t *kt_pages_index(const kt_page_pool *p, int64_t layer, uint32_t page);

/* Put a row of head_dim floats at a place in a page. */
void kt_pages_put(const kt_page_pool *p, int64_t layer, int which, int64_t kv_head, uint32_t page,
                  int64_t at, const float *x);

#endif
