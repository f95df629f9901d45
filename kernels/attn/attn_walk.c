/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_walk.h"

#include <math.h>
#include <string.h>

#include "base/cpu.h"

static const int32_t tile_queries[] = {16, 32, 64};
const kt_param kt_attn_params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 32}};

/* A call, one tile of its rows after the other. */
typedef struct walk {
    const kt_attn_call *call;
    const kt_attn_inner *inner;
    kt_attn_part all;     /* every query of the tile, with the block that was loaded last */
    int64_t queries;      /* that there is scratch for */
    int64_t d, dv;        /* sizes of keys and of values */
    int64_t row, rows;    /* of the call: those of the tile */
    int64_t n_keys;       /* that some row of the tile sees, and all before them */
    float *total;         /* [queries, 2] stats of the chunks folded so far */
    float *natural;       /* [ldo] one head in its own order */
    void *keys;           /* a rearranged block */
    uint16_t *wide;       /* [2][wide_items]: a block of 8-bit keys and values as BF16 */
    uint16_t *room;       /* where codes of this block's values are widened to */
    bool is_weighed_wide; /* they are */
    int is_near;          /* of kt_attn_rows */
    kt_attn_asking ask;   /* queries of the tile after this one, and where this one's sums go */
    int64_t ask_lines;    /* of these, with each block */
} walk;

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

static walk walk_of(const kt_attn_call *c, const kt_attn_inner *inner) {
    const kt_problem *p = c->problem;
    const int64_t group = p->n / p->kv_heads;
    walk w = {.call = c,
              .inner = inner,
              .queries = tile_rows_of(p, c->config) * group,
              .d = p->k,
              .dv = kt_attn_value_size(p),
              .is_near = kt_cpu_fetches_near()};
    kt_attn_part t = {.group = group, .ldq = padded(w.d, inner), .ldo = padded(w.dv, inner)};
    const size_t queries = (size_t)w.queries;
    float *q = c->scratch;

    t.q = q;
    t.o = q + whole_lines(queries * (size_t)t.ldq);
    t.s = t.o + whole_lines(queries * (size_t)t.ldo);
    t.stats = t.s + whole_lines(queries * KT_ATTN_LDS);
    w.total = t.stats + whole_lines(2 * queries);
    t.keep = w.total + whole_lines(2 * queries);
    w.natural = t.keep + whole_lines(queries);
    w.keys = w.natural + whole_lines((size_t)t.ldo);
    w.wide = (uint16_t *)w.keys;
    if (inner->keys_bytes) w.wide += inner->keys_bytes(larger(w.d, w.dv)) / sizeof *w.wide;
    t.keys = w.keys;
    t.k.d = w.d;
    t.v.d = w.dv;
    w.all = t;
    return w;
}

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

/* n rows of keys or of values from `key` on, d elements each and ld apart, and the block after. */
static kt_attn_rows rows_from(const walk *w, const void *first, int64_t key, int64_t n, int64_t ld,
                              int64_t d, kt_attn_next *next) {
    const kt_attn_call *c = w->call;
    const int64_t item = (int64_t)kt_attn_item_bytes(c->problem->weights);
    const int64_t place = place_of(c, key, ld, c->page_stride);
    const uint8_t *rows = first;
    kt_attn_rows r = {.cache = c->problem->weights, .at = rows + item * place};

    r.is_near = w->is_near;
    r.ld = ld;
    r.d = d;
    r.n = n;
    if (key + KT_ATTN_AHEAD < w->n_keys)
        r.ahead = place_of(c, key + KT_ATTN_AHEAD, ld, c->page_stride) - place;
    *next = (kt_attn_next){0};
    if (key + KT_ATTN_BLOCK >= w->n_keys) return r;
    next->rows = rows + item * place_of(c, key + KT_ATTN_BLOCK, ld, c->page_stride);
    next->ld = item * ld;
    next->bytes = item * d;
    next->is_near = w->is_near;
    return r;
}

