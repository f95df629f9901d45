/* One pass over a p64 panel: what the 512-bit tiles share.
 *
 * A tile multiplies up to six activation rows with a panel, or with 32 of its 64 rows, over the whole of
 * k, and leaves the sums in a small f32 block for the op's epilogue. Sums of one output are taken in
 * the order of k whatever the number of rows, so a row's result does not depend on its neighbours.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_TILE512_H
#define KT_KERNELS_TILE512_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "kernels/simd/fetch.h"
#include "kernels/simd/unroll.h"

#define KT_TILE_ROWS 6   /* most rows of a tile in registers */
#define KT_MANY_ROWS 128 /* most rows of a tile that opens the panel in L1 */
#define KT_TILE_LINE 64  /* bytes of a cache line */
#define KT_TILE_STEP 32  /* inputs per step of the loop over k */
#define KT_TILE_WIDTH 64 /* floats from row to row of the result block */

/* Bytes to fetch ahead: a cursor that moves with the computation, evenly, so that demand misses find
 * free miss buffers. When it reaches `end` it goes on at `then`, or stops if that is 0. */
typedef struct kt_tile_ahead {
    uintptr_t at, end, then;
    uintptr_t pace; /* bytes per step */
} kt_tile_ahead;

typedef struct kt_tile {
    const uint8_t *panel;
    int64_t k;
    int rows;
    const uint8_t *a[KT_MANY_ROWS]; /* encoded activation rows */
    float *c;                       /* [rows][KT_TILE_WIDTH], 64-byte aligned; written */
    const float
        *out[KT_MANY_ROWS]; /* rows that c will be added to, or NULL: many rows fetch them */
    /* Of the call, for tiles that prepare a panel once for all rows, and the panel they prepared last. */
    uint8_t *scratch;
    const uint8_t *opened;
    kt_tile_ahead ahead;      /* weights */
    kt_tile_ahead rows_ahead; /* activations */
    int is_near;              /* all that is fetched goes into L1 (kt_cpu_fetches_near) */
    int is_panel_near;        /* weights do, by tiles that can */
    int is_alone;             /* the panel is read for no other rows */
} kt_tile;

/* Multiply t->rows rows with all 64 rows of the panel. */
typedef void kt_tile_run(kt_tile *t);

/* The cursor's move of one step. Into L2, where what comes next does not push out what is in use, or L1. */
KT_INLINE void kt_tile_move(kt_tile_ahead *ahead, const int is_near) {
    uintptr_t line, at;

    if (!ahead->pace)
        return; /* most single passes: a step of theirs is only a few dozen instructions */
    line = (ahead->at + KT_TILE_LINE - 1) / KT_TILE_LINE * KT_TILE_LINE;
    at = ahead->at + ahead->pace;

    for (; line < at; line += KT_TILE_LINE) kt_fetch_line((const void *)line, is_near);
    if (__builtin_expect(at >= ahead->end, 0)) {
        at = ahead->then + (at - ahead->end);
        ahead->end = UINTPTR_MAX;
        if (!ahead->then) ahead->pace = 0;
    }
    ahead->at = at;
}

KT_INLINE void kt_tile_fetch(kt_tile *t) {
    kt_tile_move(&t->ahead, t->is_panel_near);
    kt_tile_move(&t->rows_ahead, t->is_near);
}

/* For tiles that open the panel, which they read once. */
KT_INLINE void kt_tile_fetch_far(kt_tile *t) {
    kt_tile_move(&t->ahead, t->is_near);
    kt_tile_move(&t->rows_ahead, t->is_near);
}

/* What a step fetches, to be asked for with each piece of its work: each prefetch holds a buffer of
 * the few that L1 has for lines that it misses, and a burst waits for memory while nothing else
 * does. Granite Rapids, one row of FP8: 1.10 times as fast as 32 lines at once. */
typedef struct kt_tile_lines {
    uintptr_t at, past; /* both 0: they have been asked for at once */
    int is_near;
} kt_tile_lines;

/* A single pass fetches what it reads, `bytes` at least a step; others fetch less, at once. */
KT_INLINE kt_tile_lines kt_tile_fetch_slowly(kt_tile *t, uintptr_t bytes) {
    kt_tile_ahead *const ahead = &t->ahead;
    const uintptr_t at = ahead->at, past = at + ahead->pace;

    kt_tile_move(&t->rows_ahead, t->is_near);
    if (ahead->pace < bytes || past >= ahead->end) {
        kt_tile_move(ahead, t->is_near);
        return (kt_tile_lines){0, 0, 0};
    }
    ahead->at = past;
    return (kt_tile_lines){(at + KT_TILE_LINE - 1) / KT_TILE_LINE * KT_TILE_LINE, past, t->is_near};
}

KT_INLINE void kt_tile_fetch_lines(kt_tile_lines *l, const int lines) {
    KT_EACH (i, lines) kt_fetch_line((const uint8_t *)l->at + KT_TILE_LINE * i, l->is_near);
    l->at += (uintptr_t)(KT_TILE_LINE * lines);
}

KT_INLINE void kt_tile_fetch_rest(kt_tile_lines *l) {
    while (l->at < l->past) kt_tile_fetch_lines(l, 1);
}

/* For calls of kt_tile_fetch where one of `parts` tiles of rows does `steps` steps at a time; paces are of a
 * step. */
KT_INLINE void kt_tile_set_part(kt_tile *t, int steps, int parts, uintptr_t pace,
                                uintptr_t rows_pace) {
    const uintptr_t n = (uintptr_t)steps, part = (uintptr_t)parts;
    if (t->ahead.pace) t->ahead.pace = (pace * n + part - 1) / part;
    if (t->rows_ahead.pace) t->rows_ahead.pace = (rows_pace * n + part - 1) / part;
}

/* Such a call, the paces being set anew. */
KT_INLINE void kt_tile_fetch_part(kt_tile *t, int steps, int parts, uintptr_t pace,
                                  uintptr_t rows_pace) {
    kt_tile_set_part(t, steps, parts, pace, rows_pace);
    kt_tile_fetch_far(t);
}

/* Rows [row, row + rows) of what c will be added to: with the last chunk of k, tile by tile, so that
 * memory works while the multipliers do. */
KT_INLINE void kt_tile_fetch_out(const kt_tile *t, int row, int rows) {
    for (int r = row; r < row + rows && t->out[r]; r++)
        for (int j = 0; j < KT_TILE_WIDTH; j += 16) kt_fetch_line(t->out[r] + j, t->is_near);
}

KT_INLINE int32_t kt_load_i32(const uint8_t *p) {
    int32_t v;
    memcpy(&v, p, sizeof v);
    return v;
}
KT_INLINE float kt_load_f32(const uint8_t *p) {
    float v;
    memcpy(&v, p, sizeof v);
    return v;
}

#endif
