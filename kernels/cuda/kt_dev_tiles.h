/* Tiles of a grouped matrix product on tensor cores: the pipeline that all formats share.
 *
 * Rows of `a` (tokens sorted by expert) times rows of `b` (outputs of a weight matrix). A block
 * makes a tile of KT_TILES_M rows by KT_TILES_N columns, in two halves of columns that may come
 * from two matrices (gate and up). Bytes come to shared memory by asynchronous copies,
 * KT_TILES_STAGES deep: of every row of `a` 128 bytes a step, of every row of `b` as many as belong
 * to the same inputs (less when weights have fewer bits). A 16-byte chunk at offset x of a matrix
 * lies at x ^ (x / 128 % 8) * 16, which keeps ldmatrix free of bank conflicts.
 *
 * Before including it a kernel defines
 *   KT_TILES_M, KT_TILES_N, KT_TILES_WARPS_M, KT_TILES_WARPS_N, KT_TILES_STAGES
 *   KT_TILES_B_BYTES   of a row of b in a step: 32, 64 or 128
 *   KT_TILES_FULL      if its products leave no registers for the addresses of copies
 *   KT_TILES_MORE      bytes of a stage behind its two matrices, which are the kernel's own: a
 *                      multiple of 128
 *   KT_TILES_WIDE      if its products are those of warpgroups (kt_dev_wgmma.h)
 * and after it the functions that are declared here without a body, which kt_tiles_product calls.
 * The kernel's descriptor uses kt_tiles_refuse and kt_tiles_shared_bytes.
 *
 * Sums are kept per thread. Tile (i, j) of 16 rows by 8 columns of a half has its four at
 * KT_TILES_SUM(i, half, j); they lie at rows kt_tiles_row(i, 0 and 1), columns kt_tiles_column(j)
 * and the one after it: two of the first row, then two of the second.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_TILES_H
#define KT_DEV_TILES_H

#include "kernels/cuda/kt_dev.h"
#include "kernels/cuda/kt_dev_glu.h"

/* What shows copies to who multiplies; nothing for products of warps. */
#ifndef KT_TILES_FENCE
#define KT_TILES_FENCE() (void)0
#endif
#define KT_TILES_THREADS (32 * KT_TILES_WARPS_M * KT_TILES_WARPS_N)
#define KT_TILES_I (KT_TILES_M / KT_TILES_WARPS_M / 16)    /* tiles of 16 rows, of a warp */
#define KT_TILES_J (KT_TILES_N / 2 / KT_TILES_WARPS_N / 8) /* of 8 columns, of a warp and half */
#define KT_TILES_SUM(i, half, j) ((((i)*2 + (half)) * KT_TILES_J + (j)) * 4)
/* Offsets in a stage of b and of the kernel's own bytes, and a stage's size. */
#define KT_TILES_B (KT_TILES_M * 128)
#define KT_TILES_OWN (KT_TILES_B + KT_TILES_N * KT_TILES_B_BYTES)
#define KT_TILES_STAGE (KT_TILES_OWN + KT_TILES_MORE)
/* Rows of a that a thread copies a chunk of in a step. */
#define KT_TILES_ROWS (KT_TILES_M * 8 / KT_TILES_THREADS)
enum { KT_TILES_MAX_SUMS = 128, KT_TILES_MAX_I = 8, KT_TILES_MAX_ROWS = 32 };
KT_REQUIRE(KT_TILES_M * 8 % KT_TILES_THREADS == 0 && KT_TILES_ROWS <= KT_TILES_MAX_ROWS, "copies");
KT_REQUIRE(KT_TILES_M % (16 * KT_TILES_WARPS_M) == 0, "whole tiles of 16 rows for every warp");
KT_REQUIRE(KT_TILES_N / 2 % (16 * KT_TILES_WARPS_N) == 0, "pairs of tiles of 8 columns");
KT_REQUIRE(KT_TILES_M *KT_TILES_N / KT_TILES_THREADS <= KT_TILES_MAX_SUMS, "sums");
KT_REQUIRE(KT_TILES_STAGES >= 2, "stages");