static kt_attn_rows widened(const walk *w, const kt_attn_rows *codes, uint16_t *out, int64_t ldo) {
    w->inner->widen(codes, out, ldo);
    return (kt_attn_rows){.cache = KT_W_BF16,
                          .is_near = w->is_near,
                          .at = (const uint8_t *)out,
                          .ld = ldo,
                          .d = codes->d,
                          .n = codes->n};
}

/* A block that all its queries see whole has done with its keys when it widens its values: in
 * their place, L1 being as small as it is. Values that begin the keys' rows are widened with them.
 */
static void load_codes(walk *w, int64_t key, int64_t n_queries, bool is_whole) {
    const kt_attn_call *c = w->call;
    const kt_attn_inner *inner = w->inner;
    const int64_t scale = place_of(c, key, 1, c->scale_page_stride);
    kt_attn_part *t = &w->all;
    uint16_t *used = inner->loads_codes ? w->keys : w->wide;

    t->k_scale = c->k_scale + scale;
    t->v_scale = c->v_scale + scale;
    w->room = is_whole ? used : w->wide + wide_items(larger(t->ldq, t->ldo));
    w->is_weighed_wide = !inner->weighs_codes || n_queries > KT_ATTN_FEW;
    if (inner->loads_codes) return;
    t->for_scores = t->for_values = (kt_attn_next){0};
    t->k = widened(w, &t->k, w->wide, t->ldq);
    if (!is_shared(c)) return;
    t->v = t->k;
    t->v.d = w->dv;
}

/* Where what is asked for goes into L1, it is read before other lines take its place. */
static void ask_in_turn(kt_attn_part *t) {
    const int64_t item = (int64_t)sizeof(uint16_t);

    t->for_values = t->for_scores;
    t->for_scores =
        (kt_attn_next){.rows = t->v.at, .ld = item * t->v.ld, .bytes = item * t->v.d, .is_near = 1};
}

/* Keys and values of BF16, as many bytes of either, of which L1 (48 KB) holds two blocks of 64 rows
 * beside the one that was turned round. */
static bool asks_in_turn(const walk *w) {
    return w->is_near && w->d == w->dv && w->d <= 128 && !is_shared(w->call) &&
           w->call->problem->weights == KT_W_BF16;
}

/* n_keys keys from `key` on, rearranged too where the variant wants that, for n_queries queries
 * that do or do not all see them all. */
static void load(walk *w, int64_t key, int64_t n_keys, int64_t n_queries, bool is_whole) {
    const kt_attn_call *c = w->call;
    kt_attn_part *t = &w->all;

    t->k = rows_from(w, c->k, key, n_keys, c->ldkv, w->d, &t->for_scores);
    t->v = rows_from(w, c->v, key, n_keys, ldv_of(c), w->dv, &t->for_values);
    if (is_shared(c)) {
        t->v.ahead = 0;
        t->for_values = (kt_attn_next){0};
    }
    if (asks_in_turn(w)) ask_in_turn(t);
    if (kt_attn_has_scales(c->problem->weights)) load_codes(w, key, n_queries, is_whole);
    t->n = n_queries;
    if (w->inner->load_keys) w->inner->load_keys(t, w->keys);
}

/* n queries of the tile from `first` on, `group` to a row that sees one key more than the row
 * before: of the block that is loaded query 0 sees `least` keys, none more than `most`. */
static kt_attn_part part_of(const walk *w, int64_t first, int64_t n, int64_t group, int64_t least,
                            int64_t most) {
    kt_attn_part t = w->all;

    t.n = n;
    t.group = group;
    t.least = least;
    t.n_keys = most;
    t.n_keys = kt_attn_keys(&t, n - 1);
    t.q += first * t.ldq;
    t.s += first * KT_ATTN_LDS;
    t.o += first * t.ldo;
    t.stats += 2 * first;
    t.keep += first;
    return t;
}

/* Rows that see different numbers of keys: those that all see for all at once, the others row by
 * row. A sum goes on where it was. */
