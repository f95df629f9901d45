/* The members of GEMM and MOE_FFN variants over p64 panels and 512-bit tiles.
 *
 * Panels outside, activation rows inside: a panel (36 to 128 bytes an input) stays in L2 while the
 * rows, in blocks of equal size, pass over it, so each weight byte leaves memory once however many
 * rows there are. What the thread reads next is fetched meanwhile, in one of two ways:
 *
 *   one pass     the panel is read once, as a stream: `prefetch` bytes ahead of the reader, across the
 *                panel's end and from the last panel of the call into call->next, where the hardware
 *                prefetchers, which stop at 4 KiB page ends and know nothing of the next expert,
 *                cannot see;
 *   many passes  the whole next panel, spread evenly over the passes, so that memory works while the
 *                multipliers do.
 *
 * Down fetches its next panel into L1, from where its lines go to L2: of those fetched into L2 directly some
 * come from beyond it when they are wanted (the first block of rows took 1.57 of the others' time, now 1.2; Zen 4). With the
 * longer rows of gate and up there is no room in L1, and it costs 1 to 5 %.
 *
 * Down also fetches the next expert's rows, which a task meets only once for all its panels (without:
 * 65 % of the VNNI peak at 32 rows instead of 73 %, Zen 4).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_P64_OPS512_H
#define KT_KERNELS_P64_OPS512_H

#include "base/cpu.h"
#include "kernels/formats/p64.h"
#include "kernels/simd/encode512.h"
#include "kernels/simd/exp512.h"
#include "kernels/simd/row_ends512.h"
#include "kernels/simd/tile512.h"

/* Fetched of what is read next when streams are left to the hardware: one small page of lead. */
#define KT_NEXT_BYTES 4096
/* What a block that is alone is read ahead by where the hardware would be left to it: there is so
 * much work between its lines that the hardware's streams break off (w8c_a8, six rows, Zen 5: 676
 * us without, 295 with it). */
#define KT_ALONE_AHEAD 4096
/* Activations of a GEMM that stay in L2 beside a panel and the next: half of a megabyte of it. */
#define KT_ROWS_IN_L2_BYTES ((size_t)384 << 10)

/* Tunables, in this order: most rows of a tile; bytes to prefetch ahead of a single pass (0 = leave the
 * stream to the hardware and fetch only the start of what follows the call's last panel); rows from which
 * the panel is opened in L1 (kinds with `many`; 0 = never). */
enum { KT_P64_ROWS_PARAM, KT_P64_PREFETCH_PARAM, KT_P64_MANY_PARAM };

/* A tile and what the walk must know of it. */
typedef struct kt_tile_kind {
    kt_tile_run *run;
    kt_weight_format weights;
    int full_rows; /* up to so many rows read a panel once, more read it twice */
    /* Up to KT_MANY_ROWS rows with a panel unpacked once for all of them; the bits of run. NULL = none. */
    kt_tile_run *many;
    /* Blocks of rows may exceed the `rows` tunable up to this, rather than be one more and uneven; 0 = not. */
    int most_rows;
    /* Up to so many rows that are all there are form one block, which reads a panel once; 0 = as
     * others do. */
    int alone_rows;
} kt_tile_kind;

/* A walk over the panels [panel, panel + panel_bytes * n_panels) with m rows. */
typedef struct kt_gemm_walk {
    const kt_tile_kind *kind;
    const uint8_t *panel, *end; /* current panel; end of the last */
    size_t panel_bytes;
    uintptr_t next; /* what the thread reads after the last panel, or 0 */
    kt_tile_run *run;
    int64_t k, m, n_blocks;
    int64_t lead; /* rows of the first block, when it is not like the others; else 0 */
    int64_t prefetch;
} kt_gemm_walk;

/* Blocks that m rows are worked on in. */
static inline int64_t kt_walk_blocks(const kt_tile_kind *kind, int64_t m, int64_t rows) {
    const int64_t fewer = m / rows;
    if (m && (m <= kind->most_rows || m <= kind->alone_rows)) return 1;
    if (fewer && (m + fewer - 1) / fewer <= kind->most_rows) return fewer;
    return (m + rows - 1) / rows;
}

