/* The walk over rows, chunks and blocks that all attention variants share.
 *
 * A tile is a few query rows times all heads of the group, "queries" below: they share every K
 * and V load. Per block of keys a tile computes scores, turns them into weights with a running
 * maximum, and adds weighted values. Blocks that end before every row's position are done for
 * the whole tile at once; the others row by row, each with its own number of keys, so that no
 * masked key is ever computed, read or added.
 *
 * Variants know BF16 rows. A cache of 8-bit codes is widened block by block, once per tile, to
 * BF16, which holds every code exactly; the scales of keys multiply the scores, those of values
 * the weights.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_WALK_H
#define KT_KERNELS_ATTN_WALK_H

#include <stdbool.h>

#include "kernels/attn/attn_common.h"
#include "kernels/simd/fetch.h"

#define KT_ATTN_FEW 8                    /* queries that one load of a value serves in registers */
#define KT_ATTN_LDS (KT_ATTN_BLOCK + 16) /* row of scores: up to 15 past the block may be written */
#define KT_ATTN_AHEAD 128 /* rows from one that is read to that asked for; whole blocks */

/* Rows of a cache, or of a block that was widened: n of them, `ld` elements apart, d elements each.
 * cache: what they hold; KT_W_BF16 also for what a variant's `widen` wrote. ahead: elements from a
 * row to that KT_ATTN_AHEAD rows on, for kt_attn_fetch; 0 = there is none. is_near: what is asked
 * for goes into L1 (kt_cpu_fetches_near). */
typedef struct kt_attn_rows {
    kt_weight_format cache;
    int is_near;
    const uint8_t *at;
    int64_t ld, d, n, ahead;
} kt_attn_rows;

/* Keys or values that come next, for prefetches: row r begins r * ld bytes after `rows` and has
 * `bytes`. rows = NULL: nothing to ask for. Scores ask for the next block's keys, weigh for its
 * values; or scores ask for the values of this block, weigh for the next block's keys, which L1
 * then still holds when they are read. */
typedef struct kt_attn_next {
    const uint8_t *rows;
    int64_t ld, bytes;
    int is_near;
} kt_attn_next;

/* Rows of `bytes` bytes, ld bytes apart: the lines from (row, x) on are not asked for yet. */
typedef struct kt_attn_lines {
    const char *at;
    int64_t ld, bytes, rows;
    int64_t row, x;
} kt_attn_lines;

/* What a tile asks for ahead while it meets its blocks, one after the other; `left` lines of it
 * with this block. */
typedef struct kt_attn_asking {
    kt_attn_lines of[2];
    int64_t left;
    int is_near;
} kt_attn_asking;

/* Ask for so many lines more, or those that are left. Prefetches wait for each other in bursts: a
 * variant that asks for `ask_eight` with each eight queries loses less than the walk, which asks
 * for the rest behind each block. */
void kt_attn_ask(kt_attn_asking *asking, int64_t lines);

/* n queries that meet the first keys of a block, all borrowed from the walk's scratch and from the
 * cache. Query 0 sees `least` keys of the block, query i those and i / group more, none over n_keys
 * <= KT_ATTN_BLOCK: kt_attn_keys. f32 rows are padded to a multiple of the variant's `lanes`. */
typedef struct kt_attn_part {
    int64_t n, group, least, n_keys;
    const float *q; /* [n, ldq] as load_query wrote them */
    int64_t ldq;
    float *s; /* [n, KT_ATTN_LDS] scores, then weights */
    float *o; /* [n, ldo] sums of weighted values, in the order that suits the variant's loads */
    int64_t ldo;
    float *stats;     /* [n, 2] largest score and sum of exponentials of the chunk */
    float *keep;      /* [n] factors of the sums so far */
    kt_attn_rows k;   /* codes only where the variant loads codes */
    const void *keys; /* the same as load_keys wrote it */
    kt_attn_rows v;   /* codes only where the variant weighs codes and n <= KT_ATTN_FEW */
    const float *k_scale, *v_scale; /* NULL, or factors of scores and of weights, one per key */
    kt_attn_next for_scores, for_values; /* what scores ask for, and what weigh does */
    kt_attn_asking *ask; /* what the walk asks for; lines of it for each eight queries */
    int64_t ask_eight;
} kt_attn_part;

/* Keys that query i of the tile sees. */
static inline int64_t kt_attn_keys(const kt_attn_part *t, int64_t i) {
    const int64_t n = t->least + i / t->group;
    return n < t->n_keys ? n : t->n_keys;
}

/* bfloat16 row j. */
static inline const uint16_t *kt_attn_row(const kt_attn_rows *rows, int64_t j) {
    return (const uint16_t *)(const void *)rows->at + j * rows->ld;
}

