/* The walk over panels with opened tiles, for any op: rows into tiles, slices of panels opened one
 * ahead, and the sums of one panel put where the op wants them during the products of the next.
 *
 *     for block of rows: for panel: for half of it: for 256 inputs: for pair of tiles of rows
 *
 * One half of a panel at a time keeps the sums of all rows small. Slices are opened into two
 * buffers in turns, which stay in L1 with the slice in use; the panel after the next slice's is
 * fetched from memory meanwhile, line after line. With at most 16 rows the sums stay in tiles
 * (kt_tiles_single), and so they do with a single pair.
 *
 * Inputs behind the last, to a multiple of 256, and rows behind the last, to a tile (to a pair from
 * three tiles on), are zeros: every row meets the same products in the same order whatever the rows
 * beside it.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_TILES_WALK_H
#define KT_P64_TILES_WALK_H

#include "kernels/p64/tiles_block.h"
#include "kernels/p64/tiles_panel.h"
#include "kernels/p64/p64_ops512.h"

#define KT_TILES_INPUTS 256                  /* of a slice of a pair */
#define KT_TILES_ROW_BYTES ((size_t)1 << 20) /* activations of a block of rows: half of an L2 */
#define KT_TILES_MOST 16                     /* tiles of rows in a block */
#define KT_TILES_SLICE (16 * KT_OPEN_TILE)
#define KT_TILES_ALIGN ((size_t)4096)

/* Sums of a panel that are finished, of `rows` rows of the call from `row` on: at[16 r], and three
 * more columns of 16 panel rows behind, each to be multiplied by the factors of its rows. */
typedef struct kt_tiles_sums {
    int64_t panel, row, rows;
    const float *at;     /* column c: at[256 (c % 2) + half (c / 2) + 16 r], within 16 rows */
    int64_t half;        /* floats from one half of the panel to the other */
    const float *factor; /* [64] */
} kt_tiles_sums;

/* Column c (16 panel rows) of row r. */
KT_INLINE __m512 kt_tiles_sum(const kt_tiles_sums *s, int64_t r, const int c) {
    return _mm512_mul_ps(_mm512_load_ps(s->at + 256 * (c % 2) + s->half * (c / 2) + 16 * r),
                         _mm512_load_ps(s->factor + 16 * c));
}

/* What the walk sees of a call. */
typedef struct kt_tiles_call {
    kt_weight_format weights;
    kt_act_format acts;
    int64_t k, m;
    const uint8_t *panels; /* the first of the call */
    int64_t first, count;  /* its number, and how many */
    const uint8_t *a;
    size_t a_stride;
    const int32_t *rows; /* row i of the call is row rows[i] of a; NULL = row i */
    const uint8_t *next;
    uint8_t *scratch;
    void (*end_rows)(const void *call, const kt_tiles_sums *sums);
    const void *call;
    kt_open_points *points; /* of a format with a grid, else NULL */
    kt_open_slices *slices; /* of the call's format alone, or NULL */
} kt_tiles_call;

/* A block of rows. */
typedef struct kt_tiles {
    const kt_tiles_call *call;
    const kt_tiles_way *way;
    kt_open_how how;
    kt_open_where where;
    size_t panel_bytes;
    int64_t row, rows;         /* first row, and how many */
    int64_t tiles;             /* of rows */
    int64_t k_slices;          /* of 256 inputs */
    int64_t slices;            /* of a panel: as many with 4 steps of all as with 8 of a half */
    int64_t sum_slices;        /* whose products are added up: all of k */
    uint8_t *a, *slice;        /* [tiles][steps][1024], [2][KT_TILES_SLICE] */
    float *sums[2];            /* by panels in turns: [halves][tiles][2][16][16] */
    int64_t ended;             /* rows of the panel before whose sums are where they belong */
    kt_open_rows64 numbers[3]; /* by panels: the one before, this one, the next */
    kt_opening opening;
} kt_tiles;

/* A slice of the walk: the at-th of a panel, of which `of_k` belong to the same sums and come
 * before it, those of half `half`. A panel has an even number of slices. */
typedef struct kt_tiles_at {
    int64_t panel, at, of_k, half;
} kt_tiles_at;

