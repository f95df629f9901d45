/* Grouped-query attention over a BF16 or 8-bit cache with BF16 products and f32 sums on tiles
 * (TDPBF16PS). Queries, weights and values: pairs512.h.
 *
 * Scores: 16 or 32 queries times 32 keys at a time, all elements of a key in one go. A row of
 * pairs of keys that are turned round (turn512.h) is a row of a tile.
 *
 * Values: a block's are interleaved once for all queries of the tile, 128 columns at a time. 16
 * queries' weights are two tiles, and each 16 columns of values two more; what they make is zero
 * first and is added to the sums so far, times what keeps of them, by vectors, while the tiles of
 * the next columns are multiplied.
 *
 * Tiles always have 16 rows. Of those behind the last query nothing is kept: their products read
 * what else is in the scratch, and end in scratch of their own.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/ask512.h"
#include "kernels/attn/pairs512.h"
#include "kernels/attn/turn512.h"
#include "kernels/attn/widen512.h"
#include "kernels/simd/amx.h"

enum {
    ROWS = 16,                 /* of a tile */
    TILE = 1024,               /* its bytes */
    COLUMNS = 128,             /* of values that are met at a time */
    AT_ONCE = 4,               /* tiles of sums */
    MOST_QUERIES = 256,        /* of a tile of the walk */
    S_STRIDE = 4 * KT_ATTN_LDS /* bytes between rows of scores */
};

/* A block's scratch: turned keys, interleaved values, two sets of tiles of sums, turned queries,
 * and what is asked for. */
static size_t turned_bytes(int64_t d) {
    return (size_t)((d + 31) / 32 * 16) * TURNED_ROW;
}

static size_t keys_bytes(int64_t d) {
    return turned_bytes(d) + KEYS * COLUMNS * 2 + 2 * AT_ONCE * TILE +
           (size_t)(d + 31) / 32 * TILE + 64;
}

static uint8_t *values_of(const kt_attn_part *t) {
    const int64_t d = t->k.d > t->v.d ? t->k.d : t->v.d;
    return (uint8_t *)(uintptr_t)t->keys + turned_bytes(d);
}

static float *sums_of(const kt_attn_part *t) {
    return (float *)(void *)(values_of(t) + KEYS * COLUMNS * 2);
}

static uint8_t *queries_of(const kt_attn_part *t) {
    return (uint8_t *)sums_of(t) + 2 * AT_ONCE * TILE;
}

/* --- the block to come --- */

/* Its keys, then its values; those that were asked for lie before `at`. */
typedef struct coming {
    const char *at, *end, *then, *then_end;
    int64_t for_few;      /* how the block at hand was loaded */
    const float *queries; /* of the walk's tile, the first of those that are turned */
    int is_near;          /* of kt_attn_rows */
} coming;
_Static_assert(sizeof(coming) <= 64, "and room behind turned queries to load a tile from any on");

static coming *coming_of(const kt_attn_part *t) {
    const int64_t d = t->k.d > t->v.d ? t->k.d : t->v.d;
    return (coming *)(void *)(queries_of(t) + (d + 31) / 32 * TILE);
}

/* Rows that do not lie one behind the other are asked for at once. */
static void begin_asking(const kt_attn_part *t, coming *c) {
    const char *const k = ask_from(&t->for_scores), *const v = ask_from(&t->for_values);

    *c = (coming){.at = v,
                  .end = v,
                  .then = v,
                  .then_end = v,
                  .queries = c->queries,
                  .is_near = t->k.is_near};
    if (v) c->end = c->then_end = v + KEYS * t->for_values.bytes;
    if (!k) return;
    c->at = k;
    c->end = k + KEYS * t->for_scores.bytes;
    c->then = v;
}

KT_INLINE void ask_more(coming *c, const int lines) {
    if (c->at >= c->end) {
        c->at = c->then;
        c->end = c->then_end;
        c->then = c->then_end;
        if (c->at >= c->end) return;
    }
    ask_lines(c->at, lines, c->is_near);
    c->at += 64 * lines;
}

/* So many eights. */
static void ask_eights(coming *c, int64_t eights) {
    for (; eights > 0; eights--) ask_more(c, 8);
}

