/* Products of 8-bit activations by weights of 8 or 4 bits, in the tiles of kt_dev_tiles.h: what
 * integers and E4M3 have in common. Both multiply 16 x 8 x 32 at once with the same fragments.
 *
 * A sum of a group's products is exact (integers) or short (E4M3, whose tensor cores add with few
 * bits); it is multiplied by both scales and added to the float sums, before the next group begins.
 * With weights per channel the scales come at the end: integers are summed over all k, E4M3 over
 * the inputs of a span, which is added in float. Else a stage's own
 * bytes are the step's scales of its rows, as floats, and of its columns, as the records have them.
 *
 * Codes of 4 bits are opened to 16 (q - 8) by one and-xor for four; the 16 is taken off the scale.
 *
 * Before including it a kernel defines
 *   KT_TILES_M, KT_TILES_N, KT_TILES_WARPS_M, KT_TILES_WARPS_N, KT_TILES_STAGES, KT_A8_FORMAT, or
 *                      KT_A8_BY_WARPS: they are the build constants, in the order of KT_A8_PARAMS
 *   KT_A8_BITS, KT_A8_GROUP   of the weights; group 0 = a scale per channel
 *   KT_A8_CODES_XOR    what 8-bit codes are turned by, to be multiplied as they are
 *   kt_a8_sum          type of the products' sums; KT_A8_ALL the array of kt_tile_sums of it
 *   KT_A8_SHORT        1 where products are added with few bits, 0 where they are exact
 *   KT_A8_ZERO, KT_A8_VALUE(c)   a group's empty sum, and the value of a sum as float
 *   KT_A8_MMA          the product; or KT_TILES_WIDE, and what that demands after it
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_A8_TILES_H
#define KT_DEV_A8_TILES_H

#ifdef KT_A8_BY_WARPS
#define KT_TILES_FULL
#define KT_TILES_M KT_CONSTANT(0)
#define KT_TILES_N KT_CONSTANT(1)
#define KT_TILES_WARPS_M KT_CONSTANT(2)
#define KT_TILES_WARPS_N KT_CONSTANT(3)
#define KT_TILES_STAGES KT_CONSTANT(4)
#define KT_A8_FORMAT KT_CONSTANT(5)
#endif
#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/a8_calls.h"
#include "kernels/cuda/kt_dev_weights.h"

/* Inputs of one scale of activations; how many of them a step has (0: the row is one), and how many
 * slices of 32 inputs each is. */
#define KT_A8_FOLD (KT_A8_GROUP == 128 && KT_A8_BITS == 8 ? 128 : 32)
#define KT_A8_FOLDS (KT_A8_GROUP ? 128 / KT_A8_FOLD : 0)
#define KT_A8_SLICES (KT_A8_FOLD / 32)
/* Slices whose fragments a thread has at a time: whole folds, and pairs, which 4 bits come in. */
#define KT_A8_SPAN (KT_A8_FOLDS == 1 ? 4 : 2)
/* Tiles of 16 rows whose fragments it has at a time: one where they are of four slices, which costs
 * more loads of b and saves the registers. */
#define KT_A8_ROWS (KT_A8_FOLDS == 1 ? 1 : KT_TILES_I)
/* Bytes of a step's scales of a row, and of a column: 4 have two steps where a step has 2. */
#define KT_A8_ROW_SCALES (KT_A8_FOLDS * 4)
#define KT_A8_COLUMN_SCALES (KT_A8_GROUP == 0 ? 0 : KT_A8_GROUP == 32 ? 8 : 4)
#define KT_A8_SCALES (KT_TILES_M * KT_A8_ROW_SCALES + KT_TILES_N * KT_A8_COLUMN_SCALES)
#define KT_TILES_B_BYTES (KT_A8_BITS * 16)
/* Products of warpgroups find the turned chunks by their addresses: stages begin at 1024 bytes. */
#ifdef KT_TILES_WIDE
#define KT_A8_ALIGN 1024
#else
#define KT_A8_ALIGN 128
#endif
#define KT_TILES_MORE ((KT_A8_SCALES + KT_A8_ALIGN - 1) / KT_A8_ALIGN * KT_A8_ALIGN)
#include "kernels/cuda/kt_dev_tiles.h"

/* ---- scales ---- */

/* Where those of a row, or of a column (halves side by side), are kept. */
KT_DEVICE uint32_t kt_a8_row_at(uint32_t stage, int row) {
    return stage + (uint32_t)(KT_TILES_OWN + row * KT_A8_ROW_SCALES);
}

