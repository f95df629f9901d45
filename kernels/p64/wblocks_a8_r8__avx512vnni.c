/* Blocks of 2 to 6 bits (K-quants, IQ4, Q4_0 to Q5_1, INT4 with and without zero points) times a8
 * activations on AVX-512 VNNI, for many rows: each panel is rounded once more to 8 bits
 * (kernels/formats/requant8.h), and the tile multiplies those. The order of work is that of
 * p64_ops512.h, what kernels of this kind share is in requant512.h.
 *
 * An exact tile (wkquants_a8, w4blocks_a8, w58blocks_a8) spends one or two operations on every
 * eight VPDPBUSD for scales and as many for minima or zero points on the same ports, unpacks codes
 * for every four rows on the others, and has 0.6 to 0.7 of the peak. Here a panel is unpacked once
 * per call, and the tile is that of w8c_a8: six rows, one FMA on every eight, 8/9 of the peak at
 * best.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/p64/blocks512.h"
#include "kernels/p64/p64_kernel.h"
#include "kernels/p64/requant512.h"
#include "kernels/p64/wide512.h"

/* --- widening -------------------------------------------------------------------------------- */

/* What belongs to the inputs from i on, a multiple of s.group or of 32. */
typedef struct fields {
    const uint8_t *head, *planes, *scales, *minima;
} fields;

KT_INLINE fields fields_at(const kt_p64_spec s, const uint8_t *panel, int64_t i) {
    const int in = (int)(i % s.span), run = in - in % kt_p64_run_inputs(s),
              group = (in - run) / s.group;
    fields f = {.head = panel + (size_t)(i / s.span) * kt_p64_block_bytes(s)};

    f.planes = f.head + kt_p64_run_at(s, run) + (size_t)((in - run) / 32) * kt_p64_plane_bytes(s);
    f.scales = f.head + kt_p64_scales_at(s, run);
    f.minima = f.scales + (size_t)(kt_p64_run_inputs(s) / s.group) * kt_p64_scale_bytes(s) +
               (size_t)group * kt_p64_minimum_bytes(s);
    f.scales += (size_t)group * kt_p64_scale_bytes(s);
    return f;
}

KT_INLINE __m512 scale_of(const kt_p64_spec s, const fields *f, int c) {
    if (!kt_blocks_is_integer(s)) return kt_blocks_float_scale(s, f->scales, c);
    return _mm512_mul_ps(_mm512_cvtepi32_ps(kt_blocks_integer_scale(s, f->scales, c)),
                         kt_load_f16x16(f->head + 32 * c));
}

/* What is to be added to a weight: exact, as scales are. */
KT_INLINE __m512 minimum_of(const kt_p64_spec s, const fields *f, int c) {
    const __m512 minimum = kt_blocks_minimum(s, f->scales, f->minima, c);
    if (s.minimum == KT_P64_MIN_F16) return minimum;
    return _mm512_fnmadd_ps(minimum, kt_blocks_minimum_factor(f->head, c), _mm512_setzero_ps());
}

/* The largest weight that scales and minima of 16 panel rows allow in inputs [i, end). Magnitudes
 * order like integers, with NaN on top. */
KT_INLINE __m512 largest_of(const kt_p64_spec s, const uint8_t *panel, int64_t i, int64_t end,
                            int c) {
    const __m512 low = _mm512_set1_ps((float)kt_r8_lowest(s, s.offset));
    const __m512 high = _mm512_set1_ps((float)kt_r8_highest(s, s.offset));
    __m512i most = _mm512_setzero_si512();

    KT_ROLLED for (; i < end; i += s.group) {
        const fields f = fields_at(s, panel, i);
        const __m512 scale = scale_of(s, &f, c);
        __m512 first, last;
        if (s.minimum == KT_P64_MIN_ZERO) {
            const __m512 zero = _mm512_cvtepi32_ps(kt_load_u8x16(f.minima + 16 * c));
            first = _mm512_mul_ps(scale, zero);
            last = _mm512_mul_ps(scale, _mm512_sub_ps(high, zero));
        } else if (kt_blocks_has_minimum(s)) {
            const __m512 minimum = minimum_of(s, &f, c);
            first = _mm512_fmadd_ps(scale, low, minimum);
            last = _mm512_fmadd_ps(scale, high, minimum);
        } else {
            first = _mm512_mul_ps(scale, low);
            last = _mm512_mul_ps(scale, high);
        }
        most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(first)));
        most = _mm512_max_epi32(most, _mm512_castps_si512(_mm512_abs_ps(last)));
    }
    return _mm512_castsi512_ps(most);
}

