/* The walk over rows, chunks and blocks that all attention variants share.
 *
 * A tile is a few query rows times all heads of the group, "queries" below: they share every K and V
 * load. Per block of keys a tile computes scores, turns them into weights with a running maximum, and
 * adds weighted values. Blocks that end before every row's position are done for the whole tile at
 * once; the others row by row, each with its own number of keys, so that no masked key is ever
 * computed, read or added.
 *
 * The including file defines ATTN_LANES (head_dim is padded to it in scratch; queries and sums are kept
 * there in whatever order of elements suits the loads) and, before including this header,
 *
 *   load_query   f32 head * scale -> padded scratch row
 *   scores       s[i][j] = q[i] . k[j], i < n_queries, j < n_keys <= KT_ATTN_BLOCK
 *   soften       s -> exp(s - max); updates stats, returns the factor for older sums
 *   weigh        o[i] = o[i] * keep[i] + sum_j s[i][j] v[j]
 *   store_sums   padded scratch row -> f32 head
 *
 * Each must treat a query the same way, to the bit, whatever other queries it is called with.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ATTN_WALK_H
#define KT_KERNELS_ATTN_WALK_H

#include <math.h>
#include <stddef.h>
#include <string.h>

#include "kernels/attn/attn_common.h"

#define ATTN_LDS (KT_ATTN_BLOCK + 16) /* scores may be written up to 15 past the block */

static const int32_t attn_tile_queries[] = {16, 32, 64};
static const kt_param attn_params[] = {{"queries", attn_tile_queries, 3, 32}};

/* Scratch of one thread: arrays over the tile's queries. */
typedef struct attn_tile {
    float *q, *o;    /* [queries, padded] */
    float *s;        /* [queries, ATTN_LDS] */
    float *chunk;    /* [queries, 2] largest score and sum of the chunk */
    float *total;    /* [queries, 2] of the chunks folded so far */
    float *keep;     /* [queries] */
    float *natural;  /* [padded] one head in its own order */
    int64_t padded;  /* head_dim rounded up to ATTN_LANES */
    int64_t queries; /* capacity */
    int64_t group;
} attn_tile;

static inline int64_t attn_tile_rows(const kt_problem *p, const kt_config *config) {
    int64_t group = p->n / p->kv_heads, rows = config->value[0] / group;
    return rows < 1 ? 1 : rows;
}

static inline size_t attn_floats(size_t n) {
    return (n + 15) / 16 * 16; /* keeps every array 64-byte aligned */
}