static inline kt_tiles_at kt_tiles_next(const kt_tiles *x, kt_tiles_at i) {
    i.at++;
    if (++i.of_k == x->sum_slices) i.of_k = 0, i.half++;
    if (i.at == x->slices) i = (kt_tiles_at){.panel = i.panel + 1};
    return i;
}

/* --- rows --- */

/* 32 floats -> bfloat16, to nearest even. */
KT_INLINE __m512i kt_tiles_round(__m512 low, __m512 high) {
    __m512i r;
    __asm__("vcvtne2ps2bf16 %2, %1, %0" : "=v"(r) : "v"(high), "v"(low));
    return r;
}

/* Inputs [32 s, 32 s + 32) of an encoded row of k. */
KT_INLINE __m512i kt_tiles_inputs(const kt_act_format acts, const uint8_t *row, int64_t k,
                                  int64_t s) {
    __m512 low, high;
    float first, second;

    if (acts == KT_A_BF16) return _mm512_load_si512(row + 64 * s);
    if (acts == KT_A_INT8_G32) {
        first = second = kt_a8_scales(row, k)[s];
    } else {
        first = kt_a8p_scale(kt_a8p_biases(row, k)[2 * s]);
        second = kt_a8p_scale(kt_a8p_biases(row, k)[2 * s + 1]);
    }
    row += 32 * s;
    low = _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)row)));
    high = _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_load_si128((const __m128i *)(const void *)(row + 16))));
    return kt_tiles_round(_mm512_mul_ps(low, _mm512_set1_ps(first)),
                          _mm512_mul_ps(high, _mm512_set1_ps(second)));
}

/* Steps [s, s + 8) of a tile of rows, of which `inside` rows and `steps` steps exist: eight
 * consecutive tiles. */
KT_INLINE void kt_tiles_gather_steps(const kt_act_format acts, const int is_coded, int64_t k,
                                     const uint8_t *const row[16], int64_t inside, int64_t s,
                                     int64_t steps, uint8_t *to) {
    const __m512i in_order =
        _mm512_broadcast_i32x4(/* words 0 2 1 3 of four */
                               _mm_set_epi64x(0x0f0e0b0a0d0c0908, 0x0706030205040100));

    for (int64_t r = 0; r < 16; r++)
        for (int64_t i = 0; i < 8; i++) {
            __m512i v = _mm512_setzero_si512();
            if (r < inside && s + i < steps) v = kt_tiles_inputs(acts, row[r], k, s + i);
            if (is_coded) v = _mm512_shuffle_epi8(v, in_order);
            _mm512_store_si512(to + KT_OPEN_TILE * i + 64 * r, v);
        }
}

/* Rows of tile t. */
static inline void kt_tiles_gather_tile(const kt_tiles *x, int64_t t) {
    const kt_tiles_call *c = x->call;
    const int64_t left = x->rows - 16 * t, inside = left < 0 ? 0 : left < 16 ? left : 16;
    const uint8_t *row[16];

    for (int64_t r = 0; r < inside; r++) {
        const int64_t i = x->row + 16 * t + r;
        row[r] = c->a + c->a_stride * (size_t)(c->rows ? c->rows[i] : i);
    }
    for (int64_t s = 0; s < 8 * x->k_slices; s += 8) {
        uint8_t *to = x->a + KT_OPEN_TILE * (8 * x->k_slices * t + s);
        const int is_coded = x->how.low <= 8;
        if (c->acts == KT_A_BF16 && is_coded)
            kt_tiles_gather_steps(KT_A_BF16, 1, c->k, row, inside, s, c->k / 32, to);
        else if (c->acts == KT_A_BF16)
            kt_tiles_gather_steps(KT_A_BF16, 0, c->k, row, inside, s, c->k / 32, to);
        else if (c->acts == KT_A_INT8_G32)
            kt_tiles_gather_steps(KT_A_INT8_G32, 1, c->k, row, inside, s, c->k / 32, to);
        else
            kt_tiles_gather_steps(KT_A_INT8_G16P2, 1, c->k, row, inside, s, c->k / 32, to);
    }
}

static inline void kt_tiles_gather(const kt_tiles *x) {
    for (int64_t t = 0; t < x->tiles; t++) kt_tiles_gather_tile(x, t);
}