/* What a block multiplies. All addresses are aligned to 16 bytes, and so are the bytes of a row. */
typedef struct kt_tile_operands {
    const uint8_t *a, *b[2];
    const int32_t *a_row; /* NULL: row i of the tile is row i of a */
    int rows, columns[2]; /* that exist: of the tile, of each half (may be negative) */
    int a_bytes;          /* of a row of a */
    int b_bytes, b_pitch; /* of a row of b: to be multiplied; from a row to the next */
    int steps;            /* of 128 bytes of a; what they would read behind a row is zeros */
    /* For the kernel's own bytes: scales of the rows of a, `a_scales` a row, and where those of a
     * row of b begin in it. */
    const float *a_scale;
    int a_scales, b_scale;
} kt_tile_operands;

/* Rows of a (bfloat16, k inputs) times rows of weights from b0 and, for the second half of the
 * columns, b1: bfloat16, or records of any format, which are opened to it. */
KT_DEVICE kt_tile_operands kt_tiles_operands(const uint16_t *a, const int32_t *a_row, int rows,
                                             int k, const uint8_t *b0, int columns0,
                                             const uint8_t *b1, int columns1) {
    kt_tile_operands o;

    o.a = (const uint8_t *)a, o.a_row = a_row, o.rows = rows, o.a_bytes = k * 2;
    o.b[0] = b0, o.b[1] = b1, o.columns[0] = columns0, o.columns[1] = columns1;
    o.b_bytes = o.b_pitch = k * 2, o.steps = (k + 63) / 64;
    o.a_scale = 0, o.a_scales = 0, o.b_scale = 0;
    return o;
}

/* What a thread sums: floats, and whole numbers where the kernel wants them. */
typedef struct kt_tile_sums {
    float f[KT_TILES_MAX_SUMS];
    int32_t i[KT_TILES_MAX_SUMS];
} kt_tile_sums;

/* The kernel's: asynchronous copies (kt_copy*) of `step` into the own bytes of a stage. Stages are
 * offsets into shared memory. */
KT_DEVICE void kt_tiles_fetch_own(const kt_tile_operands *o, int step, uint32_t stage);

/* Offset of the chunk at `offset` (a multiple of 16) of a matrix in shared memory. */
KT_DEVICE uint32_t kt_tiles_turned(int offset) {
    return (uint32_t)(offset ^ ((offset >> 7 & 7) << 4));
}

/* The first row, or column of a half, of this warp. */
KT_DEVICE int kt_tiles_warp_row(void) {
    return kt_warp() / KT_TILES_WARPS_N * (KT_TILES_M / KT_TILES_WARPS_M);
}
KT_DEVICE int kt_tiles_warp_column(void) {
    return kt_warp() % KT_TILES_WARPS_N * (KT_TILES_N / 2 / KT_TILES_WARPS_N);
}

/* Where this thread's sums lie: in the tile, and in a half. */
KT_DEVICE int kt_tiles_row(int i, int down8) {
    return kt_tiles_warp_row() + i * 16 + down8 * 8 + kt_lane() / 4;
}
KT_DEVICE int kt_tiles_column(int j) {
    return kt_tiles_warp_column() + j * 8 + kt_lane() % 4 * 2;
}

/* ---- copies ---- */

/* A thread copies the same chunk of rows that lie KT_TILES_THREADS / 8 apart, so that from one copy
 * to the next nothing changes but the row. These are the rows' numbers in a, the first one's where
 * there is none: nothing is read of it, but its address is one. */
typedef struct kt_tile_rows {
    int32_t at[KT_TILES_MAX_ROWS];
} kt_tile_rows;

