/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_walk.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

static const int32_t tile_queries[] = {16, 32, 64};
const kt_param kt_attn_params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 32}};

/* Lines that are asked for bit by bit: rows of `bytes` bytes, ld apart, from (row, x) on. */
typedef struct asking {
    const char *at;
    int64_t ld, bytes, rows;
    int64_t row, x;
    int64_t share; /* lines at a time */
} asking;

/* Scratch of one thread: arrays over the tile's queries. */
typedef struct tile {
    float *q, *o;     /* [queries, ldq], [queries, ldo] */
    float *s;         /* [queries, KT_ATTN_LDS] */
    float *chunk;     /* [queries, 2] largest score and sum of the chunk */
    float *total;     /* [queries, 2] of the chunks folded so far */
    float *keep;      /* [queries] */
    float *natural;   /* [ldo] one head in its own order */
    void *keys;       /* a rearranged block */
    uint16_t *wide;   /* [2][wide_items]: a block of 8-bit keys and values as BF16 */
    int64_t ldq, ldo; /* sizes of keys and of values rounded up to lanes */
    int64_t d, dv;    /* those sizes */
    int64_t queries;  /* capacity */
    int64_t group;
    int64_t n_keys; /* that some row of the tile sees, and all before them */
    asking *next_q; /* queries of the tile after this one */
    asking *sums;   /* where this one's go */
    const kt_attn_inner *inner;
} tile;