static void weigh_ragged(const kt_attn_inner *inner, const kt_attn_part *t) {
    const int64_t common = t->least;
    kt_attn_part part = *t;

    part.n_keys = common;
    inner->weigh(&part);
    for (int64_t i = 0; i < t->n; i++) t->keep[i] = 1.0f;
    part.n = t->group;
    part.v.at = (const uint8_t *)kt_attn_row(&t->v, common);
    part.v.ahead = 0;
    part.for_values = (kt_attn_next){0};
    for (int64_t i = 0; i < t->n; i += t->group) {
        part.n_keys = kt_attn_keys(t, i) - common;
        part.s = t->s + i * KT_ATTN_LDS + common;
        part.o = t->o + i * t->ldo;
        inner->weigh(&part);
    }
}

static void meet(walk *w, kt_attn_part t) {
    const kt_attn_inner *inner = w->inner;

    inner->scores(&t);
    if (inner->soften_all)
        inner->soften_all(&t);
    else
        for (int64_t i = 0; i < t.n; i++) t.keep[i] = inner->soften(&t, i);
    if (kt_attn_has_scales(t.v.cache) && w->is_weighed_wide)
        w->all.v = t.v = widened(w, &t.v, w->room, t.ldo);
    if (t.n_keys > t.least && !inner->weighs_ragged)
        weigh_ragged(inner, &t);
    else
        inner->weigh(&t);
}

/* How many rows from r on can meet the block together: few queries in all, each row one behind the
 * one before, the first one seeing a key of the block. */
static int64_t rows_together(const walk *w, int64_t r, int64_t key) {
    const int32_t *position = w->call->position + w->row;
    const bool has_codes = kt_attn_has_scales(w->all.v.cache) && !w->is_weighed_wide;
    const int64_t most = w->inner->ragged ? w->inner->ragged : KT_ATTN_FEW;
    int64_t n = 1;

    if (has_codes || !(w->inner->weighs_ragged || w->inner->weighs_from_any)) return 1;
    while (r + n < w->rows && (n + 1) * w->all.group <= most &&
           position[r + n] == position[r] + n &&
           kt_attn_first_key(w->call->problem, position[r + n]) <= key)
        n++;
    return n;
}

/* A block of which some row of the tile does not see all: row by row, each with the keys that it
 * sees. Those whose window begins inside the block have it loaded from their first key on, the
 * others share one load. */
static void block_by_rows(walk *w, int64_t key, int64_t stop) {
    const kt_attn_call *c = w->call;
    const int64_t row = w->row, group = w->all.group;
    bool is_loaded = false;

    for (int64_t r = 0; r < w->rows; r++) {
        int64_t first = kt_attn_first_key(c->problem, c->position[row + r]);
        int64_t limit = (int64_t)c->position[row + r] + 1;
        if (limit > stop) limit = stop;
        if (first <= key || first >= limit) continue;
        load(w, first, limit - first, group, true);
        meet(w, part_of(w, r * group, group, group, limit - first, limit - first));
    }
    for (int64_t r = 0, n; r < w->rows; r += n) {
        int64_t first = kt_attn_first_key(c->problem, c->position[row + r]);
        int64_t limit = (int64_t)c->position[row + r] + 1;
        n = 1;
        if (limit > stop) limit = stop;
        if (first > key || limit <= key) continue;
        if (!is_loaded) load(w, key, stop - key, w->rows * group, false);
        is_loaded = true;
        n = rows_together(w, r, key);
        meet(w, part_of(w, r * group, n * group, group, limit - key, stop - key));
    }
}

static void ask_line(kt_attn_lines *l, int is_near) {
    kt_fetch_line(l->at + l->row * l->ld + l->x, is_near);
    l->x += 64;
    if (l->x < l->bytes) return;
    l->x = 0;
    l->row++;
}

void kt_attn_ask(kt_attn_asking *a, int64_t lines) {
    int64_t n = lines < a->left ? lines : a->left;

    a->left -= n;
    for (int i = 0; i < 2; i++)
        for (; n > 0 && a->of[i].row < a->of[i].rows; n--) ask_line(&a->of[i], a->is_near);
}