/* --- slices --- */

static inline kt_open_panel kt_tiles_panel(kt_tiles *x, int64_t panel) {
    const kt_tiles_call *c = x->call;

    return (kt_open_panel){.at = c->panels + (size_t)panel * x->panel_bytes,
                           .format = c->weights,
                           .where = &x->where,
                           .k = c->k,
                           .rows = &x->numbers[panel % 3],
                           .points = c->points,
                           .slices = c->slices ? c->slices : kt_open_slice_codes};
}

/* Make ready to open slice i. */
static inline void kt_tiles_prepare(kt_tiles *x, kt_tiles_at i) {
    const kt_open_panel p = kt_tiles_panel(x, i.panel);
    const uint8_t *fetch = x->call->next ? x->call->next : p.at;

    if (i.at == 0) kt_open_begin(&p);
    if (i.panel + 1 < x->call->count) fetch = p.at + x->panel_bytes;
    if (x->tiles == 1)
        kt_open_slice(&p, 4 * i.at, 4, 0, 4, &x->opening);
    else
        kt_open_slice(&p, 8 * i.of_k, 8, (int)(32 * i.half), 2, &x->opening);
    x->opening.fetch = fetch + 64 * (KT_OPEN_LINES / 8) * x->how.fetch * i.at;
    x->opening.to = x->slice + KT_TILES_SLICE * (i.at % 2);
}

/* The first slice, which no products hide. */
static inline void kt_tiles_open_first(kt_tiles *x) {
    kt_tiles_block step = {.open = &x->opening};

    kt_tiles_prepare(x, (kt_tiles_at){0});
    for (step.step = 0; step.step < (x->tiles == 1 ? 4 : 8); step.step++)
        (x->tiles == 1 ? x->way->step4 : x->way->step2)(&step);
}

/* Multiply slice i with pair b of tiles, or the single tile; lines a step of the next slice are
 * opened. */
static inline void kt_tiles_multiply(kt_tiles *x, kt_tiles_at i, int64_t b, int lines) {
    const int is_single = x->tiles == 1, kept = x->tiles <= 2;
    const size_t row_bytes = KT_OPEN_TILE * 8 * (size_t)x->k_slices;
    kt_tiles_block block = {.b = x->slice + KT_TILES_SLICE * (i.at % 2),
                            .c = x->sums[i.panel % 2] + 512 * x->tiles * i.half + 1024 * b,
                            .open = &x->opening,
                            .step = b * lines};

    block.a = x->a + row_bytes * 2 * (size_t)b + KT_OPEN_TILE * (is_single ? 4 : 8) * i.of_k;
    block.a2 = block.a + row_bytes;
    block.begin = i.of_k == 0 ? KT_SUMS_ZERO : kept ? KT_SUMS_KEPT : KT_SUMS_LOADED;
    block.ends = !kept || i.of_k == x->sum_slices - 1;
    if (is_single)
        (lines ? x->way->single : kt_tiles_single_alone)(&block);
    else if (lines && b * lines < 8)
        x->way->pair[__builtin_ctz((unsigned)lines)](&block);
    else
        kt_tiles_pair_alone(&block);
}

/* --- endings --- */

/* Rows [ended, end) of a panel whose products are done, those of one tile at a time. */
static inline void kt_tiles_end_rows(kt_tiles *x, int64_t panel, int64_t end) {
    while (x->ended < end) {
        const int64_t tile_end = (x->ended / 16 + 1) * 16;
        const kt_tiles_sums sums = {.panel = x->call->first + panel,
                                    .row = x->row + x->ended,
                                    .rows = (end < tile_end ? end : tile_end) - x->ended,
                                    .at = x->sums[panel % 2] + x->ended / 16 * 512 +
                                          x->ended % 16 * 16,
                                    .half = 512 * x->tiles,
                                    .factor = x->numbers[panel % 3].factor};
        x->call->end_rows(x->call->call, &sums);
        x->ended += sums.rows;
    }
}

/* --- the walk --- */