/* Words that make bytes of codes: code * ratio + base, of which bytes are the upper halves. */
typedef struct words {
    __m512i ratio, base;
} words;

KT_INLINE words words_of(const kt_p64_spec s, const fields *f, __m512 factor, int c) {
    words w = {.base = _mm512_set1_epi16((int16_t)(128 * 256 + 128))};
    __m512i offset = _mm512_set1_epi16((int16_t)kt_blocks_offset(s));

    w.ratio = kt_r8_words(_mm512_mul_ps(scale_of(s, f, c), factor));
    if (s.minimum == KT_P64_MIN_ZERO) {
        offset = kt_load_u8x16(f->minima + 16 * c);
        offset = _mm512_or_si512(offset, _mm512_slli_epi32(offset, 16));
    }
    w.base = _mm512_sub_epi16(w.base, _mm512_mullo_epi16(w.ratio, offset));
    if (kt_blocks_has_minimum(s))
        w.base = _mm512_add_epi16(w.base, kt_r8_words(_mm512_mul_ps(minimum_of(s, f, c), factor)));
    return w;
}

/* A quad of 16 rows. */
KT_INLINE __m512i rounded(__m512i codes, const words *w) {
    const __m512i even = _mm512_and_si512(codes, _mm512_set1_epi16(255));
    const __m512i odd = _mm512_srli_epi16(codes, 8);

    return kt_r8_bytes(_mm512_add_epi16(_mm512_mullo_epi16(even, w->ratio), w->base),
                       _mm512_add_epi16(_mm512_mullo_epi16(odd, w->ratio), w->base));
}

/* 32 inputs from i on of 16 panel rows, to quads of 256 bytes. */
KT_INLINE void widen_unit(const kt_p64_spec s, const uint8_t *panel, int64_t i, int c,
                          __m512 factor, uint8_t *to) {
    const __m512i table = kt_blocks_table(s);
    const int halves = kt_blocks_halves(s);
    const uint8_t *high, *low;
    fields f = fields_at(s, panel, i);
    words w[2];

    high = f.planes + 64 * c;
    low = high + 256 * s.high;
    KT_EACH (h, halves) {
        w[h] = words_of(s, &f, factor, c);
        f.scales += kt_p64_scale_bytes(s);
        f.minima += kt_p64_minimum_bytes(s);
    }
    KT_EACH (j, s.low) {
        const __m512i line = _mm512_load_si512(low + 256 * j);
        KT_EACH (t, 8 / s.low) {
            const int o = j + s.low * t, h = halves == 2 && o >= 4;
            const __m512i codes = kt_blocks_codes(s, line, high, o, table);
            _mm512_store_si512(to + 256 * o, rounded(codes, &w[h]));
        }
    }
}

KT_INLINE int64_t block_end(int64_t k, int64_t i) {
    return k - i < KT_R8_BLOCK ? k : i + KT_R8_BLOCK;
}