static int64_t tile_rows_of(const kt_problem *p, const kt_config *config) {
    int64_t group = p->n / p->kv_heads, rows = config->value[0] / group;
    return rows < 1 ? 1 : rows;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t padded(int64_t d, const kt_attn_inner *inner) {
    return (d + inner->lanes - 1) / inner->lanes * inner->lanes;
}

static size_t whole_lines(size_t n) {
    return (n + 15) / 16 * 16; /* keeps every array 64-byte aligned */
}

/* Elements of a block of widened rows, whole lines of them. */
static size_t wide_items(int64_t width) {
    return (KT_ATTN_BLOCK * (size_t)width + 31) / 32 * 32;
}

size_t kt_attn_walk_bytes(const kt_problem *p, const kt_config *config,
                          const kt_attn_inner *inner) {
    int64_t dv = kt_attn_value_size(p), ldq = padded(p->k, inner), ldo = padded(dv, inner);
    size_t queries = (size_t)(tile_rows_of(p, config) * (p->n / p->kv_heads));
    return sizeof(float) *
               (whole_lines(queries * (size_t)ldq) + whole_lines(queries * (size_t)ldo) +
                whole_lines(queries * KT_ATTN_LDS) + 2 * whole_lines(2 * queries) +
                whole_lines(queries) + whole_lines((size_t)ldo)) +
           (inner->keys_bytes ? inner->keys_bytes(larger(p->k, dv)) : 0) +
           (kt_attn_has_scales(p->weights) ? 2 * wide_items(larger(ldq, ldo)) * sizeof(uint16_t)
                                           : 0);
}

static tile tile_of(const kt_attn_call *c, const kt_attn_inner *inner) {
    tile t;
    float *at = c->scratch;
    size_t queries;

    t.inner = inner;
    t.n_keys = 0;
    t.group = c->problem->n / c->problem->kv_heads;
    t.d = c->problem->k;
    t.dv = kt_attn_value_size(c->problem);
    t.ldq = padded(t.d, inner);
    t.ldo = padded(t.dv, inner);
    t.queries = tile_rows_of(c->problem, c->config) * t.group;
    queries = (size_t)t.queries;
    t.q = at;
    t.o = t.q + whole_lines(queries * (size_t)t.ldq);
    t.s = t.o + whole_lines(queries * (size_t)t.ldo);
    t.chunk = t.s + whole_lines(queries * KT_ATTN_LDS);
    t.total = t.chunk + whole_lines(2 * queries);
    t.keep = t.total + whole_lines(2 * queries);
    t.natural = t.keep + whole_lines(queries);
    t.keys = t.natural + whole_lines((size_t)t.ldo);
    t.wide = (uint16_t *)t.keys;
    if (inner->keys_bytes) t.wide += inner->keys_bytes(larger(t.d, t.dv)) / sizeof *t.wide;
    return t;
}

/* A block of keys and values as the variant reads them. */
typedef struct rows_of_block {
    const uint16_t *k, *v; /* v: NULL until weighing needs them, then widened to room */
    int64_t ldk, ldv;
    uint16_t *room;
    int64_t n_keys;
    kt_attn_next next_k, next_v;      /* the block after */
    const float *k_scale, *v_scale;   /* NULL = 1 */
    const uint8_t *k_codes, *v_codes; /* 8-bit rows, c->ldkv and c->ldv apart */
    bool has_codes;                   /* values are weighed as codes */
} rows_of_block;

/* Does a key's row begin with its value? */
static bool is_shared(const kt_attn_call *c) {
    return c->v == c->k;
}

static int64_t ldv_of(const kt_attn_call *c) {
    return c->ldv ? c->ldv : c->ldkv;
}

/* Where a key lies: the one place that knows of pages. Elements behind the first row of the cache,
 * rows being ld apart; of a block from its first key on up to the page's end. */
static int64_t place_of(const kt_attn_call *c, int64_t key, int64_t ld, int64_t page_stride) {
    if (!c->page) return key * ld;
    return (int64_t)c->page[key / KT_ATTN_BLOCK] * page_stride + key % KT_ATTN_BLOCK * ld;
}

/* Elements from the row of `key`, at `place`, to the one KT_ATTN_AHEAD keys on; 0 = there is none.
 */
static int64_t ahead_of(const kt_attn_call *c, const tile *t, int64_t key, int64_t ld,
                        int64_t place) {
    if (key + KT_ATTN_AHEAD >= t->n_keys) return 0;
    return place_of(c, key + KT_ATTN_AHEAD, ld, c->page_stride) - place;
}

/* Rows of the block after, from `first` on, rows being ld elements of `item` bytes apart. */
static kt_attn_next block_after(const kt_attn_call *c, const tile *t, const void *first,
                                int64_t key, int64_t ld, int64_t item, int64_t bytes) {
    const int64_t next = key + KT_ATTN_BLOCK;

    if (next >= t->n_keys) return (kt_attn_next){0};
    return (kt_attn_next){.rows =
                              (const uint8_t *)first + item * place_of(c, next, ld, c->page_stride),
                          .ld = item * ld,
                          .bytes = bytes};
}

static rows_of_block bf16_rows(const kt_attn_call *c, const tile *t, int64_t key) {
    const int64_t ldv = ldv_of(c), k = place_of(c, key, c->ldkv, c->page_stride),
                  v = place_of(c, key, ldv, c->page_stride);
    rows_of_block b = {.k = (const uint16_t *)c->k + k,
                       .v = (const uint16_t *)c->v + v,
                       .ldk = c->ldkv,
                       .ldv = ldv,
                       .next_k = block_after(c, t, c->k, key, c->ldkv, 2, 2 * t->d)};

    b.next_k.ahead = ahead_of(c, t, key, c->ldkv, k);
    if (is_shared(c)) return b;
    b.next_v = block_after(c, t, c->v, key, ldv, 2, 2 * t->dv);
    b.next_v.ahead = ahead_of(c, t, key, ldv, v);
    return b;
}

/* A block that all its queries see whole has done with its keys when it widens its values: in
 * their place, L1 being as small as it is. Values that begin the keys' rows are widened with them.
 */
static rows_of_block code_rows(const kt_attn_call *c, const tile *t, int64_t key, int64_t n_keys,
                               int64_t n_queries, bool is_whole) {
    const kt_attn_inner *inner = t->inner;
    const int64_t scale = place_of(c, key, 1, c->scale_page_stride), ldv = ldv_of(c);
    uint16_t *used = inner->load_codes ? t->keys : t->wide;
    rows_of_block b = {.k = t->wide,
                       .ldk = t->ldq,
                       .ldv = t->ldo,
                       .room = is_whole ? used : t->wide + wide_items(larger(t->ldq, t->ldo)),
                       .n_keys = n_keys,
                       .k_scale = c->k_scale + scale,
                       .v_scale = c->v_scale + scale,
                       .k_codes = (const uint8_t *)c->k + place_of(c, key, c->ldkv, c->page_stride),
                       .v_codes = (const uint8_t *)c->v + place_of(c, key, ldv, c->page_stride),
                       .has_codes = inner->weigh_codes && n_queries <= KT_ATTN_FEW};

    if (inner->load_codes) {
        b.next_k = block_after(c, t, c->k, key, c->ldkv, 1, t->d);
        if (!is_shared(c)) b.next_v = block_after(c, t, c->v, key, ldv, 1, t->dv);
        return b;
    }
    inner->widen(c->problem->weights, b.k_codes, c->ldkv, t->d, n_keys, t->wide, t->ldq);
    if (is_shared(c)) {
        b.v = b.k;
        b.ldv = b.ldk;
    }
    return b;
}

/* n_keys keys from `key` on, rearranged too where the variant wants that, for n_queries queries
 * that do or do not all see them all. */
static rows_of_block load(const kt_attn_call *c, const tile *t, int64_t key, int64_t n_keys,
                          int64_t n_queries, bool is_whole) {
    const kt_attn_inner *inner = t->inner;
    const kt_weight_format cache = c->problem->weights;
    rows_of_block b = kt_attn_has_scales(cache) ? code_rows(c, t, key, n_keys, n_queries, is_whole)
                                                : bf16_rows(c, t, key);

    if (b.k_codes && inner->load_codes)
        inner->load_codes(cache, b.k_codes, c->ldkv, t->d, n_keys, t->keys);
    else if (inner->keys_bytes)
        inner->load_keys(b.k, b.ldk, t->d, n_keys, t->keys);
    return b;
}

/* Some queries of the tile, `group` to each row. The first row sees n_keys keys of the block, each
 * row after it one more, at most `most`. */
typedef struct meeting {
    int64_t first, n, group; /* queries */
    int64_t n_keys, most;
} meeting;

static int64_t keys_of(const meeting *m, int64_t query) {
    const int64_t n = m->n_keys + query / m->group;
    return n < m->most ? n : m->most;
}

static void soften(const tile *t, const rows_of_block *b, const meeting *m) {
    const kt_attn_inner *inner = t->inner;
    float *s = t->s + m->first * KT_ATTN_LDS, *stats = t->chunk + 2 * m->first;
    float *keep = t->keep + m->first;

    if (inner->soften_rows) {
        inner->soften_rows(s, m->n, m->n_keys, m->group, m->most, b->k_scale, b->v_scale, stats,
                           keep);
        return;
    }
    for (int64_t i = 0; i < m->n; i++)
        keep[i] = inner->soften(s + i * KT_ATTN_LDS, keys_of(m, i), b->k_scale, b->v_scale,
                                stats + 2 * i);
}

/* Rows that see different numbers of keys: those that all see for all at once, the others row by
 * row. A sum goes on where it was. */
static void weigh_ragged(const tile *t, const rows_of_block *b, const meeting *m) {
    static const kt_attn_next nothing = {0};
    const kt_attn_inner *inner = t->inner;
    const int64_t common = m->n_keys - m->n_keys % inner->weigh_step;
    float *s = t->s + m->first * KT_ATTN_LDS, *o = t->o + m->first * t->ldo;
    float *keep = t->keep + m->first;

    inner->weigh(o, t->ldo, keep, m->n, s, b->v, b->ldv, t->dv, common, &b->next_v);
    for (int64_t i = 0; i < m->n; i++) keep[i] = 1.0f;
    for (int64_t i = 0; i < m->n; i += m->group)
        inner->weigh(o + i * t->ldo, t->ldo, keep, m->group,
                     s + i * KT_ATTN_LDS + common / inner->weigh_step, b->v + common * b->ldv,
                     b->ldv, t->dv, keys_of(m, i) - common, &nothing);
}

static void meet(const kt_attn_call *c, const tile *t, rows_of_block *b, const meeting *m) {
    const kt_attn_inner *inner = t->inner;
    const int64_t n_keys = keys_of(m, m->n - 1);
    const float *q = t->q + m->first * t->ldq;
    float *s = t->s + m->first * KT_ATTN_LDS, *o = t->o + m->first * t->ldo;
    const float *keep = t->keep + m->first;

    if (inner->keys_bytes)
        inner->scores_loaded(q, t->ldq, m->n, t->keys, t->d, n_keys, &b->next_k, s);
    else
        inner->scores(q, t->ldq, m->n, b->k, b->ldk, t->d, n_keys, b->next_k.ahead, s);
    soften(t, b, m);
    if (b->has_codes) {
        inner->weigh_codes(c->problem->weights, o, t->ldo, keep, m->n, s, b->v_codes, ldv_of(c),
                           t->dv, n_keys);
        return;
    }
    if (!b->v) {
        inner->widen(c->problem->weights, b->v_codes, ldv_of(c), t->dv, b->n_keys, b->room, b->ldv);
        b->v = b->room;
    }
    if (n_keys > m->n_keys)
        weigh_ragged(t, b, m);
    else
        inner->weigh(o, t->ldo, keep, m->n, s, b->v, b->ldv, t->dv, n_keys, &b->next_v);
}

/* Queries [first, first + n) of the tile meet the first n_keys keys of the block. */
static void block(const kt_attn_call *c, const tile *t, int64_t first, int64_t n, rows_of_block *b,
                  int64_t n_keys) {
    const meeting m = {.first = first, .n = n, .group = n, .n_keys = n_keys, .most = n_keys};

    meet(c, t, b, &m);
}

/* How many rows from r on can meet the block together: few queries to a row, each row one behind
 * the one before, the first one seeing a key of the block. */
static int64_t rows_together(const kt_attn_call *c, const tile *t, int64_t row, int64_t r,
                             int64_t rows, const rows_of_block *b, int64_t key) {
    const int32_t *position = c->position + row;
    int64_t n = 1;

    if (!t->inner->weigh_step || b->has_codes) return 1;
    while (r + n < rows && (n + 1) * t->group <= KT_ATTN_FEW &&
           position[r + n] == position[r] + n &&
           kt_attn_first_key(c->problem, position[r + n]) <= key)
        n++;
    return n;
}

/* A block of which some row of the tile does not see all: row by row, each with the keys that it
 * sees. Those whose window begins inside the block have it loaded from their first key on, the
 * others share one load. */
static void block_by_rows(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows,
                          int64_t key, int64_t stop) {
    rows_of_block b = {0};
    bool is_loaded = false;

    for (int64_t r = 0; r < rows; r++) {
        int64_t first = kt_attn_first_key(c->problem, c->position[row + r]);
        int64_t limit = (int64_t)c->position[row + r] + 1;
        if (limit > stop) limit = stop;
        if (first <= key || first >= limit) continue;
        b = load(c, t, first, limit - first, t->group, true);
        block(c, t, r * t->group, t->group, &b, limit - first);
    }
    for (int64_t r = 0, n; r < rows; r += n) {
        int64_t first = kt_attn_first_key(c->problem, c->position[row + r]);
        int64_t limit = (int64_t)c->position[row + r] + 1;
        n = 1;
        if (limit > stop) limit = stop;
        if (first > key || limit <= key) continue;
        if (!is_loaded) b = load(c, t, key, stop - key, rows * t->group, false);
        is_loaded = true;
        n = rows_together(c, t, row, r, rows, &b, key);
        meet(c, t, &b,
             &(meeting){.first = r * t->group,
                        .n = n * t->group,
                        .group = t->group,
                        .n_keys = limit - key,
                        .most = stop - key});
    }
}

/* Of many rows neither queries nor sums are in a cache: waiting for them when a tile begins and
 * ends took a sixth of the time of 512 rows of 96 heads. So the blocks between share out the
 * asking. */
static asking ask_rows(const float *first, int64_t ld, int64_t floats, int64_t rows,
                       int64_t blocks) {
    const int64_t lines = (floats * (int64_t)sizeof *first + 63) / 64 * rows;

    return (asking){.at = (const char *)first,
                    .ld = ld * (int64_t)sizeof *first,
                    .bytes = floats * (int64_t)sizeof *first,
                    .rows = rows,
                    .share = (lines + blocks - 1) / blocks};
}

static void ask_share(asking *a) {
    for (int64_t i = 0; a->row < a->rows && i < a->share; i++) {
        __builtin_prefetch(a->at + a->row * a->ld + a->x, 0, 2);
        a->x += 64;
        if (a->x < a->bytes) continue;
        a->x = 0;
        a->row++;
    }
}

/* One chunk for rows [row, row + rows) of the call: the blocks of keys [begin, end), as far as
 * rows see them. */
static void chunk(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows, int64_t begin,
                  int64_t end) {
    memset(t->o, 0, (size_t)(rows * t->group * t->ldo) * sizeof *t->o);
    for (int64_t i = 0; i < rows * t->group; i++) {
        t->chunk[2 * i] = -INFINITY;
        t->chunk[2 * i + 1] = 0.0f;
    }
    for (int64_t key = begin; key < end; key += KT_ATTN_BLOCK) {
        int64_t stop = key + KT_ATTN_BLOCK < end ? key + KT_ATTN_BLOCK : end;
        bool is_whole = true;
        ask_share(t->next_q);
        ask_share(t->sums);
        for (int64_t r = row; r < row + rows; r++)
            if (c->position[r] < stop - 1 || kt_attn_first_key(c->problem, c->position[r]) > key)
                is_whole = false;
        if (is_whole) {
            rows_of_block b = load(c, t, key, stop - key, rows * t->group, true);
            block(c, t, 0, rows * t->group, &b, stop - key);
        } else {
            block_by_rows(c, t, row, rows, key, stop);
        }
    }
}

/* The chunk that began at `begin` is complete: hand out its sums or fold them into out. */
static void chunk_done(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows,
                       int64_t begin) {
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        int64_t first = kt_attn_first_key(c->problem, c->position[r]);
        float *out = c->out + r * c->ldo + head * t->dv;
        float *stats = c->stats ? c->stats + r * c->ldstats + 2 * head : t->total + 2 * i;

        if (c->position[r] < begin || first >= begin + KT_ATTN_CHUNK) continue;
        if (c->stats || first >= begin) {
            t->inner->store_sums(t->o + i * t->ldo, t->dv, out);
            memcpy(stats, t->chunk + 2 * i, 2 * sizeof *stats);
        } else {
            t->inner->store_sums(t->o + i * t->ldo, t->dv, t->natural);
            kt_attn_fold(out, stats, t->natural, t->chunk + 2 * i, t->dv);
        }
    }
}