/* Eights of lines, when each of so many turns asks for as many. */
static int64_t share_of(const coming *c, int64_t turns) {
    const int64_t bytes = (c->end - c->at) + (c->then_end - c->then);
    return (bytes + 512 * turns - 1) / (512 * turns);
}

/* --- values, interleaved --- */

/* Columns [x, x + 32 n) of a block's values: tile (c, step) is 16 columns of 32 keys, those that
 * are not there zeros. Two keys ask for `lines` of what comes, a constant at each call. */
KT_INLINE void interleave(const kt_attn_part *t, int64_t x, int64_t n, int64_t steps, uint8_t *to,
                          coming *next, const int lines) {
    const int64_t ldv = t->v.ld, n_keys = t->n_keys;

    for (int64_t c = 0; c < n; c++, x += 32, to += 4 * TILE) {
        const __mmask32 m = mask32(t->v.d - x);
        const uint16_t *row = kt_attn_row(&t->v, 0) + x;
        for (int64_t j = 0; j < 32 * steps; j += 2, row += 2 * ldv) {
            __m512i a = _mm512_setzero_si512(), b = a, pair[2];
            uint8_t *at = to + j / 32 * TILE + j % 32 * 32;
            if (lines) ask_more(next, lines);
            if (j < n_keys) a = _mm512_maskz_loadu_epi16(m, row);
            if (j + 1 < n_keys) b = _mm512_maskz_loadu_epi16(m, row + ldv);
            pair_values(a, b, pair);
            _mm512_store_si512(at, pair[0]);
            _mm512_store_si512(at + 2 * TILE, pair[1]);
        }
    }
}

/* --- few queries --- */

/* Up to 16 queries are not worth turning keys for: a tile of keys as they lie is the first operand,
 * the queries turned round are the second, and scores are turned instead. The same products in the
 * same order, so the same bits.
 *
 * They meet a block in less time than the next one takes to arrive. So everything that is done asks
 * for its share of it, a few lines at a time; and since what is stored waits for the same buffers
 * until it can be loaded as a tile, or from one, values are interleaved between. */
static bool are_few(const kt_attn_part *t) {
    return t->n <= ROWS && t->k.n == KEYS && t->k.d % 32 == 0 && t->k.cache == KT_W_BF16;
}

/* Are all keys seen, of values that are met 64 columns at a time and not widened from codes, which
 * is done later? */
static bool are_few_and_whole(const kt_attn_part *t) {
    return coming_of(t)->for_few && t->least >= KEYS && t->n_keys == KEYS && t->v.d % 64 == 0 &&
           !t->k_scale;
}

/* Dword p of query i becomes dword i of row p; once for all blocks. */
static void turn_queries(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const char *const rows = (const char *)t->q;
    const int64_t ldq = 4 * t->ldq;
    uint8_t *to = queries_of(t);

    coming_of(t)->queries = t->q;
    for (int64_t x = 0; t->n <= ROWS && x < 2 * t->k.d; x += 64, to += TILE) {
        __m512i r[16];
        KT_EACH (i, 16) r[i] = _mm512_load_si512(rows + (i < t->n ? i : 0) * ldq + x);
        transpose(r);
        KT_EACH (i, 16) _mm512_store_si512(to + 64 * i, r[i]);
    }
}