/* Factors and multipliers of all blocks (kt_r8_steps). */
KT_INLINE void open_steps(const kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *steps) {
    KT_ROLLED for (int c = 0; c < 4; c++) {
        uint8_t *at = steps + 64 * c;
        __m512 row = _mm512_setzero_ps();
        for (int64_t i = 0; i < k; i += KT_R8_BLOCK, at += KT_R8_STEP_BYTES) {
            const __m512 most = largest_of(s, panel, i, block_end(k, i), c);
            row = _mm512_max_ps(row, most);
            _mm512_store_ps(at, most);
        }
        kt_r8_steps(steps + 64 * c, kt_r8_blocks(k), row);
    }
}

/* The block from i on, whose factors are at `steps`. */
KT_INLINE void open_block(const kt_p64_spec s, const uint8_t *panel, int64_t k, int64_t i,
                          const uint8_t *steps, uint8_t *out) {
    KT_ROLLED for (int c = 0; c < 4; c++) {
        const __m512 factor = _mm512_load_ps(steps + 64 * c);
        KT_ROLLED for (int64_t at = i; at < block_end(k, i); at += 32)
            widen_unit(s, panel, at, c, factor, out + 64 * (at - i) + 64 * c);
    }
}

/* kt_r8_panel; after the bytes come kt_r8_steps. */
KT_INLINE void widen(const kt_p64_spec s, const uint8_t *panel, int64_t k, uint8_t *out) {
    const uint8_t *steps = out + 64 * k;

    open_steps(s, panel, k, out + 64 * k);
    for (int64_t i = 0; i < k; i += KT_R8_BLOCK, steps += KT_R8_STEP_BYTES)
        open_block(s, panel, k, i, steps, out + 64 * i);
}

/* --- the tile -------------------------------------------------------------------------------- */

/* sum += dot * the row's scale of its group, read where it is wanted. */
KT_INLINE __m512 joined(__m512 sum, __m512i dot, const uint8_t *scale) {
    typedef float word __attribute__((may_alias, aligned(1)));
    const __m512 part = _mm512_cvtepi32_ps(dot);

    __asm__ volatile("vfmadd231ps %2%{1to16%}, %1, %0"
                     : "+v"(sum)
                     : "v"(part), "m"(*(const word *)(const void *)scale));
    return sum;
}

/* 32 inputs from i on. What the group before came to, whose scales are at `before`, joins the sums
 * when a row's new group begins, a quad of all other rows after its last product: nothing that
 * waits for its operands then takes room in the schedulers from the products behind it. */
KT_INLINE void group(const uint8_t *const a[KT_TILE_ROWS], int64_t k, int64_t i, int64_t before,
                     const uint8_t *w, const int rows, const int cols, __m512i dot[KT_TILE_ROWS][4],
                     __m512 sum[KT_TILE_ROWS][4]) {
    __m512i u[4];

    KT_IN_ORDER();
    KT_EACH (c, cols) u[c] = _mm512_load_si512(w + 64 * c);
    KT_EACH (r, rows) {
        const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i));
        __m512i comp = _mm512_set1_epi32(kt_load_i32(a[r] + k + k / 8 + i / 8));
        comp = _mm512_slli_epi32(comp, 4); /* stored for code + 8 */
        KT_EACH (c, cols) sum[r][c] = joined(sum[r][c], dot[r][c], a[r] + before);
        KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(comp, u[c], q);
        KT_IN_ORDER();
    }
    KT_ROLLED for (int j = 1; j < 8; j++) {
        KT_IN_ORDER();
        KT_EACH (c, cols) u[c] = _mm512_load_si512(w + 256 * j + 64 * c);
        KT_EACH (r, rows) {
            const __m512i q = _mm512_set1_epi32(kt_load_i32(a[r] + i + 4 * j));
            KT_EACH (c, cols) dot[r][c] = kt_dpbusd512(dot[r][c], u[c], q);
        }
    }
}