/* One chunk: the blocks of keys [begin, end), as far as the tile's rows see them. */
static void chunk(walk *w, int64_t begin, int64_t end) {
    const kt_attn_call *c = w->call;
    const kt_attn_part *t = &w->all;
    const int64_t n = w->rows * t->group;

    memset(t->o, 0, (size_t)(n * t->ldo) * sizeof *t->o);
    for (int64_t i = 0; i < n; i++) {
        t->stats[2 * i] = -INFINITY;
        t->stats[2 * i + 1] = 0.0f;
    }
    for (int64_t key = begin; key < end; key += KT_ATTN_BLOCK) {
        int64_t stop = key + KT_ATTN_BLOCK < end ? key + KT_ATTN_BLOCK : end;
        bool is_whole = true;
        w->ask.left = w->ask_lines;
        for (int64_t r = w->row; r < w->row + w->rows; r++)
            if (c->position[r] < stop - 1 || kt_attn_first_key(c->problem, c->position[r]) > key)
                is_whole = false;
        if (is_whole) {
            load(w, key, stop - key, n, true);
            meet(w, part_of(w, 0, n, n, stop - key, stop - key));
        } else {
            block_by_rows(w, key, stop);
        }
        kt_attn_ask(&w->ask, w->ask.left);
    }
}

/* A query's sums over the row's only chunk: to `out` and finished in one go, unless the factor is
 * NaN. Of two NaN a product is the first, and only kt_attn_finish has the same first everywhere. */
static void store_finished(const walk *w, const float *o, const float *stats, const float *sink,
                           float *out) {
    const float factor = kt_attn_factor(stats, sink);

    w->inner->store_sums(o, w->dv, isnan(factor) ? 1.0f : factor, out);
    if (isnan(factor)) kt_attn_finish(out, stats, w->dv, sink);
}

/* The chunk that began at `begin` is complete: hand out its sums or fold them into out. Those of
 * the last one that a row sees are finished while they are at hand. */
static void chunk_done(const walk *w, int64_t begin, bool is_last) {
    const kt_attn_call *c = w->call;
    const kt_attn_part *t = &w->all;

    for (int64_t i = 0; i < w->rows * t->group; i++) {
        int64_t r = w->row + i / t->group, head = c->kv_head * t->group + i % t->group;
        int64_t first = kt_attn_first_key(c->problem, c->position[r]);
        const float *sink = c->sink ? c->sink + head : NULL;
        const float *o = t->o + i * t->ldo, *o_stats = t->stats + 2 * i;
        float *out = c->out + r * c->ldo + head * w->dv;
        float *stats = c->stats ? c->stats + r * c->ldstats + 2 * head : w->total + 2 * i;
        bool is_done = !c->stats && (is_last || c->position[r] < begin + KT_ATTN_CHUNK);

        if (c->position[r] < begin || first >= begin + KT_ATTN_CHUNK) continue;
        if (first >= begin && is_done) {
            store_finished(w, o, o_stats, sink, out);
        } else if (first >= begin || c->stats) {
            w->inner->store_sums(o, w->dv, 1.0f, out);
            memcpy(stats, o_stats, 2 * sizeof *stats);
        } else {
            w->inner->store_sums(o, w->dv, 1.0f, w->natural);
            kt_attn_fold(out, stats, w->natural, o_stats, w->dv);
            if (is_done) kt_attn_finish(out, stats, w->dv, sink);
        }
    }
}

static void ask_block(const walk *w, const void *first, int64_t ld, int64_t d, int64_t key,
                      int64_t end) {
    const int64_t item = (int64_t)kt_attn_item_bytes(w->call->problem->weights);
    const int64_t n = end - key < KT_ATTN_BLOCK ? end - key : KT_ATTN_BLOCK;
    const char *at = (const char *)first + item * place_of(w->call, key, ld, w->call->page_stride);

    for (int64_t i = 0; i < n; i++)
        for (int64_t x = 0; x < item * d; x += 64)
            kt_fetch_line(at + i * item * ld + x, w->is_near);
}

/* Nobody asked for the first block before: with one row, which meets it for some 2 us, waiting for
 * one line after the other takes four times as long. */