static void scores_of_few(const kt_attn_part *t) {
    const int64_t steps = t->k.d / 32, ldk = 2 * t->k.ld;
    const uint8_t *k = t->k.at, *q = queries_of(t);
    float *const spare = sums_of(t);
    coming next = *coming_of(t);

    q += 4 * ((t->q - next.queries) / t->ldq); /* a tile's column for each query from here on */
    KT_AMX_ZERO(0);
    KT_AMX_ZERO(1);
    KT_AMX_ZERO(2);
    KT_AMX_ZERO(3);
    for (int64_t step = 0; step < steps; step++, k += 64, q += TILE) {
        KT_AMX_LOAD(4, q, 64);
        KT_AMX_LOAD_ONCE(6, k, ldk);
        KT_AMX_DOT_BF16(0, 6, 4);
        ask_more(&next, 8);
        KT_AMX_LOAD_ONCE(7, k + ROWS * ldk, ldk);
        KT_AMX_DOT_BF16(1, 7, 4);
        ask_more(&next, 8);
        KT_AMX_LOAD_ONCE(5, k + 2 * ROWS * ldk, ldk);
        KT_AMX_DOT_BF16(2, 5, 4);
        ask_more(&next, 8);
        KT_AMX_LOAD_ONCE(6, k + 3 * ROWS * ldk, ldk);
        KT_AMX_DOT_BF16(3, 6, 4);
        ask_more(&next, 8);
    }
    KT_AMX_STORE(0, spare, 64);
    KT_AMX_STORE(1, spare + 256, 64);
    KT_AMX_STORE(2, spare + 512, 64);
    KT_AMX_STORE(3, spare + 768, 64);
    if (are_few_and_whole(t)) interleave(t, 0, AT_ONCE / 2, 2, values_of(t), &next, 2);
    for (int64_t j = 0; j < KEYS; j += ROWS) {
        float *s = t->s + j;
        __m512i r[16];
        ask_more(&next, 12);
        KT_EACH (i, 16) r[i] = _mm512_load_si512(spare + 16 * (j + i));
        transpose(r);
        KT_EACH (i, 16) {
            if (i < t->n) _mm512_store_si512(s + i * KT_ATTN_LDS, r[i]);
        }
    }
    *coming_of(t) = next;
}

static void load_keys(const kt_attn_part *t, void *keys) {
    coming *const next = coming_of(t);

    begin_asking(t, next);
    next->for_few = are_few(t);
    if (!next->for_few) turn_keys(&t->k, keys, _mm512_setzero_si512(), 2);
}

/* --- scores --- */

/* Scores of `rows` queries with 16 keys, which tile t (a literal) holds. */
#define PUT_SCORES(t, s, rows, spare)                                                       \
    do {                                                                                    \
        if ((rows) >= ROWS) {                                                               \
            KT_AMX_STORE(t, s, S_STRIDE);                                                   \
        } else if ((rows) > 0) {                                                            \
            KT_AMX_STORE(t, spare, 64);                                                     \
            for (int64_t r_ = 0; r_ < (rows); r_++)                                         \
                _mm512_store_ps((s) + r_ * KT_ATTN_LDS, _mm512_load_ps((spare) + 16 * r_)); \
        }                                                                                   \
    } while (0)

static void scores_of_many(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t steps = (t->k.d + 31) / 32, ldq = 4 * t->ldq;
    const int64_t pairs = t->n_keys > 32 ? 2 : 1; /* of 16 keys */
    float *const spare = sums_of(t);
    coming *const next = coming_of(t);
    const int64_t each = share_of(next, 2 * ((t->n + 31) / 32 * pairs * steps)); /* half of it */

    for (int64_t i = 0; i < t->n; i += 2 * ROWS) {
        const uint8_t *q = (const uint8_t *)(t->q + i * t->ldq);
        const int64_t first = t->n - i, second = t->n - i - ROWS;
        for (int64_t p = 0; p < pairs; p++) {
            const uint8_t *k = (const uint8_t *)t->keys + 128 * p;
            float *s = t->s + i * KT_ATTN_LDS + 32 * p;

            KT_AMX_ZERO(0);
            KT_AMX_ZERO(1);
            KT_AMX_ZERO(2);
            KT_AMX_ZERO(3);
            for (int64_t step = 0; step < steps; step++, k += 16 * TURNED_ROW) {
                KT_AMX_LOAD(4, q + 64 * step, ldq);
                KT_AMX_LOAD(6, k, TURNED_ROW);
                KT_AMX_DOT_BF16(0, 4, 6);
                KT_AMX_LOAD(7, k + 64, TURNED_ROW);
                KT_AMX_DOT_BF16(1, 4, 7);
                if (second > 0) {
                    KT_AMX_LOAD(5, q + ROWS * ldq + 64 * step, ldq);
                    KT_AMX_DOT_BF16(2, 5, 6);
                    KT_AMX_DOT_BF16(3, 5, 7);
                }
                ask_eights(next, each);
            }
            PUT_SCORES(0, s, first, spare);
            PUT_SCORES(1, s + 16, first, spare + 256);
            PUT_SCORES(2, s + ROWS * KT_ATTN_LDS, second, spare + 512);
            PUT_SCORES(3, s + ROWS * KT_ATTN_LDS + 16, second, spare + 768);
        }
    }
}