KT_INLINE void tile(kt_tile *t, const int rows, const int cols, const int col) {
    const int64_t k = t->k;
    const uint8_t *w = t->scratch + 64 * col, *steps = t->scratch + 64 * (k + 4 + col);
    const uint8_t *ended = steps; /* of the block before; sums of the first's are zero */
    const uint8_t *a[KT_TILE_ROWS];
    __m512 sum[KT_TILE_ROWS][4];
    __m512i dot[KT_TILE_ROWS][4];
    int64_t before = k; /* any group's: nothing joins at first */

    KT_EACH (r, rows) {
        a[r] = t->a[r];
        KT_EACH (c, cols) {
            sum[r][c] = _mm512_setzero_ps();
            dot[r][c] = _mm512_setzero_si512();
        }
    }
    for (int64_t i = 0; i < k;) {
        const int64_t last = block_end(k, i) - 32;
        kt_tile_fetch_far(t);
        group(a, k, i, before, w, rows, cols, dot, sum);
        kt_r8_next_block(ended, rows, cols, sum);
        ended = steps;
        steps += KT_R8_STEP_BYTES;
        KT_ROLLED while (i < last) {
            before = k + i / 8;
            i += 32, w += KT_P64_CODES8_BYTES;
            kt_tile_fetch_far(t);
            group(a, k, i, before, w, rows, cols, dot, sum);
        }
        before = k + i / 8;
        i += 32, w += KT_P64_CODES8_BYTES;
    }
    KT_EACH (r, rows) {
        KT_EACH (c, cols) sum[r][c] = joined(sum[r][c], dot[r][c], a[r] + before);
    }
    kt_r8_next_block(ended, rows, cols, sum);
    KT_EACH (r, rows) {
        KT_EACH (c, cols) _mm512_store_ps(t->c + KT_TILE_WIDTH * r + 16 * (col + c), sum[r][c]);
    }
}

KT_R8_MULTIPLY(tile)

/* --- three rows by 64 outputs ---------------------------------------------------------------- */

/* Block by block in L1 (wide512.h), with the bits of the tile above: sums are in units of the
 * present block's step. */
typedef void open_run(const uint8_t *panel, int64_t k, int64_t i, uint8_t *steps, uint8_t *out);

static __attribute__((noinline)) void chunk_rows(kt_tile *t, kt_wide_span *chunk) {
    kt_wide_chunk(t, chunk, 0);
}

static void many_rows(kt_tile *t, open_run *open) {
    const uintptr_t rows_pace = t->rows_ahead.pace;
    uint8_t *codes = t->scratch, *steps = t->scratch + 64 * block_end(t->k, 0);
    kt_wide_span chunk = {.w = codes, .multipliers = steps + 256};

    kt_wide_set_paces(t);
    for (; chunk.i < t->k; chunk.i += KT_R8_BLOCK, chunk.multipliers += KT_R8_STEP_BYTES) {
        chunk.groups = (int)(block_end(t->k, chunk.i) - chunk.i) / 32;
        open(t->panel, t->k, chunk.i, steps, codes);
        chunk_rows(t, &chunk);
    }
    if (t->rows_ahead.pace) t->rows_ahead.pace = rows_pace; /* goes on with the next panel */
}

