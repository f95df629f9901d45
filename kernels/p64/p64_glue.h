/* What a p64 variant does around its panel kernel: walk panels and blocks of rows, and put each tile
 * where the op wants it. The panel kernel and the SwiGLU step are the variant's own, passed as
 * functions that the compiler inlines.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SIMD_P64_GLUE_H
#define KT_SIMD_P64_GLUE_H

#include "base/cpu.h"
#include "kernels/formats/acts.h"
#include "kernels/formats/p64.h"
#include "kernels/simd/fetch.h"
#include "kernels/simd/unroll.h"

#define KT_BLOCK_MAX 128
#define KT_FETCH_ROWS 16 /* from here on a panel takes longer than the next needs to arrive */

/* One tile: tile[64 i + r] = panel row r . a[i], for i < rows. */
typedef struct kt_p64_tile {
    const uint8_t *panel;
    kt_weight_format weights;
    kt_act_format acts;
    int64_t k;
    const void *a[KT_BLOCK_MAX]; /* encoded rows */
    int rows;                    /* 1 .. block */
    int new_rows;                /* a[] differs from the previous tile of this call */
    float *tile;                 /* f32 [rows][64], 64-byte aligned */
    const uint8_t *next;         /* panel that is read next, to be fetched meanwhile, or NULL */
    int is_near;                 /* what is fetched goes into L1 (kt_cpu_fetches_near) */
    void *context;               /* the variant's own */
} kt_p64_tile;

typedef void (*kt_tile_fn)(const kt_p64_tile *t);

/* From one tile row (32 gate, then 32 up sums) write group p of the encoded h row of length n. */
typedef void (*kt_swiglu_fn)(const float *tile, void *h, int64_t n, int64_t p,
                             const kt_glu_rule *glu);

/* Add what the sums of panel p's gate and up rows begin with, in rows of a tile. */
KT_INLINE void kt_p64_add_gate_up_bias(const kt_moe_call *call, int64_t p, int rows, float *tile) {
    if (!call->gate_bias) return;
    for (int r = 0; r < rows; r++, tile += 64)
        for (int j = 0; j < 32; j++) {
            tile[j] += call->gate_bias[32 * p + j];
            tile[32 + j] += call->up_bias[32 * p + j];
        }
}

/* The same for `columns` outputs of down's panel p. */
KT_INLINE void kt_p64_add_down_bias(const kt_moe_call *call, int64_t p, int64_t columns, int rows,
                                    float *tile) {
    if (!call->down_bias) return;
    for (int r = 0; r < rows; r++, tile += 64)
        for (int64_t j = 0; j < columns; j++) tile[j] += call->down_bias[64 * p + j];
}

/* How to walk: `block` rows per tile; panels outermost keeps a panel in cache over all rows (own
 * kernels), rows outermost keeps a converted block of rows (libraries). */
typedef struct kt_walk {
    int block;
    int rows_outermost;
    float *tile; /* block * 64 floats */
    void *context;
} kt_walk;

typedef struct kt_walk_place {
    int64_t panel, row;
    int rows, new_rows;
} kt_walk_place;

KT_INLINE int64_t kt_walk_steps(const kt_walk *w, int64_t m, int64_t panels) {
    return (m + w->block - 1) / w->block * panels;
}

KT_INLINE kt_walk_place kt_walk_at(const kt_walk *w, int64_t m, int64_t first_panel, int64_t panels,
                                   int64_t i) {
    const int64_t blocks = (m + w->block - 1) / w->block;
    const int64_t panel = w->rows_outermost ? i % panels : i / blocks;
    const int64_t row = (w->rows_outermost ? i / panels : i % blocks) * w->block;
    const int64_t left = m - row;
    const kt_walk_place step = {first_panel + panel, row, (int)(left < w->block ? left : w->block),
                                w->rows_outermost ? panel == 0 : 1};
    return step;
}

/* What to fetch during this step: in the last one of a panel the panel after it, or `after` behind the
 * last. Of little use where a block is the whole panel's only one: then it is a stream already. */
KT_INLINE const uint8_t *kt_walk_next(const kt_walk *w, const kt_walk_place *at, int64_t m,
                                      int64_t end, const kt_p64_tile *t, size_t panel_bytes,
                                      const void *after) {
    if (w->rows_outermost || at->row + at->rows < m || m < KT_FETCH_ROWS) return NULL;
    return at->panel + 1 < end ? t->panel + panel_bytes : after;
}

KT_INLINE void kt_p64_gemm(const kt_gemm_call *call, kt_tile_fn tile_fn, const kt_walk *walk) {
    const kt_problem *q = call->problem;
    const size_t panel_bytes = kt_p64_panel_bytes(q->weights, q->k);
    const int64_t panels = call->panel_end - call->panel_begin;
    kt_p64_tile t = {.weights = q->weights,
                     .acts = q->acts,
                     .k = q->k,
                     .tile = walk->tile,
                     .is_near = kt_cpu_fetches_near(),
                     .context = walk->context};

    for (int64_t s = 0; s < kt_walk_steps(walk, call->m, panels); s++) {
        const kt_walk_place at = kt_walk_at(walk, call->m, call->panel_begin, panels, s);
        const int64_t left = q->n - 64 * at.panel, columns = left < 64 ? left : 64;

        for (int r = 0; r < at.rows; r++)
            t.a[r] = (const char *)call->a + (size_t)(at.row + r) * call->a_stride;
        t.panel = (const uint8_t *)call->weights + (size_t)at.panel * panel_bytes;
        t.rows = at.rows;
        t.new_rows = at.new_rows;
        t.next = kt_walk_next(walk, &at, call->m, call->panel_end, &t, panel_bytes, NULL);
        tile_fn(&t);
        for (int r = 0; r < at.rows; r++) {
            float *c = call->c + (at.row + r) * call->ldc + 64 * at.panel;
            const float *sum = walk->tile + 64 * r;
            if (call->accumulate)
                for (int64_t j = 0; j < columns; j++) c[j] += sum[j];
            else
                for (int64_t j = 0; j < columns; j++) c[j] = sum[j];
        }
    }
}