/* Lines a step that open a slice during its pairs: the next power of two. */
static inline int kt_tiles_lines(int64_t pairs) {
    int lines = 8;
    while (lines > 1 && lines / 2 * pairs >= 8) lines /= 2;
    return lines;
}

static inline void kt_tiles_rows(kt_tiles *x) {
    const int64_t pairs = (x->tiles + 1) / 2, count = x->call->count;
    const int64_t blocks = x->slices * pairs;
    int64_t a_block = (x->rows + blocks - 1) / blocks;
    const int lines = kt_tiles_lines(pairs);
    kt_tiles_at i = {0}, next;

    if (x->call->acts != KT_A_BF16)
        a_block = (a_block + 3) / 4 * 4; /* four rows at once are faster */
    x->sum_slices = x->tiles == 1 ? x->slices : x->k_slices;
    kt_tiles_gather(x);
    kt_tiles_open_first(x);
    for (; i.panel < count; i = next) {
        next = kt_tiles_next(x, i);
        if (next.panel < count) kt_tiles_prepare(x, next);
        if (i.at == 0) x->ended = 0;
        for (int64_t b = 0; b < pairs; b++) {
            kt_tiles_multiply(x, i, b, next.panel < count ? lines : 0);
            if (i.panel > 0)
                kt_tiles_end_rows(x, i.panel - 1,
                                  x->ended + a_block < x->rows ? x->ended + a_block : x->rows);
        }
        if (next.at == 0) {
            const kt_open_panel done = kt_tiles_panel(x, i.panel);
            kt_open_end(&done);
        }
    }
    x->ended = 0;
    kt_tiles_end_rows(x, count - 1, x->rows);
}

/* Tiles of rows in a block for so many inputs. */
static inline int64_t kt_tiles_most(int64_t k_slices) {
    const size_t tile = KT_OPEN_TILE * 8 * (size_t)k_slices;
    const int64_t most = (int64_t)(KT_TILES_ROW_BYTES / tile) / 2 * 2;
    return most > KT_TILES_MOST ? KT_TILES_MOST : most < 2 ? 2 : most;
}

static inline int64_t kt_tiles_k_slices(int64_t k) {
    return (k + KT_TILES_INPUTS - 1) / KT_TILES_INPUTS;
}

/* Scratch of a call with reductions of length k. */
static inline size_t kt_tiles_scratch(int64_t k) {
    const int64_t slices = kt_tiles_k_slices(k), most = kt_tiles_most(slices);
    return KT_TILES_ALIGN + 2 * KT_TILES_SLICE +
           (size_t)most * (2 * 4 * KT_OPEN_TILE + KT_OPEN_TILE * 8 * (size_t)slices);
}

static inline void kt_tiles_do(const kt_tiles_call *call, const kt_tiles_way *way,
                               const kt_open_how how) {
    kt_amx_config config = {.palette = 1};
    const int64_t most = kt_tiles_most(kt_tiles_k_slices(call->k));
    kt_tiles x = {.call = call, .way = way, .how = how};

    if (call->m < 1 || call->count < 1) return;
    x.panel_bytes = kt_p64_panel_bytes(call->weights, call->k);
    x.k_slices = kt_tiles_k_slices(call->k);
    x.slices = 2 * x.k_slices;
    x.slice = call->scratch + (-(uintptr_t)call->scratch & (KT_TILES_ALIGN - 1));
    x.sums[0] = (float *)(void *)(x.slice + 2 * KT_TILES_SLICE);
    x.sums[1] = x.sums[0] + 1024 * most;
    x.a = (uint8_t *)(x.sums[1] + 1024 * most);
    x.where = kt_open_where_of(call->weights);
    kt_open_values(call->weights, how, &x.opening);
    for (int t = 0; t < 8; t++) {
        config.rows[t] = 16;
        config.row_bytes[t] = 64;
    }
    KT_AMX_CONFIGURE(&config);
    for (x.row = 0; x.row < call->m; x.row += x.rows) {
        const int64_t left = call->m - x.row;
        x.rows = left < 16 * most ? left : 16 * most;
        x.tiles = (x.rows + 15) / 16;
        if (x.tiles > 2) x.tiles += x.tiles % 2;
        kt_tiles_rows(&x);
    }
    KT_AMX_RELEASE();
}

#endif