KT_DEVICE uint32_t kt_a8_column_at(uint32_t stage, int column) {
    return stage +
           (uint32_t)(KT_TILES_OWN + KT_TILES_M * KT_A8_ROW_SCALES + column * KT_A8_COLUMN_SCALES);
}

/* Their bytes in memory. */
KT_DEVICE const float *kt_a8_row_scales(const kt_tile_operands *o, int row) {
    return o->a_scale + (int64_t)(o->a_row ? o->a_row[row] : row) * o->a_scales;
}

KT_DEVICE const uint8_t *kt_a8_column_scales(const kt_tile_operands *o, int half, int column) {
    return (half ? o->b[1] : o->b[0]) + (int64_t)column * o->b_pitch + o->b_scale;
}

/* Each i below n for one thread, of all threads together. Where registers are short it is a loop,
 * else so many conditions. */
#ifdef KT_TILES_FULL
#define KT_A8_EACH(i, n) for (int i = kt_thread(); i < (n); i += KT_TILES_THREADS)
#else
#define KT_A8_EACH(i, n)                                                                  \
    KT_UNROLL for (int first = 0; first < (n);                                            \
                   first += KT_TILES_THREADS) for (int i = first + kt_thread(), once = 1; \
                                                   once && i < (n); once = 0)
#endif

KT_DEVICE void kt_a8_fetch_row_scales(const kt_tile_operands *o, int step, uint32_t stage) {
    KT_A8_EACH(row, KT_TILES_M) {
        const int is_there = row < o->rows;
        const float *from = is_there ? kt_a8_row_scales(o, row) + step * KT_A8_FOLDS : o->a_scale;
        if (KT_A8_FOLDS == 1)
            kt_copy4(kt_a8_row_at(stage, row), from, is_there ? 4 : 0);
        else
            kt_copy16(kt_a8_row_at(stage, row), from, is_there ? 16 : 0);
    }
}

KT_DEVICE void kt_a8_fetch_column_scales(const kt_tile_operands *o, int step, uint32_t stage) {
    const int is_float = kt_weight_spec_of(KT_A8_FORMAT).scale == KT_TERM_F32;
    const int at = KT_A8_GROUP == 128 && !is_float ? step / 2 * 4 : step * KT_A8_COLUMN_SCALES;

    KT_A8_EACH(i, KT_TILES_N) {
        const int half = i >= KT_TILES_N / 2, column = i - half * (KT_TILES_N / 2);
        const int is_there = column < (half ? o->columns[1] : o->columns[0]);
        const uint8_t *from = is_there ? kt_a8_column_scales(o, half, column) + at : o->b[0];
        if (KT_A8_COLUMN_SCALES == 8)
            kt_copy8(kt_a8_column_at(stage, i), from, is_there ? 8 : 0);
        else
            kt_copy4(kt_a8_column_at(stage, i), from, is_there ? 4 : 0);
    }
}

KT_DEVICE void kt_tiles_fetch_own(const kt_tile_operands *o, int step, uint32_t stage) {
    if (!KT_A8_GROUP) return;
    kt_a8_fetch_row_scales(o, step, stage);
    kt_a8_fetch_column_scales(o, step, stage);
}

/* Of this thread's rows from tile `first` on, for the folds from `slice` on: [fold of the
 * span][i][the first, the second]. */
KT_DEVICE void kt_a8_load_row_scales(uint32_t stage, int slice, int first, float *scale) {
    KT_UNROLL
    for (int i = first * 2; i < (first + KT_A8_ROWS) * 2; i++) {
        const uint32_t at = kt_a8_row_at(stage, kt_tiles_row(i / 2, i % 2));
        float two[2];
        if (KT_A8_FOLDS == 1) {
            scale[i] = kt_float_bits(kt_shared_u32(at));
            continue;
        }
        kt_shared_f32x2(at + (uint32_t)slice * 4, two);
        scale[i] = two[0];
        scale[KT_TILES_MAX_I * 2 + i] = two[1];
    }
}