static void scores(const kt_attn_part *t) {
    if (coming_of(t)->for_few)
        scores_of_few(t);
    else
        scores_of_many(t);
}

/* Weights: those of the second 32 keys are zeros also in rows that were softened without them. */
static void soften(const kt_attn_part *t) {
    coming *const next = coming_of(t);

    if (next->for_few) ask_more(next, 24);
    soften_all(t);
    if (next->for_few) ask_more(next, 24);
    for (int64_t i = 0; i < t->n && t->n_keys > 32 && kt_attn_keys(t, i) <= 32; i++)
        _mm512_store_ps(t->s + i * KT_ATTN_LDS + 16, _mm512_setzero_ps());
}

/* --- values --- */

/* Sums of AT_ONCE tiles: 16 queries whose weights are in tiles 4 and 5, the columns of v. */
#define WEIGH(c)                                           \
    do {                                                   \
        KT_AMX_ZERO(c);                                    \
        KT_AMX_LOAD(6, v + 2 * TILE * (c), 64);            \
        KT_AMX_DOT_BF16(c, 4, 6);                          \
        if (steps > 1) {                                   \
            KT_AMX_LOAD(7, v + 2 * TILE * (c) + TILE, 64); \
            KT_AMX_DOT_BF16(c, 5, 7);                      \
        }                                                  \
        KT_AMX_STORE(c, sums + 256 * (c), 64);             \
    } while (0)

/* Of queries [i, i + rows), columns [x, x + 16 n): what was made of them is in `sums`. */
typedef struct made {
    int64_t i, rows, x, n;
    const float *sums;
} made;

static void add_sums(const kt_attn_part *t, const made *m) {
    const int64_t ldo = t->ldo, n = m->n;

    for (int64_t r = 0; r < m->rows; r++) {
        float *o = t->o + (m->i + r) * ldo + m->x;
        const __m512 keep = _mm512_set1_ps(t->keep[m->i + r]);
        for (int64_t c = 0; c < n; c++)
            _mm512_store_ps(o + 16 * c,
                            _mm512_fmadd_ps(_mm512_load_ps(o + 16 * c), keep,
                                            _mm512_load_ps(m->sums + 256 * c + 16 * r)));
    }
}

/* The first 64 columns have been interleaved. */
static void weigh_few(const kt_attn_part *tile) {
    enum { steps = 2 };
    const kt_attn_part copy = *tile, *const t = &copy;
    coming next = *coming_of(t);
    made before = {0};
    int which = 0;

    for (int64_t x = 0; x < t->v.d; x += 16 * AT_ONCE, which ^= 1) {
        const int64_t then = x + 16 * AT_ONCE;
        float *sums = sums_of(t) + which * 256 * AT_ONCE;
        const uint8_t *v = values_of(t) + which * 8 * TILE;
        if (then < t->v.d)
            interleave(t, then, AT_ONCE / 2, steps, values_of(t) + (which ^ 1) * 8 * TILE, &next,
                       2);
        if (x == 0) {
            KT_AMX_LOAD(4, t->s, S_STRIDE);
            KT_AMX_LOAD(5, t->s + 16, S_STRIDE);
        }
        WEIGH(0);
        WEIGH(1);
        ask_more(&next, 12);
        WEIGH(2);
        WEIGH(3);
        ask_more(&next, 12);
        add_sums(t, &before);
        before = (made){0, t->n, x, AT_ONCE, sums};
    }
    add_sums(t, &before);
    ask_eights(&next, share_of(&next, 1));
}

