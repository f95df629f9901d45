/* Scores and sums in f32, for one, two or four queries at a time, of the widths of
 * bf16_online__*.c.
 *
 * The including file defines, before it includes this, SCORES, that a tile has whatever its
 * queries, and below, with nq a constant at each call:
 *
 *   score_tile     nq queries from i on x SCORES / nq keys from j on, to the rows of scores
 *   weigh_columns  all columns of nq queries, 4 or 1, from i on
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_ONLINE_H
#define KT_ATTN_ONLINE_H

#include "kernels/attn/attn_walk.h"
#include "kernels/simd/unroll.h"

KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, int64_t j, const int nq);
KT_INLINE void weigh_columns(const kt_attn_part *t, int64_t i, const int nq);

/* Each four queries fetch their share of the lines of keys to come. */
KT_INLINE void score_keys(const kt_attn_part *t, int64_t i, const int nq) {
    const int64_t fours = (t->n + 3) / 4;

    for (int64_t j = 0; j < t->n_keys; j += SCORES / nq) {
        kt_attn_fetch(&t->k, j, SCORES / nq, i / 4 * 32, t->k.d, fours * 32);
        score_tile(t, i, j, nq);
    }
}

static void scores(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t i = 0;
    for (; i + 4 <= t->n; i += 4) score_keys(t, i, 4);
    for (; i + 2 <= t->n; i += 2) score_keys(t, i, 2);
    for (; i < t->n; i++) score_keys(t, i, 1);
}

static void weigh(const kt_attn_part *tile) {
    const kt_attn_part copy = *tile, *const t = &copy;
    int64_t i = 0;
    for (; i + 4 <= t->n; i += 4) weigh_columns(t, i, 4);
    for (; i < t->n; i++) weigh_columns(t, i, 1);
}

/* Row j of the tile's keys, or the last one: its scores are never looked at. */
KT_INLINE const uint16_t *key_or_last(const kt_attn_part *t, int64_t j) {
    return kt_attn_row(&t->k, j < t->n_keys ? j : t->n_keys - 1);
}

#endif