/* Ask for the rows KT_ATTN_AHEAD behind [j, j + n), bfloat16, of their elements [first, end) every
 * step-th; for rows that were just made there are none. Into L2 on most CPUs: what L1 waits for is
 * limited by its few miss buffers to about 12 GB/s on Zen 4 (64 B x 24 per 130 ns), which the hint
 * for L2 is not. Measured there for 32 heads over 4, 2048 keys, cold: 563 us with the L1 hint, 373
 * us with this. Zen 5 is the other way round (NOTES.md). */
static inline void kt_attn_fetch(const kt_attn_rows *rows, int64_t j, int64_t n, int64_t first,
                                 int64_t end, int64_t step) {
    const uint16_t *at = kt_attn_row(rows, j) + rows->ahead;

    for (int64_t i = 0; rows->ahead && i < n; i++)
        for (int64_t x = first; x < end; x += step)
            kt_fetch_line(at + i * rows->ld + x, rows->is_near);
}

/* What a variant brings. A function copies what it is given: its stores may alias all that it reads
 * by pointers, so that each would be read again after them. Each must treat a query the same way,
 * to the bit, whatever other queries it is called with. NULL = none, but where a function says that
 * it is needed. */
typedef struct kt_attn_inner {
    int64_t lanes;
    /* f32 head of d elements * scale -> scratch row; needed. */
    void (*load_query)(const float *q, int64_t d, float scale, float *out);
    /* Codes -> BF16 rows of ldo >= d rounded up to lanes, zeros past d; needed for 8-bit caches.
     * What loads codes widens values alone, to whatever its weigh reads. */
    void (*widen)(const kt_attn_rows *codes, uint16_t *out, int64_t ldo);
    /* Queries [0, t->n) of a tile of the walk, loaded, rearranged into what keys_bytes has room for
     * behind a block of keys. */
    void (*turn_queries)(const kt_attn_part *t);
    /* A block of keys rearranged once for all queries of the walk's tile, to keys_bytes bytes,
     * 64-byte aligned; scores may meet fewer keys than were loaded. */
    size_t (*keys_bytes)(int64_t d);
    void (*load_keys)(const kt_attn_part *t, void *keys); /* for t->n queries at most */
    /* load_keys takes codes as the cache has them. Then keys_bytes is enough for a widened block
     * of values of the size d too. */
    bool loads_codes;
    /* s[i * KT_ATTN_LDS + j] = q[i] . k[j], for the n_keys of the tile; needed. */
    void (*scores)(const kt_attn_part *t);
    /* Scores of query i -> exp(s - max) in the form that weigh wants, with its stats brought up to
     * date; returns the factor for older sums. soften_all: the same, to the bit, for all queries,
     * factors to t->keep. One of the two is needed. */
    float (*soften)(const kt_attn_part *t, int64_t i);
    void (*soften_all)(const kt_attn_part *t);
    /* Rows that see different numbers of keys can be softened and weighed together, at most
     * `ragged` queries (0 = KT_ATTN_FEW). weighs_ragged: weigh gives each query its own number,
     * kt_attn_keys. weighs_from_any: a float of a row is the weight of one key, so weigh can begin
     * at any key and the walk calls it for the common keys, then for each row's own. */
    bool weighs_ragged, weighs_from_any;
    int64_t ragged;
    /* o[i] = o[i] * keep[i] + sum_j s[i * KT_ATTN_LDS + j] v[j], for the n_keys of the tile;
     * needed. weighs_codes: it takes codes too, for at most KT_ATTN_FEW queries, to its bits. */
    void (*weigh)(const kt_attn_part *t);
    bool weighs_codes;
    /* Scratch row * factor -> f32 head of d elements; needed. */
    void (*store_sums)(const float *o, int64_t d, float factor, float *out);
} kt_attn_inner;

/* The parameter of most variants of the walk: queries per tile. */
#define KT_ATTN_N_PARAMS 1
extern const kt_param kt_attn_params[KT_ATTN_N_PARAMS];

/* Descriptor members of a variant: its attn is kt_attn_walk with its own inner functions. */
void kt_attn_walk(const kt_attn_call *call, const kt_attn_inner *inner);
size_t kt_attn_walk_bytes(const kt_problem *problem, const kt_config *config,
                          const kt_attn_inner *inner);

/* The end of a variant's file: registers kernels/attn/<stem>.c with `inner` of that file; what
 * variants differ in stands behind the stem: .weights, .isa, .numerics, .bits, .version, .rank,
 * .params, .accepts. */
#define KT_ATTN_VARIANT(stem, ...)                                                      \
    static void attn(const kt_attn_call *call) {                                        \
        kt_attn_walk(call, &inner);                                                     \
    }                                                                                   \
    static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) { \
        return kt_attn_walk_bytes(problem, config, &inner);                             \
    }                                                                                   \
    KT_VARIANT(stem) = {.name = #stem,                                                  \
                        .op = KT_OP_ATTN,                                               \
                        .layout = "",                                                   \
                        .n_params = KT_ATTN_N_PARAMS,                                   \
                        .workspace_bytes = workspace_bytes,                             \
                        .attn = attn,                                                   \
                        __VA_ARGS__}

#endif
