/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_walk.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const int32_t tile_queries[] = {16, 32, 64};
const kt_param kt_attn_params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 32}};

/* Scratch of one thread: arrays over the tile's queries. */
typedef struct tile {
    float *q, *o;    /* [queries, padded] */
    float *s;        /* [queries, KT_ATTN_LDS] */
    float *chunk;    /* [queries, 2] largest score and sum of the chunk */
    float *total;    /* [queries, 2] of the chunks folded so far */
    float *keep;     /* [queries] */
    float *natural;  /* [padded] one head in its own order */
    void *keys;      /* a rearranged block */
    uint16_t *wide;  /* [2][KT_ATTN_BLOCK, padded]: a block of 8-bit keys and values as BF16 */
    int64_t padded;  /* head_dim rounded up to lanes */
    int64_t queries; /* capacity */
    int64_t group;
    const kt_attn_inner *inner;
} tile;

static int64_t tile_rows_of(const kt_problem *p, const kt_config *config) {
    int64_t group = p->n / p->kv_heads, rows = config->value[0] / group;
    return rows < 1 ? 1 : rows;
}

static size_t whole_lines(size_t n) {
    return (n + 15) / 16 * 16; /* keeps every array 64-byte aligned */
}

/* Elements of a block of widened rows, whole lines of them. */
static size_t wide_items(size_t padded) {
    return (KT_ATTN_BLOCK * padded + 31) / 32 * 32;
}

size_t kt_attn_walk_bytes(const kt_problem *p, const kt_config *config,
                          const kt_attn_inner *inner) {
    size_t padded = (size_t)((p->k + inner->lanes - 1) / inner->lanes * inner->lanes);
    size_t queries = (size_t)(tile_rows_of(p, config) * (p->n / p->kv_heads));
    size_t row = whole_lines(queries * padded);
    return sizeof(float) *
               (2 * row + whole_lines(queries * KT_ATTN_LDS) + 2 * whole_lines(2 * queries) +
                whole_lines(queries) + whole_lines(padded)) +
           (inner->keys_bytes ? inner->keys_bytes(p->k) : 0) +
           (kt_attn_has_scales(p->weights) ? 2 * wide_items(padded) * sizeof(uint16_t) : 0);
}

static tile tile_of(const kt_attn_call *c, const kt_attn_inner *inner) {
    tile t;
    float *at = c->scratch;
    size_t queries;

    t.inner = inner;
    t.group = c->problem->n / c->problem->kv_heads;
    t.padded = (c->problem->k + inner->lanes - 1) / inner->lanes * inner->lanes;
    t.queries = tile_rows_of(c->problem, c->config) * t.group;
    queries = (size_t)t.queries;
    t.q = at;
    t.o = t.q + whole_lines(queries * (size_t)t.padded);
    t.s = t.o + whole_lines(queries * (size_t)t.padded);
    t.chunk = t.s + whole_lines(queries * KT_ATTN_LDS);
    t.total = t.chunk + whole_lines(2 * queries);
    t.keep = t.total + whole_lines(2 * queries);
    t.natural = t.keep + whole_lines(queries);
    t.keys = t.natural + whole_lines((size_t)t.padded);
    t.wide = (uint16_t *)t.keys;
    if (inner->keys_bytes) t.wide += inner->keys_bytes(c->problem->k) / sizeof *t.wide;
    return t;
}

/* A block of keys and values as the variant reads them. */
typedef struct rows_of_block {
    const uint16_t *k, *v; /* v: NULL until weighing needs them, then widened to room */
    uint16_t *room;
    int64_t n_keys;
    int64_t ld;
    kt_attn_next next;                /* the block after */
    const float *k_scale, *v_scale;   /* NULL = 1 */
    const uint8_t *k_codes, *v_codes; /* 8-bit rows, c->ldkv apart */
    bool has_codes;                   /* values are weighed as codes */
} rows_of_block;

/* A block that all queries of the tile see whole has done with its keys when it widens its values: in their place,
 * L1 being as small as it is. */
static rows_of_block rows_at(const kt_attn_call *c, const tile *t, int64_t key, int64_t n_keys,
                             int64_t n_queries, bool is_whole) {
    const kt_attn_inner *inner = t->inner;
    const kt_weight_format cache = c->problem->weights;
    const uint16_t *k = c->k, *v = c->v;
    const uint8_t *k_codes = c->k, *v_codes = c->v;
    uint16_t *used = inner->load_codes ? t->keys : t->wide;

    if (!kt_attn_has_scales(cache))
        return (rows_of_block){
            .k = k + key * c->ldkv,
            .v = v + key * c->ldkv,
            .ld = c->ldkv,
            .next = {.keys = (const uint8_t *)(k + (key + KT_ATTN_BLOCK) * c->ldkv),
                     .ld = 2 * c->ldkv,
                     .bytes = 2 * c->problem->k,
                     .ahead = KT_ATTN_AHEAD}};
    rows_of_block b = {.k = t->wide,
                       .room = is_whole ? used : t->wide + wide_items((size_t)t->padded),
                       .n_keys = n_keys,
                       .ld = t->padded,
                       .k_scale = c->k_scale + key,
                       .v_scale = c->v_scale + key,
                       .k_codes = k_codes + key * c->ldkv,
                       .v_codes = v_codes + key * c->ldkv,
                       .has_codes = inner->weigh_codes && n_queries <= KT_ATTN_FEW};
    if (inner->load_codes)
        b.next = (kt_attn_next){.keys = b.k_codes + KT_ATTN_BLOCK * c->ldkv,
                                .values = b.v_codes + KT_ATTN_BLOCK * c->ldkv,
                                .ld = c->ldkv,
                                .bytes = c->problem->k};
    else
        inner->widen(cache, b.k_codes, c->ldkv, c->problem->k, n_keys, t->wide, t->padded);
    return b;
}