/* A format: the tile above, and this one. */
#define FORMAT(id, word)                                                                       \
    KT_R8_TILE(id, word)                                                                       \
    static void open_##word(const uint8_t *panel, int64_t k, int64_t i, uint8_t *steps,        \
                            uint8_t *out) {                                                    \
        const kt_p64_spec s = kt_p64_spec_of(KT_W_##id);                                       \
        if (i == 0) open_steps(s, panel, k, steps);                                            \
        open_block(s, panel, k, i, steps + KT_R8_STEP_BYTES * (size_t)(i / KT_R8_BLOCK), out); \
    }                                                                                          \
    static void many_##word(kt_tile *t) {                                                      \
        many_rows(t, open_##word);                                                             \
    }
#define KIND(id, word) \
    { run_##word, KT_W_##id, 0, many_##word, 0, 0 }

FORMAT(INT4_G32, w4g32)
FORMAT(INT4_G64, w4g64)
FORMAT(INT4_G128, w4g128)
FORMAT(INT4Z_G32, w4zg32)
FORMAT(INT4Z_G64, w4zg64)
FORMAT(INT4Z_G128, w4zg128)
FORMAT(Q4_0, q4_0)
FORMAT(Q4_1, q4_1)
FORMAT(Q5_0, q5_0)
FORMAT(Q5_1, q5_1)
FORMAT(IQ4_NL, iq4_nl)
FORMAT(Q2_K, q2_k)
FORMAT(Q3_K, q3_k)
FORMAT(Q4_K, q4_k)
FORMAT(Q5_K, q5_k)
FORMAT(Q6_K, q6_k)
FORMAT(IQ4_XS, iq4_xs)

static const kt_tile_kind kinds[] = {
    KIND(INT4_G32, w4g32),   KIND(INT4_G64, w4g64),   KIND(INT4_G128, w4g128),
    KIND(INT4Z_G32, w4zg32), KIND(INT4Z_G64, w4zg64), KIND(INT4Z_G128, w4zg128),
    KIND(Q4_0, q4_0),        KIND(Q4_1, q4_1),        KIND(Q5_0, q5_0),
    KIND(Q5_1, q5_1),        KIND(IQ4_NL, iq4_nl),    KIND(Q2_K, q2_k),
    KIND(Q3_K, q3_k),        KIND(Q4_K, q4_k),        KIND(Q5_K, q5_k),
    KIND(Q6_K, q6_k),        KIND(IQ4_XS, iq4_xs),
};

static const int32_t rows[] = {4, 6};
static const int32_t prefetch[] = {0}; /* the whole next panel, always */
static const int32_t many[] = {0, 16, 64};
static const kt_param params[] = {
    {"rows", rows, 2, 6}, {"prefetch", prefetch, 1, 0}, {"many", many, 3, 0}};

static const kt_tile_kind *kind(const kt_problem *problem) {
    return kt_kind_of(kinds, sizeof kinds / sizeof *kinds, problem->weights);
}

static void gemm(const kt_gemm_call *call) {
    kt_p64_gemm_run(call, kind(call->problem));
}

static void gate_up(const kt_moe_call *call) {
    kt_p64_gate_up_run(call, kind(call->problem), KT_A_INT8_G32);
}

static void down(const kt_moe_call *call) {
    kt_p64_down_run(call, kind(call->problem));
}

KT_P64_KERNEL(wblocks_a8_r8, avx512vnni, 2, 2,
              .weights = KT_W_BIT(KT_W_INT4_G32) | KT_W_BIT(KT_W_INT4_G64) |
                         KT_W_BIT(KT_W_INT4_G128) | KT_W_BIT(KT_W_INT4Z_G32) |
                         KT_W_BIT(KT_W_INT4Z_G64) | KT_W_BIT(KT_W_INT4Z_G128) |
                         KT_W_BIT(KT_W_Q4_0) | KT_W_BIT(KT_W_Q4_1) | KT_W_BIT(KT_W_Q5_0) |
                         KT_W_BIT(KT_W_Q5_1) | KT_W_BIT(KT_W_IQ4_NL) | KT_W_BIT(KT_W_Q2_K) |
                         KT_W_BIT(KT_W_Q3_K) | KT_W_BIT(KT_W_Q4_K) | KT_W_BIT(KT_W_Q5_K) |
                         KT_W_BIT(KT_W_Q6_K) | KT_W_BIT(KT_W_IQ4_XS),
              .acts = 1u << KT_A_INT8_G32, .isa = KT_ISA_AVX512VNNI, .numerics = KT_NUM_REQUANT,
              .bits = "a8-requant", .rank = 1, .params = params, .n_params = 3,
              .accepts = kt_p64_accepts_widened, .workspace_bytes = kt_r8_workspace_bytes);