KT_DEVICE kt_tile_rows kt_tiles_rows(const kt_tile_operands *o) {
    kt_tile_rows r;

    KT_UNROLL
    for (int i = 0; i < KT_TILES_ROWS; i++) {
        const int row = kt_thread() / 8 + i * (KT_TILES_THREADS / 8);
        const int there = row < o->rows ? row : 0;
        r.at[i] = o->a_row ? o->a_row[there] : there;
    }
    return r;
}

#ifndef KT_TILES_FULL
/* Where chunk `first` + the thread's number lies. Every 64 chunks are turned alike. */
KT_DEVICE uint32_t kt_tiles_chunk(int first) {
    if (KT_TILES_THREADS % 64 == 0) return kt_tiles_turned(kt_thread() * 16) + (uint32_t)first * 16;
    return kt_tiles_turned((kt_thread() + first) * 16);
}

KT_DEVICE void kt_tiles_fetch_a(const kt_tile_operands *o, const kt_tile_rows *r, int step,
                                uint32_t stage) {
    const int at = step * 128 + kt_thread() % 8 * 16;
    const uint8_t *a = o->a + (at < o->a_bytes ? at : 0);

    KT_UNROLL
    for (int i = 0; i < KT_TILES_ROWS; i++) {
        const int row = kt_thread() / 8 + i * (KT_TILES_THREADS / 8);
        const int valid = row < o->rows && at < o->a_bytes;
        kt_copy16(stage + kt_tiles_chunk(i * KT_TILES_THREADS), a + (int64_t)r->at[i] * o->a_bytes,
                  valid ? 16 : 0);
    }
}

/* `together` rows of b at a time, of one half. Behind a row's bytes its first ones come again: what
 * they meet of a is zeros. */
KT_DEVICE void kt_tiles_fetch_b(const kt_tile_operands *o, int step, uint32_t stage) {
    const int is_copied = KT_TILES_B_BYTES > 0, chunks = is_copied ? KT_TILES_B_BYTES / 16 : 1;
    const int together = KT_TILES_THREADS / chunks;
    const int at = step * KT_TILES_B_BYTES + kt_thread() % chunks * 16;
    const int inside = at < o->b_bytes ? at : 0;

    KT_UNROLL
    for (int first = 0; first < KT_TILES_N * is_copied; first += together) {
        const int half = first >= KT_TILES_N / 2;
        const int column = first - half * (KT_TILES_N / 2) + kt_thread() / chunks;
        const int is_there = column < (half ? o->columns[1] : o->columns[0]);
        const uint8_t *b = (half ? o->b[1] : o->b[0]) + inside;
        kt_copy16(stage + (uint32_t)KT_TILES_B + kt_tiles_chunk(first * chunks),
                  b + (int64_t)(is_there ? column : 0) * o->b_pitch, is_there ? 16 : 0);
    }
}

#else
/* Products that leave no registers for copies: addresses are made anew for each chunk. */
KT_DEVICE void kt_tiles_fetch_a(const kt_tile_operands *o, const kt_tile_rows *r, int step,
                                uint32_t stage) {
    (void)r;
    KT_ROLLED
    for (int i = kt_thread(); i < KT_TILES_M * 8; i += KT_TILES_THREADS) {
        const int row = i / 8, at = step * 128 + i % 8 * 16;
        const int valid = row < o->rows && at < o->a_bytes;
        const int64_t from =
            valid ? (int64_t)(o->a_row ? o->a_row[row] : row) * o->a_bytes + at : 0;
        kt_copy16(stage + kt_tiles_turned(i * 16), o->a + from, valid ? 16 : 0);
    }
}