/* Nobody asked for the first block before: with one row, which meets it for some 2 us, waiting for
 * one line after the other takes four times as long. */
static void ask_first(const kt_attn_call *c, const tile *t, int64_t key, int64_t end) {
    const int64_t item = (int64_t)kt_attn_item_bytes(c->problem->weights), ldv = ldv_of(c);
    const int64_t n = end - key < KT_ATTN_BLOCK ? end - key : KT_ATTN_BLOCK;
    const char *k = (const char *)c->k + item * place_of(c, key, c->ldkv, c->page_stride);
    const char *v = (const char *)c->v + item * place_of(c, key, ldv, c->page_stride);

    for (int64_t i = 0; i < n; i++)
        for (int64_t x = 0; x < item * t->d; x += 64)
            __builtin_prefetch(k + i * item * c->ldkv + x, 0, 2);
    for (int64_t i = 0; i < n && !is_shared(c); i++)
        for (int64_t x = 0; x < item * t->dv; x += 64)
            __builtin_prefetch(v + i * item * ldv + x, 0, 2);
}

/* `blocks` of keys to come. A single row has no time for it. */
static void plan_asking(const kt_attn_call *c, const tile *t, int64_t row, int64_t rows,
                        int64_t blocks, asking *next_q, asking *sums) {
    const int64_t head = c->kv_head * t->group, next = row + rows;
    const int64_t left = c->row_end - next, most = t->queries / t->group;

    *next_q = *sums = (asking){0};
    if (rows == 1 || blocks < 1) return;
    if (left > 0)
        *next_q = ask_rows(c->q + next * c->ldq + head * t->d, c->ldq, t->group * t->d,
                           left < most ? left : most, blocks);
    *sums = ask_rows(c->out + row * c->ldo + head * t->dv, c->ldo, t->group * t->dv, rows, blocks);
}

