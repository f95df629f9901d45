/* The products of opened tiles, and between them the opening of the next slice.
 *
 * A block is two tiles of activation rows times a slice: 8 steps (256 inputs) of two tiles of 16
 * panel rows, 32 products on four sums, straight code in which nothing is decided. After product p
 * stand the lines floor(8 L p / 32) to floor(8 L (p + 1) / 32) - 1 of the next slice, L lines a
 * step: the vector units open weights while the tile unit multiplies (up to 24 operations a product
 * are hidden, Granite Rapids). Sums are finished one after the other, each loaded before its first
 * two products and stored after its last two: a store and the next products of the same tile number
 * do not overlap.
 *
 * A single tile of rows takes four tiles of panel rows, 4 steps a slice; its sums stay in tiles
 * over all of k. Activations are loaded with the hint that they are not wanted again: the slices
 * stay in L1.
 *
 * Tiles: 0 to 3 sums, 4 and 5 activations, 6 and 7 weights.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_P64_TILES_BLOCK_H
#define KT_P64_TILES_BLOCK_H

#include "kernels/p64/tiles_lines.h"
#include "kernels/simd/amx.h"

typedef enum kt_sums_begin { KT_SUMS_ZERO, KT_SUMS_LOADED, KT_SUMS_KEPT } kt_sums_begin;

/* One block: tiles of activations a (and a2) and of weights b, all consecutive; sums c: four tiles,
 * of a with both columns of weights, then of a2. */
typedef struct kt_tiles_block {
    const uint8_t *a, *a2, *b;
    float *c;
    kt_sums_begin begin;
    int ends;               /* sums are stored */
    const kt_opening *open; /* the next slice, its lines from step `step` on */
    int64_t step;
} kt_tiles_block;

/* A block's members as locals, which nothing that is stored can be. */
#define KT_BLOCK_MEMBERS(x)                                            \
    const uint8_t *const a = x->a, *const a2 = x->a2, *const b = x->b; \
    float *const c = x->c;                                             \
    const kt_open_values512 open = kt_open_load(x->open);              \
    const kt_sums_begin begin = x->begin;                              \
    const int ends = x->ends;                                          \
    const int64_t step = x->step;                                      \
    (void)a2;

typedef void kt_tiles_run(const kt_tiles_block *x);

/* What stands after product p of n: its lines of `lines`. */
KT_INLINE void kt_tiles_gap(const kt_open_how how, const kt_open_values512 *open, int64_t step,
                            const int tiles, const int lines, const int n, const int p) {
    KT_UNROLL for (int i = lines * p / n; i < lines * (p + 1) / n; i++)
        kt_open_line(how, open, step, tiles, i);
}

#define KT_SUM_BEGIN(t)                                                 \
    do {                                                                \
        if (begin == KT_SUMS_ZERO) KT_AMX_ZERO(t);                      \
        if (begin == KT_SUMS_LOADED) KT_AMX_LOAD(t, c + 256 * (t), 64); \
    } while (0)
#define KT_SUM_END(t)                                 \
    do {                                              \
        if (ends) KT_AMX_STORE(t, c + 256 * (t), 64); \
    } while (0)

#define KT_GAP(p) kt_tiles_gap(how, &open, step, 2, 8 * lines, 32, p)
#define KT_A_AT(row, k) ((row) + KT_OPEN_TILE * (k))
#define KT_B_AT(column, k) (b + KT_OPEN_TILE * (2 * (k) + (column)))