KT_INLINE void kt_p64_gate_up_rows(const kt_moe_call *call, kt_tile_fn tile_fn, kt_swiglu_fn swiglu,
                                   const kt_walk *walk) {
    const kt_problem *q = call->problem;
    const int64_t panels = call->panel_end - call->panel_begin;
    kt_p64_tile t = {.weights = q->weights,
                     .acts = q->acts,
                     .k = q->k,
                     .tile = walk->tile,
                     .is_near = kt_cpu_fetches_near(),
                     .context = walk->context};

    for (int64_t s = 0; s < kt_walk_steps(walk, call->m, panels); s++) {
        const kt_walk_place at = kt_walk_at(walk, call->m, call->panel_begin, panels, s);

        for (int r = 0; r < at.rows; r++)
            t.a[r] = (const char *)call->a + (size_t)call->rows[at.row + r] * call->a_stride;
        t.panel = kt_p64_gate_up(q, call->weights, at.panel);
        t.rows = at.rows;
        t.new_rows = at.new_rows;
        t.next = kt_walk_next(walk, &at, call->m, call->panel_end, &t,
                              kt_p64_panel_bytes(q->weights, q->k), call->next);
        tile_fn(&t);
        kt_p64_add_gate_up_bias(call, at.panel, at.rows, walk->tile);
        for (int r = 0; r < at.rows; r++)
            swiglu(walk->tile + 64 * r, (char *)call->h + (size_t)(at.row + r) * call->h_stride,
                   q->n, at.panel, &call->glu);
    }
}

KT_INLINE void kt_p64_down_rows(const kt_moe_call *call, kt_tile_fn tile_fn, const kt_walk *walk) {
    const kt_problem *q = call->problem;
    const int64_t panels = call->panel_end - call->panel_begin;
    kt_p64_tile t = {.weights = q->weights,
                     .acts = q->acts,
                     .k = q->n,
                     .tile = walk->tile,
                     .is_near = kt_cpu_fetches_near(),
                     .context = walk->context};

    for (int64_t s = 0; s < kt_walk_steps(walk, call->m, panels); s++) {
        const kt_walk_place at = kt_walk_at(walk, call->m, call->panel_begin, panels, s);
        const int64_t left = q->k - 64 * at.panel, columns = left < 64 ? left : 64;

        for (int r = 0; r < at.rows; r++)
            t.a[r] = (const char *)call->h + (size_t)(at.row + r) * call->h_stride;
        t.panel = kt_p64_down(q, call->weights, at.panel);
        t.rows = at.rows;
        t.new_rows = at.new_rows;
        t.next = kt_walk_next(walk, &at, call->m, call->panel_end, &t,
                              kt_p64_panel_bytes(q->weights, q->n), call->next);
        for (int r = 0; r < at.rows; r++) /* lines that no prefetcher foresees */
            for (int64_t j = 0; j < columns; j += 16)
                __builtin_prefetch(
                    call->out + call->rows[at.row + r] * call->ldo + 64 * at.panel + j, 1);
        tile_fn(&t);
        kt_p64_add_down_bias(call, at.panel, columns, at.rows, walk->tile);
        for (int r = 0; r < at.rows; r++) {
            float *out = call->out + call->rows[at.row + r] * call->ldo + 64 * at.panel;
            const float weight = call->route_weight[at.row + r], *sum = walk->tile + 64 * r;
            /* one rounding, as in p64_ops512.h: the two walks give the same bits */
            for (int64_t j = 0; j < columns; j++) out[j] = __builtin_fmaf(weight, sum[j], out[j]);
        }
    }
}

/* The three members with sums on the stack: `block` rows a tile, at most KT_BLOCK_MAX; context as in kt_p64_tile. */
KT_INLINE void kt_rows_gemm(const kt_gemm_call *call, kt_tile_fn tile_fn, const int block,
                            void *context) {
    _Alignas(64) float tile[KT_BLOCK_MAX * 64];
    const kt_walk walk = {.block = block, .tile = tile, .context = context};
    kt_p64_gemm(call, tile_fn, &walk);
}

KT_INLINE void kt_rows_gate_up(const kt_moe_call *call, kt_tile_fn tile_fn, kt_swiglu_fn swiglu,
                               const int block, void *context) {
    _Alignas(64) float tile[KT_BLOCK_MAX * 64];
    const kt_walk walk = {.block = block, .tile = tile, .context = context};
    kt_p64_gate_up_rows(call, tile_fn, swiglu, &walk);
}

KT_INLINE void kt_rows_down(const kt_moe_call *call, kt_tile_fn tile_fn, const int block,
                            void *context) {
    _Alignas(64) float tile[KT_BLOCK_MAX * 64];
    const kt_walk walk = {.block = block, .tile = tile, .context = context};
    kt_p64_down_rows(call, tile_fn, &walk);
}

#endif