static void rows_of_tile(const kt_attn_call *c, tile *t, int64_t row, int64_t rows) {
    int64_t last = 0, first = INT64_MAX, end;
    asking next_q, sums;

    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        int64_t low = kt_attn_first_key(c->problem, c->position[r]);
        t->inner->load_query(c->q + r * c->ldq + head * t->d, t->d, c->scale, t->q + i * t->ldq);
        if (c->position[r] > last) last = c->position[r];
        if (low < first) first = low;
    }
    t->n_keys = end = last + 1;
    if (c->key_end > 0 && c->key_end < end) end = c->key_end;
    if (rows == 1)
        ask_first(c, t, larger(c->key_begin, first / KT_ATTN_BLOCK * KT_ATTN_BLOCK), end);
    plan_asking(c, t, row, rows, (end - larger(c->key_begin, first)) / KT_ATTN_BLOCK + 1, &next_q,
                &sums);
    t->next_q = &next_q;
    t->sums = &sums;
    for (int64_t begin = larger(c->key_begin, first / KT_ATTN_CHUNK * KT_ATTN_CHUNK); begin < end;
         begin += KT_ATTN_CHUNK) {
        int64_t stop = begin + KT_ATTN_CHUNK < end ? begin + KT_ATTN_CHUNK : end;
        chunk(c, t, row, rows, larger(begin, first / KT_ATTN_BLOCK * KT_ATTN_BLOCK), stop);
        chunk_done(c, t, row, rows, begin);
    }
    t->next_q = t->sums = NULL;
    if (c->stats) return;
    for (int64_t i = 0; i < rows * t->group; i++) {
        int64_t r = row + i / t->group, head = c->kv_head * t->group + i % t->group;
        kt_attn_finish(c->out + r * c->ldo + head * t->dv, t->total + 2 * i, t->dv,
                       c->sink ? c->sink + head : NULL);
    }
}

void kt_attn_walk(const kt_attn_call *c, const kt_attn_inner *inner) {
    tile t = tile_of(c, inner);
    int64_t tile_rows = t.queries / t.group;
    for (int64_t row = c->row_begin; row < c->row_end; row += tile_rows)
        rows_of_tile(c, &t, row, c->row_end - row < tile_rows ? c->row_end - row : tile_rows);
}