KT_DEVICE void kt_tiles_fetch_b(const kt_tile_operands *o, int step, uint32_t stage) {
    KT_ROLLED
    for (int i = kt_thread(); i < KT_TILES_N * KT_TILES_B_BYTES / 16; i += KT_TILES_THREADS) {
        const int row = i / (KT_TILES_B_BYTES / 16), half = row >= KT_TILES_N / 2;
        const int column = row - half * (KT_TILES_N / 2);
        const int at = step * KT_TILES_B_BYTES + i % (KT_TILES_B_BYTES / 16) * 16;
        const int valid = column < (half ? o->columns[1] : o->columns[0]) && at < o->b_bytes;
        const int64_t from = valid ? (int64_t)column * o->b_pitch + at : 0;
        kt_copy16(stage + (uint32_t)KT_TILES_B + kt_tiles_turned(i * 16),
                  (half ? o->b[1] : o->b[0]) + from, valid ? 16 : 0);
    }
}

#endif

KT_DEVICE void kt_tiles_fetch(const kt_tile_operands *o, const kt_tile_rows *r, int step,
                              uint32_t stage) {
    kt_tiles_fetch_a(o, r, step, stage);
    kt_tiles_fetch_b(o, step, stage);
    kt_tiles_fetch_own(o, step, stage);
}

/* ---- fragments ---- */

/* Fragments of a, of the warp's 16 rows i, of the 32 bytes `slice` (0 to 3) of a step: 4 words. */
KT_DEVICE void kt_tiles_load_rows(uint32_t stage, int slice, int i, uint32_t *a) {
    const int row = kt_tiles_warp_row() + i * 16 + (kt_lane() & 15);

    kt_ldmatrix(a, stage + kt_tiles_turned(row * 128 + slice * 32 + (kt_lane() >> 4) * 16));
}

/* Those of all of the warp's rows: 4 words for each tile of 16 rows. */
KT_DEVICE void kt_tiles_load_a(uint32_t stage, int slice, uint32_t *a) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_I; i++) kt_tiles_load_rows(stage, slice, i, a + i * 4);
}

/* Fragments of b, of tiles j and j + 1 of a half: words 0 and 1 of the one, 2 and 3 of the other,
 * of the 32 bytes `slice` of a row's step. */
KT_DEVICE void kt_tiles_load_b(uint32_t stage, int half, int j, int slice, uint32_t *b) {
    const int column = half * (KT_TILES_N / 2) + kt_tiles_warp_column() + j * 8 + (kt_lane() & 7) +
                       (kt_lane() >> 4 << 3);

    kt_ldmatrix(
        b, stage + (uint32_t)KT_TILES_B +
               kt_tiles_turned(column * KT_TILES_B_BYTES + slice * 32 + (kt_lane() >> 3 & 1) * 16));
}

/* ---- products ---- */

KT_DEVICE uint32_t kt_tiles_stage(int step) {
    return (uint32_t)(step % KT_TILES_STAGES * KT_TILES_STAGE);
}

KT_DEVICE void kt_tiles_clear(kt_tile_sums *sum) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_M * KT_TILES_N / KT_TILES_THREADS; i++) {
        sum->f[i] = 0;
        sum->i[i] = 0;
    }
}

/* Copies of the first steps, a group each, whether they exist or not. */
KT_DEVICE void kt_tiles_fetch_first(const kt_tile_operands *o, const kt_tile_rows *r, int steps) {
    for (int s = 0; s < steps; s++) {
        if (s < o->steps) kt_tiles_fetch(o, r, s, (uint32_t)(s * KT_TILES_STAGE));
        kt_copy_commit();
    }
}

#ifndef KT_TILES_WIDE
/* The kernel's: the product of a step that lies in `stage`. */
KT_DEVICE void kt_tiles_multiply(const kt_tile_operands *o, int step, uint32_t stage,
                                 kt_tile_sums *sum);

/* The stages go round: while one is multiplied, KT_TILES_STAGES - 2 more are on their way. A stage
 * is written again after the barrier behind which all warps have done with it. */