/* Of its columns of tiles j and j + 1: [fold of the span][4]. */
KT_DEVICE void kt_a8_load_column_scales(uint32_t stage, int step, int slice, int half, int j,
                                        float *scale) {
    const int term = kt_weight_spec_of(KT_A8_FORMAT).scale;
    const float unit = KT_A8_BITS == 4 ? 0.0625f : 1.0f;

    KT_UNROLL
    for (int m = 0; m < 4; m++) {
        const int column = half * (KT_TILES_N / 2) + kt_tiles_column(j + m / 2) + m % 2;
        const uint32_t word = kt_shared_u32(kt_a8_column_at(stage, column) +
                                            (KT_A8_GROUP == 32 ? (uint32_t)slice * 2 : 0));
        KT_UNROLL
        for (int f = 0; f < KT_A8_SPAN / KT_A8_SLICES; f++) {
            const int high = KT_A8_GROUP == 32 ? f : KT_A8_GROUP == 64 ? slice / 2 : step % 2;
            const uint32_t bits = term == KT_TERM_F32 ? word : high ? word >> 16 : word & 0xffffu;
            scale[f * 4 + m] = unit * kt_term_scale(term, bits, 0);
        }
    }
}

/* ---- products ---- */

/* Fragments of b of KT_A8_SPAN slices from `slice` on, of tiles j (words 0, 1) and j + 1. */
KT_DEVICE void kt_a8_load_b(uint32_t stage, int half, int j, int slice, uint32_t *b) {
    if (KT_A8_BITS == 8) {
        KT_UNROLL
        for (int s = 0; s < KT_A8_SPAN; s++) kt_tiles_load_b(stage, half, j, slice + s, b + s * 4);
        KT_UNROLL
        for (int i = 0; i < KT_A8_SPAN * 4; i++) b[i] ^= KT_A8_CODES_XOR;
        return;
    }
    KT_UNROLL
    for (int s = 0; s < KT_A8_SPAN; s += 2) { /* two slices of 16 bytes are a slice of 32 */
        uint32_t word[4];
        kt_tiles_load_b(stage, half, j, (slice + s) / 2, word);
        KT_UNROLL
        for (int i = 0; i < 4; i++) {
            uint32_t *to = b + (s + i % 2) * 4 + i / 2 * 2;
            to[0] = (word[i] << 4 & 0xf0f0f0f0u) ^ 0x80808080u;
            to[1] = (word[i] & 0xf0f0f0f0u) ^ 0x80808080u;
        }
    }
}

#ifndef KT_TILES_WIDE
/* Slices [first, first + n) of the span into tiles j and j + 1. */
KT_DEVICE void kt_a8_add(kt_a8_sum *c, const uint32_t *a, const uint32_t *b, int first, int n) {
    KT_UNROLL
    for (int s = first; s < first + n; s++) {
        const uint32_t *of = a + s * KT_TILES_MAX_I * 4;
        KT_A8_MMA(c, of, b[s * 4], b[s * 4 + 1]);
        KT_A8_MMA(c + 4, of, b[s * 4 + 2], b[s * 4 + 3]);
    }
}

/* The span of weights per channel. Integers are exact; tensor cores add E4M3 with few bits, so that
 * theirs begins from nothing. */
KT_DEVICE void kt_a8_add_span(kt_a8_sum *sum, const uint32_t *a, const uint32_t *b) {
    kt_a8_sum c[8];

    if (!KT_A8_SHORT) {
        kt_a8_add(sum, a, b, 0, KT_A8_SPAN);
        return;
    }
    KT_UNROLL
    for (int m = 0; m < 8; m++) c[m] = 0;
    kt_a8_add(c, a, b, 0, KT_A8_SPAN);
    KT_UNROLL
    for (int m = 0; m < 8; m++) sum[m] += c[m];
}

/* One fold: its products from nothing on, times both scales, into the float sums. */
KT_DEVICE void kt_a8_fold(float *sum, const uint32_t *a, const uint32_t *b, int fold,
                          const float *row_scale, const float *column_scale) {
    kt_a8_sum c[8];

    KT_UNROLL
    for (int m = 0; m < 8; m++) c[m] = KT_A8_ZERO;
    kt_a8_add(c, a, b, fold * KT_A8_SLICES, KT_A8_SLICES);
    KT_UNROLL
    for (int m = 0; m < 8; m++) {
        const float row = row_scale[fold * KT_TILES_MAX_I * 2 + m % 4 / 2];
        const float column = column_scale[fold * 4 + m / 4 * 2 + m % 2];
        sum[m] = kt_fma(KT_A8_VALUE(c[m]) * column, row, sum[m]);
    }
}