static size_t attn_workspace_bytes(const kt_problem *p, const kt_config *config) {
    size_t padded = ((size_t)p->k + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    size_t queries = (size_t)(attn_tile_rows(p, config) * (p->n / p->kv_heads));
    size_t row = attn_floats(queries * padded);
    return sizeof(float) *
           (2 * row + attn_floats(queries * ATTN_LDS) + 2 * attn_floats(2 * queries) +
            attn_floats(queries) + attn_floats(padded));
}

static attn_tile attn_tile_of(const kt_attn_call *c) {
    attn_tile t;
    float *at = c->scratch;
    size_t queries;

    t.group = c->problem->n / c->problem->kv_heads;
    t.padded = (c->problem->k + ATTN_LANES - 1) / ATTN_LANES * ATTN_LANES;
    t.queries = attn_tile_rows(c->problem, c->config) * t.group;
    queries = (size_t)t.queries;
    t.q = at;
    t.o = t.q + attn_floats(queries * (size_t)t.padded);
    t.s = t.o + attn_floats(queries * (size_t)t.padded);
    t.chunk = t.s + attn_floats(queries * ATTN_LDS);
    t.total = t.chunk + attn_floats(2 * queries);
    t.keep = t.total + attn_floats(2 * queries);
    t.natural = t.keep + attn_floats(queries);
    return t;
}

/* Queries [first, first + n) of the tile meet keys [key, key + n_keys). */
static inline void attn_block(const kt_attn_call *c, const attn_tile *t, int64_t first, int64_t n,
                              int64_t key, int64_t n_keys) {
    float *s = t->s + first * ATTN_LDS;
    scores(t->q + first * t->padded, t->padded, n, c->k + key * c->ldkv, c->ldkv, c->problem->k,
           n_keys, s);
    for (int64_t i = 0; i < n; i++)
        t->keep[first + i] = soften(s + i * ATTN_LDS, n_keys, t->chunk + 2 * (first + i));
    weigh(t->o + first * t->padded, t->padded, t->keep + first, n, s, c->v + key * c->ldkv, c->ldkv,
          c->problem->k, n_keys);
}

/* One chunk for rows [row, row + rows) of the call; keys end at `end` or at the row's position. */
static void attn_chunk(const kt_attn_call *c, const attn_tile *t, int64_t row, int64_t rows,
                       int64_t begin, int64_t end) {
    memset(t->o, 0, (size_t)(rows * t->group * t->padded) * sizeof *t->o);
    for (int64_t i = 0; i < rows * t->group; i++) {
        t->chunk[2 * i] = -INFINITY;
        t->chunk[2 * i + 1] = 0.0f;
    }
    for (int64_t key = begin; key < end; key += KT_ATTN_BLOCK) {
        int64_t stop = key + KT_ATTN_BLOCK < end ? key + KT_ATTN_BLOCK : end, whole = 1;
        for (int64_t r = 0; r < rows; r++)
            if (c->position[row + r] < stop - 1) whole = 0;
        if (whole) {
            attn_block(c, t, 0, rows * t->group, key, stop - key);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t limit = (int64_t)c->position[row + r] + 1;
            if (limit > stop) limit = stop;
            if (limit > key) attn_block(c, t, r * t->group, t->group, key, limit - key);
        }
    }
}

/* The chunk that began at `begin` is complete: hand out its sums or fold them into out. */
static void attn_chunk_done(const kt_attn_call *c, const attn_tile *t, int64_t row, int64_t rows,
                            int64_t begin) {
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        float *out = c->out + r * c->ldo + head * c->problem->k;
        float *stats = c->stats ? c->stats + r * c->ldstats + 2 * head : t->total + 2 * i;

        if (c->position[r] < begin) continue;
        if (c->stats || begin == 0) {
            store_sums(t->o + i * t->padded, c->problem->k, out);
            memcpy(stats, t->chunk + 2 * i, 2 * sizeof *stats);
        } else {
            store_sums(t->o + i * t->padded, c->problem->k, t->natural);
            kt_attn_fold(out, stats, t->natural, t->chunk + 2 * i, c->problem->k);
        }
    }
}

static void attn_rows(const kt_attn_call *c, const attn_tile *t, int64_t row, int64_t rows) {
    int64_t last = 0, end;

    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        load_query(c->q + r * c->ldq + head * c->problem->k, c->problem->k, c->scale,
                   t->q + i * t->padded);
        if (c->position[r] > last) last = c->position[r];
    }
    end = last + 1;
    if (c->key_end > 0 && c->key_end < end) end = c->key_end;
    for (int64_t begin = c->key_begin; begin < end; begin += KT_ATTN_CHUNK) {
        int64_t stop = begin + KT_ATTN_CHUNK < end ? begin + KT_ATTN_CHUNK : end;
        attn_chunk(c, t, row, rows, begin, stop);
        attn_chunk_done(c, t, row, rows, begin);
    }
    if (c->stats) return;
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        kt_attn_finish(c->out + r * c->ldo + head * c->problem->k, t->total + 2 * i, c->problem->k);
    }
}

static void attn_run(const kt_attn_call *c) {
    attn_tile t = attn_tile_of(c);
    int64_t tile_rows = t.queries / t.group;
    for (int64_t row = c->row_begin; row < c->row_end; row += tile_rows)
        attn_rows(c, &t, row, c->row_end - row < tile_rows ? c->row_end - row : tile_rows);
}

#endif
