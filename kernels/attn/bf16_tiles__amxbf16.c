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

/* A block's scratch: turned keys, interleaved values, two sets of tiles of sums. */
static size_t turned_bytes(int64_t d) {
    return (size_t)((d + 31) / 32 * 16) * TURNED_ROW;
}

static size_t keys_bytes(int64_t d) {
    return turned_bytes(d) + KEYS * COLUMNS * 2 + 2 * AT_ONCE * TILE;
}

static void load_keys(const kt_attn_rows *k, void *keys) {
    turn_keys(k, keys, _mm512_setzero_si512(), 2);
}

static uint8_t *values_of(const kt_attn_part *t) {
    const int64_t d = t->k.d > t->v.d ? t->k.d : t->v.d;
    return (uint8_t *)(uintptr_t)t->keys + turned_bytes(d);
}

static float *sums_of(const kt_attn_part *t) {
    return (float *)(void *)(values_of(t) + KEYS * COLUMNS * 2);
}

/* --- the block to come --- */

static kt_attn_asking asking_for(const kt_attn_next *next) {
    kt_attn_asking a = {0};

    if (!next->rows) return a;
    a.of[0] = (kt_attn_lines){
        .at = (const char *)next->rows, .ld = next->ld, .bytes = next->bytes, .rows = KEYS};
    a.left = KEYS * ((next->bytes + 63) / 64);
    return a;
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

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t steps = (t->k.d + 31) / 32, ldq = 4 * t->ldq;
    const int64_t pairs = t->n_keys > 32 ? 2 : 1; /* of 16 keys */
    float *const spare = sums_of(t);
    kt_attn_asking next = asking_for(&t->next_k);
    const int64_t turns = (t->n + 31) / 32 * pairs * steps, each = (next.left + turns - 1) / turns;

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
                kt_attn_ask(&next, each);
            }
            PUT_SCORES(0, s, first, spare);
            PUT_SCORES(1, s + 16, first, spare + 256);
            PUT_SCORES(2, s + ROWS * KT_ATTN_LDS, second, spare + 512);
            PUT_SCORES(3, s + ROWS * KT_ATTN_LDS + 16, second, spare + 768);
        }
    }
}

/* Weights: those of the second 32 keys are zeros also in rows that were softened without them. */
static void soften(const kt_attn_part *t) {
    soften_all(t);
    for (int64_t i = 0; i < t->n && t->n_keys > 32 && kt_attn_keys(t, i) <= 32; i++)
        _mm512_store_ps(t->s + i * KT_ATTN_LDS + 16, _mm512_setzero_ps());
}

/* --- values --- */

/* Columns [x, x + 32 n) of a block's values: tile (c, step) is 16 columns of 32 keys, those that
 * are not there zeros. */
static void interleave(const kt_attn_part *t, int64_t x, int64_t n, int64_t steps, uint8_t *to) {
    const int64_t ldv = t->v.ld, n_keys = t->n_keys;

    for (int64_t c = 0; c < n; c++, x += 32, to += 4 * TILE) {
        const __mmask32 m = mask32(t->v.d - x);
        const uint16_t *row = kt_attn_row(&t->v, 0) + x;
        for (int64_t j = 0; j < 32 * steps; j += 2, row += 2 * ldv) {
            __m512i a = _mm512_setzero_si512(), b = a, pair[2];
            uint8_t *at = to + j / 32 * TILE + j % 32 * 32;
            if (j < n_keys) a = _mm512_maskz_loadu_epi16(m, row);
            if (j + 1 < n_keys) b = _mm512_maskz_loadu_epi16(m, row + ldv);
            pair_values(a, b, pair);
            _mm512_store_si512(at, pair[0]);
            _mm512_store_si512(at + 2 * TILE, pair[1]);
        }
    }
}

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

static void weigh_block(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t steps = t->n_keys > 32 ? 2 : 1, d = (t->v.d + 31) / 32 * 32;
    uint8_t *const values = values_of(t);
    kt_attn_asking next = asking_for(&t->next_v);
    const int64_t turns = (t->n + ROWS - 1) / ROWS * ((d + 63) / 64);
    const int64_t each = (next.left + turns - 1) / turns;
    int which = 0;

    for (int64_t x = 0; x < d; x += COLUMNS) {
        const int64_t columns = d - x < COLUMNS ? d - x : COLUMNS;
        made before = {0};

        interleave(t, x, columns / 32, steps, values);
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
                kt_attn_ask(&next, each);
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