static inline kt_gemm_walk kt_walk_make(const kt_tile_kind *kind, const kt_config *config,
                                        int64_t k, int64_t m, const uint8_t *panel,
                                        int64_t n_panels, const void *next) {
    int many_from = config->value[KT_P64_MANY_PARAM];
    int is_many = kind->many && many_from && m >= many_from;
    int64_t rows = is_many ? KT_MANY_ROWS : config->value[KT_P64_ROWS_PARAM];
    size_t panel_bytes = kt_p64_panel_bytes(kind->weights, k);
    kt_gemm_walk w = {.kind = kind,
                      .panel = panel,
                      .end = panel + panel_bytes * (size_t)n_panels,
                      .panel_bytes = panel_bytes,
                      .next = (uintptr_t)next,
                      .run = is_many ? kind->many : kind->run,
                      .k = k,
                      .m = m,
                      .n_blocks = kt_walk_blocks(kind, m, rows),
                      .prefetch = config->value[KT_P64_PREFETCH_PARAM]};
    return w;
}

/* Rows of block b: [first, first of b + 1). */
static inline int64_t kt_walk_row(const kt_gemm_walk *w, int64_t b) {
    if (w->lead) return b ? w->lead + (w->m - w->lead) * (b - 1) / (w->n_blocks - 1) : 0;
    return w->m * b / w->n_blocks;
}

static inline kt_tile_ahead kt_ahead_nothing(void) {
    kt_tile_ahead ahead = {0, UINTPTR_MAX, 0, 0};
    return ahead;
}

/* A cursor that fetches [from, from + bytes) in `steps` steps and then stops. */
static inline kt_tile_ahead kt_ahead_once(uintptr_t from, size_t bytes, int64_t steps) {
    kt_tile_ahead ahead = {from, from + bytes, 0, 0};
    if (steps == 0) return kt_ahead_nothing();
    ahead.pace = (bytes + (size_t)steps - 1) / (size_t)steps;
    return ahead;
}

/* Steps that the tiles take over one panel with all rows. Blocks have m / n_blocks rows or one more. */
static inline int64_t kt_walk_steps(const kt_gemm_walk *w) {
    const int64_t n = w->n_blocks, alone = n == 1 ? w->kind->alone_rows : 0,
                  full = alone ? alone : w->kind->full_rows;
    int64_t twice = 0;

    if (n && w->run == w->kind->run) twice = w->m / n > full ? n : w->m / n == full ? w->m % n : 0;
    return (n + twice) * (w->k / KT_TILE_STEP);
}

/* What to fetch of the weights while the current panel is worked on. */
static inline kt_tile_ahead kt_walk_ahead(const kt_gemm_walk *w) {
    int64_t steps = kt_walk_steps(w);
    int is_single_pass = w->run == w->kind->run && steps == w->k / KT_TILE_STEP;
    int is_alone = w->m > w->kind->full_rows && w->m <= w->kind->alone_rows;
    uintptr_t panel = (uintptr_t)w->panel, end = (uintptr_t)w->end;
    uintptr_t after = panel + w->panel_bytes < end ? panel + w->panel_bytes : w->next;

    if (is_single_pass && (w->prefetch || is_alone)) {
        const int64_t ahead = w->prefetch ? w->prefetch : KT_ALONE_AHEAD;
        kt_tile_ahead stream = {panel + (uintptr_t)ahead, end, w->next,
                                w->panel_bytes / (size_t)steps};
        return stream;
    }
    if (!after || (is_single_pass && after != w->next)) return kt_ahead_nothing();
    return kt_ahead_once(after, is_single_pass ? KT_NEXT_BYTES : w->panel_bytes, steps);
}

/* Of the block of rows after b, when all together do not stay in L2 until the next panel: bytes fetched
 * during one block. */
static inline kt_tile_ahead kt_gemm_rows_ahead(const kt_gemm_call *call, const kt_gemm_walk *w,
                                               int64_t b, int64_t steps) {
    int64_t row = kt_walk_row(w, b + 1), rows;

    if ((size_t)w->m * call->a_stride < KT_ROWS_IN_L2_BYTES) return kt_ahead_nothing();
    if (row == w->m) b = -1, row = 0;
    rows = kt_walk_row(w, b + 2) - row;
    return kt_ahead_once((uintptr_t)call->a + (size_t)row * call->a_stride,
                         (size_t)rows * call->a_stride, steps);
}

/* What a tile will write, fetched while it multiplies. */
static inline void kt_gemm_fetch_out(const kt_gemm_call *call, int64_t p, int64_t row, int rows) {
    const float *to = call->c + row * call->ldc + 64 * p;
    for (int r = 0; r < rows; r++, to += call->ldc)
        for (int j = 0; j < 64; j += 16) __builtin_prefetch(to + j, 1);
}