static void ask_first(const walk *w, int64_t key, int64_t end) {
    const kt_attn_call *c = w->call;

    ask_block(w, c->k, c->ldkv, w->d, key, end);
    if (!is_shared(c) && !asks_in_turn(w)) ask_block(w, c->v, ldv_of(c), w->dv, key, end);
}

static kt_attn_lines lines_of(const float *first, int64_t ld, int64_t floats, int64_t rows) {
    return (kt_attn_lines){.at = (const char *)first,
                           .ld = ld * (int64_t)sizeof *first,
                           .bytes = floats * (int64_t)sizeof *first,
                           .rows = rows};
}

static int64_t count_of(const kt_attn_lines *l) {
    return (l->bytes + 63) / 64 * l->rows;
}

/* Of many rows neither queries nor sums are in a cache: waiting for them when a tile begins and
 * ends took a sixth of the time of 512 rows of 96 heads. So the `blocks` to come share out the
 * asking. A single row has no time for it. */
static void plan_asking(walk *w, int64_t blocks) {
    const kt_attn_call *c = w->call;
    const int64_t group = w->all.group, head = c->kv_head * group, next = w->row + w->rows;
    const int64_t left = c->row_end - next, most = w->queries / group;

    w->ask = (kt_attn_asking){.is_near = w->is_near};
    w->ask_lines = w->all.ask_eight = 0;
    if (w->rows == 1 || blocks < 1) return;
    if (left > 0)
        w->ask.of[0] = lines_of(c->q + next * c->ldq + head * w->d, c->ldq, group * w->d,
                                left < most ? left : most);
    w->ask.of[1] =
        lines_of(c->out + w->row * c->ldo + head * w->dv, c->ldo, group * w->dv, w->rows);
    w->ask_lines = (count_of(&w->ask.of[0]) + count_of(&w->ask.of[1]) + blocks - 1) / blocks;
    w->all.ask_eight = (w->ask_lines * 8 + w->rows * group - 1) / (w->rows * group);
}

static void rows_of_tile(walk *w, int64_t row, int64_t rows) {
    const kt_attn_call *c = w->call;
    const int64_t group = w->all.group, ldq = w->all.ldq;
    float *q = c->scratch;
    int64_t last = 0, first = INT64_MAX, end;

    w->row = row;
    w->rows = rows;
    for (int64_t i = 0; i < rows * group; i++) {
        int64_t r = row + i / group, head = c->kv_head * group + i % group;
        int64_t low = kt_attn_first_key(c->problem, c->position[r]);
        w->inner->load_query(c->q + r * c->ldq + head * w->d, w->d, c->scale, q + i * ldq);
        if (c->position[r] > last) last = c->position[r];
        if (low < first) first = low;
    }
    w->all.n = rows * group;
    if (w->inner->turn_queries) w->inner->turn_queries(&w->all);
    w->n_keys = end = last + 1;
    if (c->key_end > 0 && c->key_end < end) end = c->key_end;
    if (rows == 1) ask_first(w, larger(c->key_begin, first / KT_ATTN_BLOCK * KT_ATTN_BLOCK), end);
    plan_asking(w, (end - larger(c->key_begin, first)) / KT_ATTN_BLOCK + 1);
    for (int64_t begin = larger(c->key_begin, first / KT_ATTN_CHUNK * KT_ATTN_CHUNK); begin < end;
         begin += KT_ATTN_CHUNK) {
        int64_t stop = begin + KT_ATTN_CHUNK < end ? begin + KT_ATTN_CHUNK : end;
        chunk(w, larger(begin, first / KT_ATTN_BLOCK * KT_ATTN_BLOCK), stop);
        chunk_done(w, begin, stop == end);
    }
}

void kt_attn_walk(const kt_attn_call *c, const kt_attn_inner *inner) {
    walk w = walk_of(c, inner);
    const int64_t most = w.queries / w.all.group;

    w.all.ask = &w.ask;
    for (int64_t row = c->row_begin; row < c->row_end; row += most)
        rows_of_tile(&w, row, c->row_end - row < most ? c->row_end - row : most);
}