KT_DEVICE void kt_tiles_product(const kt_tile_operands *o, kt_tile_sums *sum) {
    const kt_tile_rows r = kt_tiles_rows(o);

    kt_tiles_clear(sum);
    kt_tiles_fetch_first(o, &r, KT_TILES_STAGES - 1);
    for (int s = 0; s < o->steps; s++) {
        const int ahead = s + KT_TILES_STAGES - 1;
        KT_COPY_WAIT(KT_TILES_STAGES - 2);
        kt_sync();
        if (ahead < o->steps) kt_tiles_fetch(o, &r, ahead, kt_tiles_stage(ahead));
        kt_copy_commit();
        kt_tiles_multiply(o, s, kt_tiles_stage(s), sum);
    }
}

#else
/* Products of warpgroups go on by themselves: those of a step are put on their way, and while the
 * tensor cores work on them, those of the step before are waited for, and the copies of a later
 * step begin. So the tensor cores always have the next step in their queue.
 *
 * KT_TILES_PARTS is 0 where products add to the sums themselves. Else it is how many sums a thread
 * has, and the products of a step begin from nothing in one of two parts, which goes into the sums
 * by kt_tiles_fold while the next step is multiplied into the other one. */
KT_REQUIRE(KT_TILES_STAGES >= 3, "stages");

/* Has this warpgroup rows at all? Without any it copies and waits with the others. */
KT_DEVICE int kt_tiles_has_rows(const kt_tile_operands *o) {
    return kt_warp() / 4 * 64 < o->rows;
}

/* The kernel's: puts the products of the step that lies in `stage` on their way, as one group, for
 * warpgroups with rows; and adds the part that they have made. */
KT_DEVICE void kt_tiles_put(uint32_t stage, float *to);
KT_DEVICE void kt_tiles_fold(uint32_t stage, const float *part, kt_tile_sums *sum);

/* Step s, into `part`. The stage that copies go to is that of step s - 2, with which all have done
 * behind the barrier. With parts all warpgroups multiply: if some did not, the compiler would have
 * the products one after the other. */
KT_DEVICE void kt_tiles_begin_step(const kt_tile_operands *o, const kt_tile_rows *r, int s,
                                   float *part) {
    const int ahead = s + KT_TILES_STAGES - 2;

    KT_COPY_WAIT(KT_TILES_STAGES - 3);
    KT_TILES_FENCE();
    kt_sync();
    if (KT_TILES_PARTS || kt_tiles_has_rows(o)) kt_tiles_put(kt_tiles_stage(s), part);
    if (ahead < o->steps) kt_tiles_fetch(o, r, ahead, kt_tiles_stage(ahead));
    kt_copy_commit();
}

KT_DEVICE void kt_tiles_sum_up(const kt_tile_operands *o, const kt_tile_rows *r,
                               kt_tile_sums *sum) {
    for (int s = 0; s < o->steps; s++) {
        kt_tiles_begin_step(o, r, s, sum->f);
        KT_WGMMA_WAIT(1);
    }
    KT_WGMMA_WAIT(0);
}

/* Two steps a round: which part is whose must be known when this is compiled. */
KT_DEVICE void kt_tiles_sum_parts(const kt_tile_operands *o, const kt_tile_rows *r,
                                  kt_tile_sums *sum) {
    float even[KT_TILES_MAX_SUMS], odd[KT_TILES_MAX_SUMS];
    int s = 1;

    kt_tiles_begin_step(o, r, 0, even);
    KT_ROLLED
    for (; s + 1 < o->steps; s += 2) {
        kt_tiles_begin_step(o, r, s, odd);
        KT_WGMMA_WAIT(1);
        kt_tiles_fold(kt_tiles_stage(s - 1), even, sum);
        kt_tiles_begin_step(o, r, s + 1, even);
        KT_WGMMA_WAIT(1);
        kt_tiles_fold(kt_tiles_stage(s), odd, sum);
    }
    if (s == o->steps) {
        KT_WGMMA_WAIT(0);
        kt_tiles_fold(kt_tiles_stage(s - 1), even, sum);
        return;
    }
    kt_tiles_begin_step(o, r, s, odd);
    KT_WGMMA_WAIT(0);
    kt_tiles_fold(kt_tiles_stage(s - 1), even, sum);
    kt_tiles_fold(kt_tiles_stage(s), odd, sum);
}