/* The walk over the call's first panel, which perhaps nothing has fetched: its first block has only as many rows as
 * read full lines. More rows read every other pair of lines, in which no prefetcher sees a stream
 * (w8c, six rows of one panel, Zen 4: 16 us instead of 7). */
static inline kt_gemm_walk kt_gemm_first_panel(kt_gemm_walk w) {
    const int64_t lead = w.kind->full_rows,
                  rows = w.n_blocks ? (w.m + w.n_blocks - 1) / w.n_blocks : 0;

    if (w.run != w.kind->run || !lead || w.m <= lead || w.m <= w.kind->alone_rows) return w;
    w.lead = lead;
    w.n_blocks = 1 + kt_walk_blocks(w.kind, w.m - lead, rows);
    return w;
}

/* What to fetch of the weights from block b of that panel on. The first block waits for memory, so it has memory to
 * itself; what comes next is fetched behind the others. */
static inline kt_tile_ahead kt_gemm_first_ahead(const kt_gemm_walk *w, int64_t b) {
    const uintptr_t panel = (uintptr_t)w->panel + w->panel_bytes;
    const uintptr_t after = panel < (uintptr_t)w->end ? panel : w->next;
    kt_gemm_walk rest = *w;

    if (b == 0 || !after) return kt_ahead_nothing();
    rest.m -= w->lead;
    rest.n_blocks--;
    return kt_ahead_once(after, w->panel_bytes, kt_walk_steps(&rest));
}

static inline void kt_p64_gemm_run(const kt_gemm_call *call, const kt_tile_kind *kind) {
    const kt_problem *q = call->problem;
    size_t first = (size_t)call->panel_begin * kt_p64_panel_bytes(kind->weights, q->k);
    int64_t n_panels = call->panel_end - call->panel_begin;
    kt_gemm_walk w = kt_walk_make(kind, call->config, q->k, call->m,
                                  (const uint8_t *)call->weights + first, n_panels, call->next);
    int64_t steps = kt_walk_steps(&w) / (w.n_blocks ? w.n_blocks : 1); /* of a block */
    _Alignas(64) float block[KT_MANY_ROWS * KT_TILE_WIDTH];
    const int is_near = kt_cpu_fetches_near();
    kt_tile t = {.k = q->k,
                 .c = block,
                 .scratch = call->scratch,
                 .is_near = is_near,
                 .is_panel_near = is_near,
                 .is_alone = w.n_blocks == 1};
    kt_gemm_walk others = w;

    w = kt_gemm_first_panel(w);
    for (int64_t p = call->panel_begin; p < call->panel_end; p++) {
        t.panel = w.panel;
        t.ahead = kt_walk_ahead(&w);
        for (int64_t b = 0; b < w.n_blocks; b++) {
            int64_t row = kt_walk_row(&w, b);
            t.rows = (int)(kt_walk_row(&w, b + 1) - row);
            if (w.lead && b < 2) t.ahead = kt_gemm_first_ahead(&w, b);
            t.rows_ahead = kt_gemm_rows_ahead(call, &w, b, steps);
            kt_gemm_fetch_out(call, p, row, t.rows);
            for (int r = 0; r < t.rows; r++)
                t.a[r] = (const uint8_t *)call->a + (size_t)(row + r) * call->a_stride;
            w.run(&t);
            for (int r = 0; r < t.rows; r++) {
                float *c = call->c + (row + r) * call->ldc + 64 * p;
                for (int j = 0; j < 64; j += 16) {
                    int64_t left = q->n - 64 * p - j;
                    __mmask16 in = kt_lanes512(left);
                    __m512 v = _mm512_load_ps(block + KT_TILE_WIDTH * r + j);
                    if (call->accumulate) v = _mm512_add_ps(_mm512_maskz_loadu_ps(in, c + j), v);
                    _mm512_mask_storeu_ps(c + j, in, v);
                }
            }
        }
        others.panel += w.panel_bytes;
        w = others;
    }
}

/* What kt_glu does before the sigmoid, whose argument is returned. The clamps' operand order lets
 * NaN through. */
KT_INLINE __m512 kt_glu_begin512(__m512 *g, __m512 *u, const kt_glu_rule *glu) {
    if (glu->kind != KT_GLU_SILU) {
        const __m512 limit = _mm512_set1_ps(glu->limit), low = _mm512_set1_ps(-glu->limit);
        *g = _mm512_min_ps(limit, *g);
        *u = _mm512_max_ps(low, _mm512_min_ps(limit, *u));
    }
    if (glu->kind != KT_GLU_OAI) return *g;
    *u = _mm512_add_ps(*u, _mm512_set1_ps(1.0f));
    return _mm512_mul_ps(*g, _mm512_set1_ps(glu->alpha));
}