static void weigh_block(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t steps = t->n_keys > 32 ? 2 : 1, d = (t->v.d + 31) / 32 * 32;
    uint8_t *const values = values_of(t);
    coming *const next = coming_of(t);
    const int64_t turns = (t->n + ROWS - 1) / ROWS * ((d + 63) / 64);
    const int64_t each = share_of(next, turns);
    int which = 0;

    for (int64_t x = 0; x < d; x += COLUMNS) {
        const int64_t columns = d - x < COLUMNS ? d - x : COLUMNS;
        made before = {0};

        interleave(t, x, columns / 32, steps, values, next, 0);
        for (int64_t i = 0; i < t->n; i += ROWS) {
            const float *s = t->s + i * KT_ATTN_LDS;
            KT_AMX_LOAD(4, s, S_STRIDE);
            if (steps > 1) KT_AMX_LOAD(5, s + 16, S_STRIDE);
            for (int64_t c = 0; c < columns; c += 16 * AT_ONCE, which ^= 1) {
                const uint8_t *v = values + 2 * TILE * (c / 16);
                float *sums = sums_of(t) + which * 256 * AT_ONCE;
                WEIGH(0);
                WEIGH(1);
                if (columns - c > 32) {
                    WEIGH(2);
                    WEIGH(3);
                }
                add_sums(t, &before);
                before = (made){i, t->n - i < ROWS ? t->n - i : ROWS, x + c,
                                columns - c > 32 ? AT_ONCE : 2, sums};
                ask_eights(next, each);
            }
            kt_attn_ask(t->ask, 2 * t->ask_eight);
        }
        add_sums(t, &before);
    }
}

/* Are the values of keys [from, n_keys) finite? Zero times others is not zero. */
static bool are_finite(const kt_attn_part *t, int64_t from) {
    const __m512i top = _mm512_set1_epi16(0x7f80);
    __mmask32 not = 0;

    for (int64_t j = from; j < t->n_keys; j++)
        for (int64_t x = 0; x < t->v.d; x += 32) {
            const __m512i v =
                _mm512_maskz_loadu_epi16(mask32(t->v.d - x), kt_attn_row(&t->v, j) + x);
            not |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(v, top), top);
        }
    return not == 0;
}

/* Rows that see different numbers of keys have weights of zero for those that they do not see.
 * Where that is no help they go one by one. */
static void weigh(const kt_attn_part *t) {
    kt_attn_part row = *t;

    if (are_few_and_whole(t)) {
        weigh_few(t);
        return;
    }
    if (t->n_keys == t->least || t->n == t->group || are_finite(t, t->least)) {
        weigh_block(t);
        return;
    }
    row.n = t->group;
    for (int64_t i = 0; i < t->n; i += t->group) {
        row.n_keys = row.least = kt_attn_keys(t, i);
        row.s = t->s + i * KT_ATTN_LDS;
        row.o = t->o + i * t->ldo;
        row.keep = t->keep + i;
        weigh_block(&row);
    }
}

/* --- the variant --- */

static const kt_attn_inner inner = {.lanes = 32,
                                    .load_query = load_query,
                                    .widen = kt_widen512,
                                    .keys_bytes = keys_bytes,
                                    .turn_queries = turn_queries,
                                    .load_keys = load_keys,
                                    .scores = scores,
                                    .soften_all = soften,
                                    .weigh = weigh,
                                    .weighs_ragged = true,
                                    .ragged = MOST_QUERIES,
                                    .store_sums = store_sums};

static void attn(const kt_attn_call *call) {
    kt_amx_config config = {.palette = 1};

    for (int t = 0; t < 8; t++) {
        config.rows[t] = ROWS;
        config.row_bytes[t] = 64;
    }
    KT_AMX_CONFIGURE(&config);
    kt_attn_walk(call, &inner);
    KT_AMX_RELEASE();
}

static size_t workspace_bytes(const kt_problem *problem, const kt_config *config) {
    return kt_attn_walk_bytes(problem, config, &inner);
}

/* Many queries share the turning of the keys. */
static const int32_t tile_queries[] = {64, 128, MOST_QUERIES};
static const kt_param params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 128}};

KT_VARIANT(bf16_tiles__amxbf16) = {
    .name = "bf16_tiles__amxbf16",
    .op = KT_OP_ATTN,
    .weights = KT_ATTN_CACHES,
    .isa = KT_ISA_AMXBF16 | KT_ISA_AVX512BF16,
    .numerics = KT_NUM_BF16_F32,
    .bits = "tiles",
    .version = 1,
    .rank = 1,
    .layout = "",
    .n_params = KT_ATTN_N_PARAMS,
    .params = params,
    .accepts = kt_attn_accepts,
    .workspace_bytes = workspace_bytes,
    .attn = attn,
};