KT_DEVICE void kt_tiles_product(const kt_tile_operands *o, kt_tile_sums *sum) {
    const kt_tile_rows r = kt_tiles_rows(o);

    kt_tiles_clear(sum);
    kt_tiles_fetch_first(o, &r, KT_TILES_STAGES - 2);
    if (KT_TILES_PARTS)
        kt_tiles_sum_parts(o, &r, sum);
    else
        kt_tiles_sum_up(o, &r, sum);
}
#endif

/* ---- what becomes of the sums ---- */

/* One pair of columns of a row of h, the gates and ups of it; a plain ending is SwiGLU alone, which
 * is decided before the loops. */
KT_DEVICE uint32_t kt_tiles_glu(const kt_dev_ending *ending, int is_plain, const float *gate,
                                const float *up, const float *gate_bias, const float *up_bias) {
    float out[2];

    KT_UNROLL
    for (int m = 0; m < 2; m++)
        out[m] = is_plain ? kt_silu(gate[m]) * up[m]
                          : kt_dev_glu(ending, gate_bias ? gate[m] + gate_bias[m] : gate[m],
                                       up_bias ? up[m] + up_bias[m] : up[m]);
    return kt_bf16_pair(out[0], out[1]);
}

KT_DEVICE void kt_tiles_put_h(const float *sum, const kt_dev_ending *ending, int is_plain,
                              const float *gate_bias, const float *up_bias, int rows, int columns,
                              int n, uint16_t *h) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_I; i++) KT_UNROLL
    for (int down8 = 0; down8 < 2; down8++) {
        const int row = kt_tiles_row(i, down8);
        uint16_t *to = h + (int64_t)row * n;
        if (row >= rows) continue;
        KT_UNROLL
        for (int j = 0; j < KT_TILES_J; j++) {
            const int column = kt_tiles_column(j);
            const float *gate = sum + KT_TILES_SUM(i, 0, j) + down8 * 2;
            const float *up = sum + KT_TILES_SUM(i, 1, j) + down8 * 2;
            if (column >= columns) continue;
            *(uint32_t *)(to + column) =
                kt_tiles_glu(ending, is_plain, gate, up, gate_bias ? gate_bias + column : 0,
                             up_bias ? up_bias + column : 0);
        }
    }
}

/* The halves (gate, up) through the ending as bfloat16: h is that of the tile's first row and
 * column, n0 of `n`; `columns` are left, an even number. */
KT_DEVICE void kt_tiles_put_glu(const float *sum, const kt_dev_ending *ending, int expert, int rows,
                                int columns, int n, int n0, uint16_t *h) {
    const float *gate_bias = kt_dev_bias(ending->gate_bias, expert, n, n0);
    const float *up_bias = kt_dev_bias(ending->up_bias, expert, n, n0);

    if (ending->glu == KT_DEV_GLU_SILU && !gate_bias && !up_bias)
        kt_tiles_put_h(sum, ending, 1, 0, 0, rows, columns, n, h);
    else
        kt_tiles_put_h(sum, ending, 0, gate_bias, up_bias, rows, columns, n, h);
}

/* Both halves side by side plus the columns' biases (NULL = none), each row times its route (NULL =
 * 1), as floats; with `add` to what is there. */