/* Queries [first, first + n) of the tile meet the first n_keys keys of the block. */
static void block(const kt_attn_call *c, const tile *t, int64_t first, int64_t n, rows_of_block *b,
                  int64_t n_keys) {
    const kt_attn_inner *inner = t->inner;
    const float *q = t->q + first * t->padded;
    float *s = t->s + first * KT_ATTN_LDS;
    int64_t d = c->problem->k;

    if (inner->keys_bytes)
        inner->scores_loaded(q, t->padded, n, t->keys, d, n_keys, &b->next, s);
    else
        inner->scores(q, t->padded, n, b->k, b->ld, d, n_keys, b->next.ahead, s);
    for (int64_t i = 0; i < n; i++)
        t->keep[first + i] = inner->soften(s + i * KT_ATTN_LDS, n_keys, b->k_scale, b->v_scale,
                                           t->chunk + 2 * (first + i));
    if (b->has_codes) {
        inner->weigh_codes(c->problem->weights, t->o + first * t->padded, t->padded,
                           t->keep + first, n, s, b->v_codes, c->ldkv, d, n_keys);
        return;
    }
    if (!b->v) {
        inner->widen(c->problem->weights, b->v_codes, c->ldkv, d, b->n_keys, b->room, t->padded);
        b->v = b->room;
    }
    inner->weigh(t->o + first * t->padded, t->padded, t->keep + first, n, s, b->v, b->ld, d, n_keys,
                 &b->next);
}

/* One chunk for rows [row, row + rows) of the call; keys end at `end` or at the row's position. */
static void chunk(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows, int64_t begin,
                  int64_t end) {
    memset(t->o, 0, (size_t)(rows * t->group * t->padded) * sizeof *t->o);
    for (int64_t i = 0; i < rows * t->group; i++) {
        t->chunk[2 * i] = -INFINITY;
        t->chunk[2 * i + 1] = 0.0f;
    }
    for (int64_t key = begin; key < end; key += KT_ATTN_BLOCK) {
        int64_t stop = key + KT_ATTN_BLOCK < end ? key + KT_ATTN_BLOCK : end;
        bool is_whole = true;
        for (int64_t r = 0; r < rows; r++)
            if (c->position[row + r] < stop - 1) is_whole = false;
        rows_of_block b = rows_at(c, t, key, stop - key, rows * t->group, is_whole);
        if (b.k_codes && t->inner->load_codes)
            t->inner->load_codes(c->problem->weights, b.k_codes, c->ldkv, c->problem->k, stop - key,
                                 t->keys);
        else if (t->inner->keys_bytes)
            t->inner->load_keys(b.k, b.ld, c->problem->k, stop - key, t->keys);
        if (is_whole) {
            block(c, t, 0, rows * t->group, &b, stop - key);
            continue;
        }
        for (int64_t r = 0; r < rows; r++) {
            int64_t limit = (int64_t)c->position[row + r] + 1;
            if (limit > stop) limit = stop;
            if (limit > key) block(c, t, r * t->group, t->group, &b, limit - key);
        }
    }
}

/* The chunk that began at `begin` is complete: hand out its sums or fold them into out. */
static void chunk_done(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows,
                       int64_t begin) {
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        float *out = c->out + r * c->ldo + head * c->problem->k;
        float *stats = c->stats ? c->stats + r * c->ldstats + 2 * head : t->total + 2 * i;

        if (c->position[r] < begin) continue;
        if (c->stats || begin == 0) {
            t->inner->store_sums(t->o + i * t->padded, c->problem->k, out);
            memcpy(stats, t->chunk + 2 * i, 2 * sizeof *stats);
        } else {
            t->inner->store_sums(t->o + i * t->padded, c->problem->k, t->natural);
            kt_attn_fold(out, stats, t->natural, t->chunk + 2 * i, c->problem->k);
        }
    }
}

static void rows_of_tile(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows) {
    int64_t last = 0, end;

    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        t->inner->load_query(c->q + r * c->ldq + head * c->problem->k, c->problem->k, c->scale,
                             t->q + i * t->padded);
        if (c->position[r] > last) last = c->position[r];
    }
    end = last + 1;
    if (c->key_end > 0 && c->key_end < end) end = c->key_end;
    for (int64_t begin = c->key_begin; begin < end; begin += KT_ATTN_CHUNK) {
        int64_t stop = begin + KT_ATTN_CHUNK < end ? begin + KT_ATTN_CHUNK : end;
        chunk(c, t, row, rows, begin, stop);
        chunk_done(c, t, row, rows, begin);
    }
    if (c->stats) return;
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        kt_attn_finish(c->out + r * c->ldo + head * c->problem->k, t->total + 2 * i, c->problem->k);
    }
}

void kt_attn_walk(const kt_attn_call *c, const kt_attn_inner *inner) {
    tile t = tile_of(c, inner);
    int64_t tile_rows = t.queries / t.group;
    for (int64_t row = c->row_begin; row < c->row_end; row += tile_rows)
        rows_of_tile(c, &t, row, c->row_end - row < tile_rows ? c->row_end - row : tile_rows);
}