/* Rows i of tiles from `first` on, KT_A8_ROWS of them. */
KT_DEVICE void kt_a8_multiply_rows(uint32_t stage, int step, int slice, int first,
                                   kt_tile_sums *sum) {
    uint32_t a[4 * KT_TILES_MAX_I * 4], b[4 * 4];
    float row_scale[2 * KT_TILES_MAX_I * 2], column_scale[2 * 4];

    KT_UNROLL
    for (int s = 0; s < KT_A8_SPAN; s++) KT_UNROLL
    for (int i = first; i < first + KT_A8_ROWS; i++)
        kt_tiles_load_rows(stage, slice + s, i, a + (s * KT_TILES_MAX_I + i) * 4);
    if (KT_A8_FOLDS) kt_a8_load_row_scales(stage, slice, first, row_scale);
    KT_UNROLL
    for (int half = 0; half < 2; half++) KT_UNROLL
    for (int j = 0; j < KT_TILES_J; j += 2) {
        kt_a8_load_b(stage, half, j, slice, b);
        if (KT_A8_FOLDS) kt_a8_load_column_scales(stage, step, slice, half, j, column_scale);
        KT_UNROLL
        for (int i = first; i < first + KT_A8_ROWS; i++) {
            const int at = KT_TILES_SUM(i, half, j);
            if (!KT_A8_FOLDS) kt_a8_add_span(sum->KT_A8_ALL + at, a + i * 4, b);
            KT_UNROLL
            for (int f = 0; KT_A8_FOLDS && f < KT_A8_SPAN / KT_A8_SLICES; f++)
                kt_a8_fold(sum->f + at, a + i * 4, b, f, row_scale + i * 2, column_scale);
        }
    }
}

KT_DEVICE void kt_tiles_multiply(const kt_tile_operands *o, int step, uint32_t stage,
                                 kt_tile_sums *sum) {
    (void)o;
    KT_ROLLED /* unrolled, the scales of all would be kept in registers */
        for (int slice = 0; slice < 4; slice += KT_A8_SPAN)
            KT_UNROLL for (int first = 0; first < KT_TILES_I; first += KT_A8_ROWS)
                kt_a8_multiply_rows(stage, step, slice, first, sum);
}

#endif

/* Weights per channel: the scales of whole rows. */
KT_DEVICE void kt_a8_scale_sums(const kt_tile_operands *o, kt_tile_sums *sum) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_I; i++) KT_UNROLL
    for (int half = 0; half < 2; half++) KT_UNROLL
    for (int j = 0; j < KT_TILES_J; j++) KT_UNROLL
    for (int m = 0; m < 4; m++) {
        const int at = KT_TILES_SUM(i, half, j) + m, row = kt_tiles_row(i, m / 2);
        const int column = kt_tiles_column(j) + m % 2;
        float scale = 0;
        if (row < o->rows && column < o->columns[half])
            scale = *kt_a8_row_scales(o, row) *
                    kt_float_bits(*(const uint32_t *)kt_a8_column_scales(o, half, column));
        sum->f[at] = (float)sum->KT_A8_ALL[at] * scale;
    }
}

/* ---- entries ---- */

KT_DEVICE kt_moe_tile kt_a8_tile(const kt_a8_tiles *p) {
    kt_moe_tile t;

    if (p->tile) return p->tile[kt_block_y()];
    t.expert = 0;
    t.first = kt_block_y() * KT_TILES_M;
    t.rows = p->rows - t.first < KT_TILES_M ? p->rows - t.first : KT_TILES_M;
    return t;
}

/* Scales of a row of activations. */
KT_DEVICE int kt_a8_row_scale_count(int k) {
    return KT_A8_GROUP ? (k + 127) / 128 * KT_A8_FOLDS : 1;
}

/* Sums of rows of k inputs; columns of the halves from b[0] and b[1] on. */
KT_DEVICE void kt_a8_product(kt_tile_operands *o, int k, kt_tile_sums *sum) {
    const kt_weight_row at = kt_weight_row_of(KT_A8_FORMAT, k);

    o->a_bytes = k;
    o->b_bytes = (int)at.high;
    o->b_pitch = (int)at.bytes;
    o->b_scale = (int)at.scale;
    o->a_scales = kt_a8_row_scale_count(k);
    o->steps = (k + 127) / 128;
    kt_tiles_product(o, sum);
    if (!KT_A8_FOLDS) kt_a8_scale_sums(o, sum);
}