/* Two steps, k and k + 1, a sum at a time; p is the number of the first product. */
#define KT_TWO_STEPS(k, p, first, last)                \
    do {                                               \
        first(0);                                      \
        KT_AMX_LOAD_ONCE(4, KT_A_AT(a, k), 64);        \
        KT_AMX_LOAD(6, KT_B_AT(0, k), 64);             \
        KT_AMX_DOT_BF16(0, 4, 6);                      \
        KT_GAP(p);                                     \
        KT_AMX_LOAD_ONCE(5, KT_A_AT(a, (k) + 1), 64);  \
        KT_AMX_LOAD(7, KT_B_AT(0, (k) + 1), 64);       \
        KT_AMX_DOT_BF16(0, 5, 7);                      \
        last(0);                                       \
        KT_GAP((p) + 1);                               \
        first(1);                                      \
        KT_AMX_LOAD(6, KT_B_AT(1, k), 64);             \
        KT_AMX_DOT_BF16(1, 4, 6);                      \
        KT_GAP((p) + 2);                               \
        KT_AMX_LOAD(7, KT_B_AT(1, (k) + 1), 64);       \
        KT_AMX_DOT_BF16(1, 5, 7);                      \
        last(1);                                       \
        KT_GAP((p) + 3);                               \
        first(3);                                      \
        KT_AMX_LOAD_ONCE(4, KT_A_AT(a2, k), 64);       \
        KT_AMX_DOT_BF16(3, 4, 6);                      \
        KT_GAP((p) + 4);                               \
        KT_AMX_LOAD_ONCE(5, KT_A_AT(a2, (k) + 1), 64); \
        KT_AMX_DOT_BF16(3, 5, 7);                      \
        last(3);                                       \
        KT_GAP((p) + 5);                               \
        first(2);                                      \
        KT_AMX_LOAD(6, KT_B_AT(0, k), 64);             \
        KT_AMX_DOT_BF16(2, 4, 6);                      \
        KT_GAP((p) + 6);                               \
        KT_AMX_LOAD(7, KT_B_AT(0, (k) + 1), 64);       \
        KT_AMX_DOT_BF16(2, 5, 7);                      \
        last(2);                                       \
        KT_GAP((p) + 7);                               \
    } while (0)

#define KT_ONE_STEP(k, p)                        \
    do {                                         \
        KT_AMX_LOAD_ONCE(4, KT_A_AT(a, k), 64);  \
        KT_AMX_LOAD(6, KT_B_AT(0, k), 64);       \
        KT_AMX_DOT_BF16(0, 4, 6);                \
        KT_GAP(p);                               \
        KT_AMX_LOAD(7, KT_B_AT(1, k), 64);       \
        KT_AMX_DOT_BF16(1, 4, 7);                \
        KT_GAP((p) + 1);                         \
        KT_AMX_LOAD_ONCE(5, KT_A_AT(a2, k), 64); \
        KT_AMX_DOT_BF16(2, 5, 6);                \
        KT_GAP((p) + 2);                         \
        KT_AMX_DOT_BF16(3, 5, 7);                \
        KT_GAP((p) + 3);                         \
    } while (0)

#define KT_NOTHING(t) ((void)0)

/* 32 products, `lines` opened lines a step. */
KT_INLINE void kt_tiles_pair(const kt_open_how how, const kt_tiles_block *block, const int lines) {
    KT_BLOCK_MEMBERS(block)
    KT_TWO_STEPS(0, 0, KT_SUM_BEGIN, KT_NOTHING);
    KT_ONE_STEP(2, 8);
    KT_ONE_STEP(3, 12);
    KT_ONE_STEP(4, 16);
    KT_ONE_STEP(5, 20);
    KT_TWO_STEPS(6, 24, KT_NOTHING, KT_SUM_END);
}
#undef KT_GAP
#undef KT_B_AT

#define KT_GAP(p) kt_tiles_gap(how, &open, step, 4, lines, 16, p)
#define KT_B_AT(column, k) (b + KT_OPEN_TILE * (4 * (k) + (column)))
#define KT_ONE_COLUMN(column, k, p, first, last)      \
    do {                                              \
        first(column);                                \
        KT_AMX_LOAD(6, KT_B_AT(column, k), 64);       \
        KT_AMX_DOT_BF16(column, 4, 6);                \
        KT_GAP(p);                                    \
        KT_AMX_LOAD(7, KT_B_AT(column, (k) + 1), 64); \
        KT_AMX_DOT_BF16(column, 5, 7);                \
        last(column);                                 \
        KT_GAP((p) + 1);                              \
    } while (0)
