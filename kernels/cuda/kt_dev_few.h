/* Products of any weights with at most 8 rows of activations, on tensor cores.
 *
 * The weights are the A side of m16n8k16 (16 outputs), the activations its B side (8 rows), so
 * that each weight is loaded once, opened once, and meets all rows in one instruction. Loads go
 * straight from memory to fragments: which inputs are k = 0 .. 15 of an instruction is free as
 * long as both sides agree, so lane t of a quad takes whole pieces (kt_dev_weights.h), 32 inputs
 * of each step of 128, and no byte passes through shared memory. Lane l works for rows l / 4 and l
 * / 4 + 8 of a tile and for row l / 4 of the activations; sums c0 .. c3 are C fragments.
 *
 * The warps of a block share the outputs and split the steps; kt_few_reduce adds them up.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef KT_DEV_FEW_H
#define KT_DEV_FEW_H

#include "kernels/cuda/kt_dev_weights.h"

enum { KT_FEW_ROWS = 8, KT_FEW_TILE = 16, KT_FEW_STEP = 128, KT_FEW_PIECES = 4 };

/* The first input of a lane's piece i of a step. */
KT_DEVICE int kt_few_first(int format, int step, int i) {
    const int inputs = kt_piece_inputs(format);
    return step * KT_FEW_STEP + (i * 4 + (kt_lane() & 3)) * inputs;
}

/* 4 words at any multiple of 4 bytes, all on their way at once. */
KT_DEVICE kt_u128 kt_few_words(const float *p) {
    kt_u128 v;
    v.x = kt_bits_float(p[0]), v.y = kt_bits_float(p[1]);
    v.z = kt_bits_float(p[2]), v.w = kt_bits_float(p[3]);
    return v;
}

/* The lane's 32 activations of a step, as 16 pairs in the order of its pieces; zeros behind the end
 * and where there is no row (NULL). All loads are on their way before the first of them is used: one
 * after the other they would take as long as the weights. */
KT_DEVICE void kt_few_load_f32(int format, const float *row, int k, int step, uint32_t *x) {
    const int inputs = kt_piece_inputs(format);
    const int is_aligned = (uint64_t)row % 16 == 0;
    kt_u128 v[8];

    KT_UNROLL
    for (int c = 0; c < 8; c++) {
        const int at = kt_few_first(format, step, 8 * (c / 2) / inputs) + 8 * (c / 2) % inputs;
        v[c].x = v[c].y = v[c].z = v[c].w = 0;
        if (!row || at >= k) continue;
        v[c] =
            is_aligned ? kt_load_cached(row + at + c % 2 * 4) : kt_few_words(row + at + c % 2 * 4);
    }
    KT_UNROLL
    for (int c = 0; c < 8; c++) {
        x[2 * c] = kt_bf16_pair(kt_float_bits(v[c].x), kt_float_bits(v[c].y));
        x[2 * c + 1] = kt_bf16_pair(kt_float_bits(v[c].z), kt_float_bits(v[c].w));
    }
}

KT_DEVICE void kt_few_load_bf16(int format, const uint16_t *row, int k, int step, uint32_t *x) {
    const int inputs = kt_piece_inputs(format);

    KT_UNROLL
    for (int c = 0; c < 4; c++) {
        const int at = kt_few_first(format, step, 8 * c / inputs) + 8 * c % inputs;
        kt_u128 v;
        v.x = v.y = v.z = v.w = 0;
        if (row && at < k) v = kt_load_cached(row + at);
        x[4 * c] = v.x, x[4 * c + 1] = v.y, x[4 * c + 2] = v.z, x[4 * c + 3] = v.w;
    }
}

/* What a lane holds of a tile's 16 rows in one step: pieces of two rows, and their late scales. */
typedef struct kt_few_weights {
    kt_piece piece[2][KT_FEW_PIECES];
    float late[2];
} kt_few_weights;

/* Rows of the tile that begins at record `first`, of which `left` exist. */
KT_DEVICE void kt_few_load(int format, const uint8_t *first, int left, const kt_weight_row *at,
                           int k, int step, kt_few_weights *w) {
    const int n = 32 / kt_piece_inputs(format);

    KT_UNROLL
    for (int r = 0; r < 2; r++) {
        const int row = (kt_lane() >> 2) + 8 * r;
        const uint8_t *record = first + (int64_t)row * at->bytes;
        w->late[r] = 0;
        if (row < left) w->late[r] = kt_late_scale(format, record, at, step * KT_FEW_STEP);
        KT_UNROLL
        for (int i = 0; i < n; i++) {
            const int input = kt_few_first(format, step, i);
            if (row < left && input < k)
                kt_piece_load(format, record, at, input, &w->piece[r][i]);
            else
                kt_piece_clear(&w->piece[r][i]);
        }
    }
}

/* sum[0 .. 3] += the tile's weights times the activations. */
KT_DEVICE void kt_few_multiply(int format, const kt_few_weights *w, const uint32_t *x, float *sum) {
    const int inputs = kt_piece_inputs(format);
    float c[4];

    KT_UNROLL
    for (int i = 0; i < 4; i++) c[i] = kt_weight_spec_of(format).is_late ? 0 : sum[i];
    KT_UNROLL
    for (int i = 0; i < 32 / inputs; i++) {
        uint32_t row[2][16];
        kt_piece_open(format, &w->piece[0][i], row[0]);
        kt_piece_open(format, &w->piece[1][i], row[1]);
        KT_UNROLL
        for (int j = 0; j < inputs / 2; j += 2) {
            uint32_t a[4];
            const uint32_t *b = x + i * (inputs / 2) + j;
            a[0] = row[0][j], a[1] = row[1][j], a[2] = row[0][j + 1], a[3] = row[1][j + 1];
            kt_mma_bf16(c, a, b[0], b[1]);
        }
    }
    KT_UNROLL
    for (int i = 0; i < 4; i++)
        sum[i] = kt_weight_spec_of(format).is_late ? kt_fma(w->late[i / 2], c[i], sum[i]) : c[i];
}

KT_DEVICE uint32_t kt_few_reduce_bytes(int warps, int count) {
    return (uint32_t)(warps * count * 128);
}

/* Adds up `count` sums of all warps, in the order of the warps, through shared memory from `at` on.
 * Only warp 0 has the result. A barrier of the block; all threads call it. */
KT_DEVICE void kt_few_reduce(int warps, uint32_t at, float *sum, int count) {
    const uint32_t lane = at + (uint32_t)kt_lane() * 4;

    KT_UNROLL
    for (int i = 0; i < count; i++)
        kt_set_shared_u32(lane + (uint32_t)((kt_warp() * count + i) * 128), kt_bits_float(sum[i]));
    kt_sync();
    if (kt_warp() > 0) return;
    KT_UNROLL
    for (int i = 0; i < count; i++) {
        sum[i] = 0;
        for (int w = 0; w < warps; w++)
            sum[i] += kt_float_bits(kt_shared_u32(lane + (uint32_t)((w * count + i) * 128)));
    }
}

#endif