KT_DEVICE void kt_tiles_put_any(const float *sum, int rows, int columns, const float *bias,
                                const float *route, float *y, int64_t ld, int add) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_I; i++) KT_UNROLL
    for (int half = 0; half < 2; half++) KT_UNROLL
    for (int j = 0; j < KT_TILES_J; j++) KT_UNROLL
    for (int down8 = 0; down8 < 2; down8++) {
        const float *c = sum + KT_TILES_SUM(i, half, j) + down8 * 2;
        const int row = kt_tiles_row(i, down8);
        const int column = kt_tiles_column(j) + half * (KT_TILES_N / 2);
        float weight;
        if (row >= rows || column >= columns) continue;
        weight = route ? route[row] : 1.0f;
        KT_UNROLL
        for (int m = 0; m < 2; m++) {
            const float value = bias && column + m < columns ? c[m] + bias[column + m] : c[m];
            float *to = y + row * ld + column + m;
            *to = add ? kt_fma(weight, value, *to) : weight * value;
        }
    }
}

/* The same without biases and additions, of rows that begin at multiples of 8 bytes: what is asked
 * of each pair there is asked once. */
KT_DEVICE void kt_tiles_put_plain(const float *sum, int rows, int columns, const float *route,
                                  float *y, int64_t ld) {
    KT_UNROLL
    for (int i = 0; i < KT_TILES_I; i++) KT_UNROLL
    for (int down8 = 0; down8 < 2; down8++) {
        const int row = kt_tiles_row(i, down8);
        const float weight = route && row < rows ? route[row] : 1.0f;
        if (row >= rows) continue;
        KT_UNROLL
        for (int half = 0; half < 2; half++) KT_UNROLL
        for (int j = 0; j < KT_TILES_J; j++) {
            const float *c = sum + KT_TILES_SUM(i, half, j) + down8 * 2;
            const int column = kt_tiles_column(j) + half * (KT_TILES_N / 2);
            if (column < columns) kt_set_f32x2(y + row * ld + column, weight * c[0], weight * c[1]);
        }
    }
}

KT_DEVICE void kt_tiles_put_rows(const float *sum, int rows, int columns, const float *bias,
                                 const float *route, float *y, int64_t ld, int add) {
#ifndef KT_TILES_FULL /* two ways take registers of which there are none */
    if (!bias && !add && ld % 2 == 0 && (uint64_t)y % 8 == 0) {
        kt_tiles_put_plain(sum, rows, columns, route, y, ld);
        return;
    }
#endif
    kt_tiles_put_any(sum, rows, columns, bias, route, y, ld, add);
}

#ifndef __CUDACC_RTC__
#include "kernels/cuda/cuda_kernel.h"

/* For a descriptor: sizes as numbers, because the macros are of a launch. */
typedef struct kt_tiles_shape {
    int m, n, warps_m, warps_n, stages, b_bytes, more;
    bool is_wide; /* of warpgroups, which need no registers for fragments */
} kt_tiles_shape;

/* Values of parameters. */
static const int32_t kt_tiles_bm[] = {16, 32, 64, 128}, kt_tiles_warps[] = {1, 2, 4},
                     kt_tiles_stages[] = {2, 3, 4};

static inline size_t kt_tiles_shared_bytes(const kt_tiles_shape *s) {
    return (size_t)s->stages * (size_t)(s->m * 128 + s->n * s->b_bytes + s->more);
}

/* NULL when such a block can exist. */
static inline const char *kt_tiles_refuse(const kt_tiles_shape *s, const kt_cuda_target *target) {
    if (s->m % (16 * s->warps_m)) return "bm is not a multiple of 16 rows for every warp";
    if (s->n / 2 % (16 * s->warps_n)) return "half of bn is not a multiple of 16 for every warp";
    if (s->m * s->n / (32 * s->warps_m * s->warps_n) > KT_TILES_MAX_SUMS)
        return "over 128 sums a thread: they would spill";
    if (s->warps_m * s->warps_n >= 16 &&
        s->m * s->n / (32 * s->warps_m * s->warps_n) > (s->is_wide ? 64 : 32))
        return "over 32 sums a thread of 512 (64 of warpgroups): they would spill";
    if (kt_tiles_shared_bytes(s) > (size_t)target->shared_bytes)
        return "its stages exceed a block's shared memory";
    return NULL;
}
#endif

#endif