#define KT_FOUR_COLUMNS(k, p, first, last)            \
    do {                                              \
        KT_AMX_LOAD_ONCE(4, KT_A_AT(a, k), 64);       \
        KT_AMX_LOAD_ONCE(5, KT_A_AT(a, (k) + 1), 64); \
        KT_ONE_COLUMN(0, k, p, first, last);          \
        KT_ONE_COLUMN(1, k, (p) + 2, first, last);    \
        KT_ONE_COLUMN(2, k, (p) + 4, first, last);    \
        KT_ONE_COLUMN(3, k, (p) + 6, first, last);    \
    } while (0)

/* 16 products of one tile of rows with four steps of four columns, all 64 lines opened or none. */
KT_INLINE void kt_tiles_single(const kt_open_how how, const kt_tiles_block *block,
                               const int lines) {
    KT_BLOCK_MEMBERS(block)
    KT_FOUR_COLUMNS(0, 0, KT_SUM_BEGIN, KT_NOTHING);
    KT_FOUR_COLUMNS(2, 8, KT_NOTHING, KT_SUM_END);
}
#undef KT_GAP
#undef KT_B_AT

/* One step of `tiles` tiles, opened without products. */
KT_INLINE void kt_tiles_step(const kt_open_how how, const kt_tiles_block *block, const int tiles) {
    const kt_open_values512 open = kt_open_load(block->open);
    kt_tiles_gap(how, &open, block->step, tiles, 4 * tiles, 1, 0);
}

/* A way of opening: its blocks by lines a step (1, 2, 4, 8), its single block, and one step of two
 * or four tiles at a time. Blocks that open nothing are common to all. */
typedef struct kt_tiles_way {
    kt_tiles_run *pair[4], *single, *step2, *step4;
} kt_tiles_way;

#define KT_TILES_RUN(name, call)                                                     \
    static __attribute__((noinline)) void kt_tiles_##name(const kt_tiles_block *x) { \
        call;                                                                        \
    }
#define KT_TILES_NOTHING ((kt_open_how){KT_OPEN_BF16, 0, KT_OPEN_AS_IS, 0, 0})
KT_TILES_RUN(pair_alone, kt_tiles_pair(KT_TILES_NOTHING, x, 0))
KT_TILES_RUN(single_alone, kt_tiles_single(KT_TILES_NOTHING, x, 0))

/* KT_TILES_WAY(name, low, high, terms, rounds, fetch): the functions, and kt_tiles_<name>. */
#define KT_TILES_WAY(name, ...)                                                               \
    static const kt_open_how kt_how_##name = {__VA_ARGS__};                                   \
    KT_TILES_RUN(name##_1, kt_tiles_pair(((kt_open_how){__VA_ARGS__}), x, 1))                 \
    KT_TILES_RUN(name##_2, kt_tiles_pair(((kt_open_how){__VA_ARGS__}), x, 2))                 \
    KT_TILES_RUN(name##_4, kt_tiles_pair(((kt_open_how){__VA_ARGS__}), x, 4))                 \
    KT_TILES_RUN(name##_8, kt_tiles_pair(((kt_open_how){__VA_ARGS__}), x, 8))                 \
    KT_TILES_RUN(name##_single, kt_tiles_single(((kt_open_how){__VA_ARGS__}), x, 64))         \
    KT_TILES_RUN(name##_step2, kt_tiles_step(((kt_open_how){__VA_ARGS__}), x, 2))             \
    KT_TILES_RUN(name##_step4, kt_tiles_step(((kt_open_how){__VA_ARGS__}), x, 4))             \
    static const kt_tiles_way kt_way_##name = {                                               \
        {kt_tiles_##name##_1, kt_tiles_##name##_2, kt_tiles_##name##_4, kt_tiles_##name##_8}, \
        kt_tiles_##name##_single,                                                             \
        kt_tiles_##name##_step2,                                                              \
        kt_tiles_##name##_step4};

#endif