KT_DEVICE void kt_a8_gate_up(const kt_a8_tiles *p) {
    const kt_moe_tile t = kt_a8_tile(p);
    const int n0 = kt_block_x() * (KT_TILES_N / 2), left = p->n - n0;
    const int64_t at = (int64_t)t.expert * p->gate_bytes +
                       (int64_t)n0 * kt_weight_row_of(KT_A8_FORMAT, p->k).bytes;
    const int64_t first = p->row_token ? 0 : t.first;
    kt_tile_operands o;
    kt_tile_sums sum;

    if (t.rows <= 0) return; /* the grid may be larger than the list of tiles */
    o.a = p->x + first * p->k;
    o.a_scale = p->x_scale + first * kt_a8_row_scale_count(p->k);
    o.a_row = p->row_token ? p->row_token + t.first : 0;
    o.b[0] = p->gate + at;
    o.b[1] = p->up + at;
    o.rows = t.rows;
    o.columns[0] = o.columns[1] = left;
    kt_a8_product(&o, p->k, &sum);
    kt_tiles_put_glu(sum.f, &p->ending, kt_a8_tile(p).expert, t.rows, left, p->n, n0,
                     p->h + (int64_t)t.first * p->n + n0);
}

KT_DEVICE void kt_a8_down(const kt_a8_tiles *p) {
    const kt_moe_tile t = kt_a8_tile(p);
    const int n0 = kt_block_x() * KT_TILES_N, left = p->k - n0;
    const int64_t row = kt_weight_row_of(KT_A8_FORMAT, p->n).bytes;
    kt_tile_operands o;
    kt_tile_sums sum;

    if (t.rows <= 0) return;
    o.a = p->h8 + (int64_t)t.first * p->n;
    o.a_scale = p->h_scale + (int64_t)t.first * kt_a8_row_scale_count(p->n);
    o.a_row = 0;
    o.b[0] = p->down + (int64_t)t.expert * p->down_bytes + n0 * row;
    o.b[1] = o.b[0] + (left > KT_TILES_N / 2 ? KT_TILES_N / 2 : 0) * row;
    o.rows = t.rows;
    o.columns[0] = left;
    o.columns[1] = left - KT_TILES_N / 2;
    kt_a8_product(&o, p->n, &sum);
    kt_tiles_put_rows(sum.f, t.rows, left, kt_dev_bias(p->ending.down_bias, t.expert, p->k, n0),
                      p->route ? p->route + t.first : 0, p->y + (int64_t)t.first * p->ldy + n0,
                      p->ldy, p->accumulate);
}

#ifndef __CUDACC_RTC__
#ifdef KT_A8_BY_WARPS
static const int32_t kt_a8_bn[] = {64, 128};
/* All but the last, the format. */
#define KT_A8_PARAMS                                                                         \
    {"bm", kt_tiles_bm, 4, 64}, {"bn", kt_a8_bn, 2, 128}, {"warps_m", kt_tiles_warps, 3, 2}, \
        {"warps_n", kt_tiles_warps, 3, 2}, {                                                 \
        "stages", kt_tiles_stages, 3, 3                                                      \
    }
#endif

/* For descriptors whose parameters are KT_A8_PARAMS, then the format. */
static inline kt_tiles_shape kt_a8_shape(const kt_config *config) {
    const int32_t *v = config->value;
    const kt_weight_spec w = kt_weight_spec_of(v[5]);
    const int row = w.group == 0 ? 0 : w.group == 128 && w.low == 8 ? 4 : 16;
    const int column = w.group == 0 ? 0 : w.group == 32 ? 8 : 4;
    kt_tiles_shape s = {v[0], v[1], v[2], v[3], v[4], w.low * 16, 0, false};

    s.more = (v[0] * row + v[1] * column + KT_A8_ALIGN - 1) / KT_A8_ALIGN * KT_A8_ALIGN;
    return s;
}

static inline int kt_a8_threads(const kt_config *config) {
    return 32 * config->value[2] * config->value[3];
}

static inline size_t kt_a8_shared_bytes(const kt_config *config, int64_t k) {
    const kt_tiles_shape s = kt_a8_shape(config);
    (void)k;
    return kt_tiles_shared_bytes(&s);
}

static inline const char *kt_a8_refuse(const kt_config *config, const kt_cuda_target *target) {
    const kt_tiles_shape s = kt_a8_shape(config);
    return kt_tiles_refuse(&s, target);
}
#endif

#endif