/* Gate and up as kt_glu says. */
static inline __m512 kt_swiglu512(__m512 g, __m512 u, const kt_glu_rule *glu) {
    __m512 steep = kt_glu_begin512(&g, &u, glu);

    steep = kt_exp_ps512(_mm512_sub_ps(_mm512_setzero_ps(), steep));
    return _mm512_mul_ps(_mm512_div_ps(g, _mm512_add_ps(_mm512_set1_ps(1.0f), steep)), u);
}

/* Add the biases of panel p to `rows` rows of gate and up sums. */
static inline void kt_p64_add_bias512(const kt_moe_call *call, int64_t p, int rows, float *sums) {
    if (!call->gate_bias) return;
    for (int j = 0; j < 32; j += 16) {
        const __m512 g = _mm512_loadu_ps(call->gate_bias + 32 * p + j);
        const __m512 u = _mm512_loadu_ps(call->up_bias + 32 * p + j);
        for (int r = 0; r < rows; r++) {
            float *at = sums + KT_TILE_WIDTH * r + j;
            _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), g));
            _mm512_store_ps(at + 32, _mm512_add_ps(_mm512_load_ps(at + 32), u));
        }
    }
}

/* Encode the 32 channels of panel p into the row h of n inputs. */
static inline void kt_p64_store_channels(kt_act_format acts, __m512 x0, __m512 x1, uint8_t *h,
                                         int64_t n, int64_t p) {
    if (acts == KT_A_INT8_G32) {
        kt_a8_store_group512(x0, x1, (int8_t *)h + 32 * p, kt_a8_scales_mut(h, n) + p,
                             kt_a8_comps_mut(h, n) + p);
    } else if (acts == KT_A_INT8_G16P2) {
        kt_a8p_store_groups512(x0, x1, h, n, 2 * p);
    } else {
        _mm256_storeu_si256((__m256i *)(void *)(h + 64 * p), kt_bf16_round512(x0));
        _mm256_storeu_si256((__m256i *)(void *)(h + 64 * p + 32), kt_bf16_round512(x1));
    }
}

/* From 32 gate and 32 up sums. */
static inline void kt_p64_store_h(kt_act_format acts, const float *sums, uint8_t *h, int64_t n,
                                  int64_t p, const kt_glu_rule *glu) {
    const __m512 x0 = kt_swiglu512(_mm512_load_ps(sums), _mm512_load_ps(sums + 32), glu);
    const __m512 x1 = kt_swiglu512(_mm512_load_ps(sums + 16), _mm512_load_ps(sums + 48), glu);
    kt_p64_store_channels(acts, x0, x1, h, n, p);
}

/* The same for `rows` tile rows, their h rows h_stride bytes apart, several at once where that saves time. */
static inline void kt_p64_store_h_rows(kt_act_format acts, const float *sums, int rows, uint8_t *h,
                                       size_t h_stride, int64_t n, int64_t p,
                                       const kt_glu_rule *glu) {
    __m512 x[4][2];

    while (rows) {
        const int at_once = acts == KT_A_BF16 || rows == 1 ? 1
                            : rows >= 4                    ? 4
                            : acts == KT_A_INT8_G16P2      ? 2
                                                           : 1;
        if (at_once == 1) {
            kt_p64_store_h(acts, sums, h, n, p, glu);
        } else {
            for (int r = 0; r < at_once; r++) {
                const float *gate = sums + KT_TILE_WIDTH * r, *up = gate + 32;
                x[r][0] = kt_swiglu512(_mm512_load_ps(gate), _mm512_load_ps(up), glu);
                x[r][1] = kt_swiglu512(_mm512_load_ps(gate + 16), _mm512_load_ps(up + 16), glu);
            }
            if (acts == KT_A_INT8_G32)
                kt_a8_store_rows512(x, h, h_stride, n, p);
            else if (at_once == 2)
                kt_a8p_store_rows512(x, 2, h, h_stride, n, 2 * p);
            else
                kt_a8p_store_rows512(x, 4, h, h_stride, n, 2 * p);
        }
        rows -= at_once, sums += KT_TILE_WIDTH * at_once, h += h_stride * (size_t)at_once;
    }
}

/* acts: of the problem, as a constant. */
static inline void kt_p64_gate_up_run(const kt_moe_call *call, const kt_tile_kind *kind,
                                      const kt_act_format acts) {
    const kt_problem *q = call->problem;
    const int is_near = kt_cpu_fetches_near();
    kt_gemm_walk w = kt_walk_make(kind, call->config, q->k, call->m,
                                  kt_p64_gate_up(q, call->weights, call->panel_begin),
                                  call->panel_end - call->panel_begin, call->next);
    _Alignas(64) float block[KT_MANY_ROWS * KT_TILE_WIDTH];
    kt_tile t = {.k = q->k,
                 .c = block,
                 .scratch = call->scratch,
                 .rows_ahead = kt_ahead_nothing(),
                 .is_near = is_near,
                 .is_panel_near = is_near,
                 .is_alone = w.n_blocks == 1};

    for (int64_t p = call->panel_begin; p < call->panel_end; p++, w.panel += w.panel_bytes) {
        t.panel = w.panel;
        t.ahead = kt_walk_ahead(&w);
        for (int64_t b = 0; b < w.n_blocks; b++) {
            int64_t row = kt_walk_row(&w, b);
            t.rows = (int)(kt_walk_row(&w, b + 1) - row);
            for (int r = 0; r < t.rows; r++)
                t.a[r] = (const uint8_t *)call->a + (size_t)call->rows[row + r] * call->a_stride;
            w.run(&t);
            kt_p64_add_bias512(call, p, t.rows, block);
            kt_p64_store_h_rows(acts, block, t.rows,
                                (uint8_t *)call->h + (size_t)row * call->h_stride, call->h_stride,
                                q->n, p, &call->glu);
        }
    }
}

static inline void kt_p64_down_run(const kt_moe_call *call, const kt_tile_kind *kind) {
    const kt_problem *q = call->problem;
    const int is_near = kt_cpu_fetches_near();
    kt_gemm_walk w = kt_walk_make(kind, call->config, q->n, call->m,
                                  kt_p64_down(q, call->weights, call->panel_begin),
                                  call->panel_end - call->panel_begin, call->next);
    /* The rows of the next expert come after these. */
    size_t h_bytes = (size_t)call->m * call->h_stride;
    _Alignas(64) float block[KT_MANY_ROWS * KT_TILE_WIDTH];
    kt_tile t = {.k = q->n,
                 .c = block,
                 .scratch = call->scratch,
                 .is_near = is_near,
                 /* rows of down are short: L1 has room beside them */
                 .is_panel_near = is_near || w.n_blocks > 1,
                 .is_alone = w.n_blocks == 1,
                 .rows_ahead =
                     kt_ahead_once((uintptr_t)call->h + h_bytes, h_bytes,
                                   kt_walk_steps(&w) * (call->panel_end - call->panel_begin))};

    for (int64_t p = call->panel_begin; p < call->panel_end; p++, w.panel += w.panel_bytes) {
        t.panel = w.panel;
        t.ahead = kt_walk_ahead(&w);
        for (int64_t b = 0; b < w.n_blocks; b++) {
            int64_t row = kt_walk_row(&w, b);
            t.rows = (int)(kt_walk_row(&w, b + 1) - row);
            for (int r = 0; r < t.rows; r++) {
                const float *out = call->out + call->rows[row + r] * call->ldo + 64 * p;
                t.a[r] = (const uint8_t *)call->h + (size_t)(row + r) * call->h_stride;
                t.out[r] = out;
                for (int j = 0; j < 64 && w.run == kind->run; j += 16)
                    _mm_prefetch((const char *)(out + j), _MM_HINT_T0);
            }
            w.run(&t);
            for (int r = 0; r < t.rows; r++) {
                float *out = call->out + call->rows[row + r] * call->ldo + 64 * p;
                __m512 weight = _mm512_set1_ps(call->route_weight[row + r]);
                for (int j = 0; j < 64; j += 16) { /* hidden is a multiple of 32 */
                    __mmask16 in = 64 * p + j < q->k ? 0xffff : 0;
                    __m512 v = _mm512_load_ps(block + KT_TILE_WIDTH * r + j);
                    if (call->down_bias)
                        v = _mm512_add_ps(v,
                                          _mm512_maskz_loadu_ps(in, call->down_bias + 64 * p + j));
                    v = _mm512_fmadd_ps(weight, v, _mm512_maskz_loadu_ps(in, out + j));
                    _mm512_mask_storeu_ps(out + j, in, v);
                }
            }
        }
    }
}

#endif
