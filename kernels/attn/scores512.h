/* Scores of queries with blocks of keys that are turned round (turn512.h), on AVX-512: four queries
 * and 64 keys are an outer product of broadcasts and loads with 16 accumulators, and scores come
 * out as vectors. Turning 16 x 16 pairs costs 64 shuffles, against the 45 instructions that adding
 * up the lanes of 16 dot products would cost for every 16 scores; with eight queries the two are
 * even, with more they are not. A score is one chain of products over the elements of a key,
 * whatever the queries around it.
 *
 * The including file defines, before it includes this, what a pair of elements adds (score_pair).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_SCORES512_H
#define KT_ATTN_SCORES512_H

#include "kernels/attn/ask512.h"
#include "kernels/attn/turn512.h"

#define SLICE 128      /* elements that are met at a time where keys or values are long */
#define SLICE_FROM 192 /* longest keys that are met at once: 64 of them are 24 KB */

/* sum[r][c] += elements (2 p, 2 p + 1) of query r, whose row is at q + r * ldq, times those of the
 * 16 keys of u[c]. */
KT_INLINE void score_pair(const float *q, int64_t ldq, int64_t p, const __m512i u[4], const int nq,
                          const int nv, __m512 sum[4][4]);

static size_t keys_bytes(int64_t d) {
    return (size_t)((d + 31) / 32 * 16) * TURNED_ROW;
}

/* Pairs [begin, end) of a key's elements: what is met at a time. Sums of those before are in s. */
typedef struct kt_key_pairs {
    int64_t begin, end;
} kt_key_pairs;

/* nq queries from i on x nv vectors of 16 keys; nq, nv and lines are constants at each call. */
KT_INLINE void score_tile(const kt_attn_part *t, int64_t i, kt_key_pairs x, const char *ask,
                          const int lines, const int nq, const int nv) {
    const int64_t ldq = t->ldq;
    const int is_near = t->k.is_near;
    const float *q = t->q + i * ldq;
    const uint8_t *keys = (const uint8_t *)t->keys + x.begin * (int64_t)TURNED_ROW;
    float *s = t->s + i * KT_ATTN_LDS;
    __m512 sum[4][4];

    KT_EACH (r, nq) {
        KT_EACH (c, nv)
            sum[r][c] =
                x.begin ? _mm512_load_ps(s + r * KT_ATTN_LDS + 16 * c) : _mm512_setzero_ps();
    }
    for (int64_t p = x.begin; p < x.end; p++, keys += TURNED_ROW) {
        __m512i u[4];
        ask_lines(ask + (p - x.begin) * 64 * lines, lines, is_near);
        KT_EACH (c, nv) u[c] = _mm512_load_si512(keys + 64 * c);
        score_pair(q, ldq, p, u, nq, nv, sum);
    }
    KT_EACH (r, nq) {
        KT_EACH (c, nv) _mm512_store_ps(s + r * KT_ATTN_LDS + 16 * c, sum[r][c]);
    }
}

KT_INLINE void score_rows(const kt_attn_part *t, int64_t i, kt_key_pairs x, const char *ask,
                          const int lines, const int nq) {
    if (t->n_keys > 48)
        score_tile(t, i, x, ask, lines, nq, 4);
    else if (t->n_keys > 32)
        score_tile(t, i, x, ask, 0, nq, 3);
    else if (t->n_keys > 16)
        score_tile(t, i, x, ask, 0, nq, 2);
    else
        score_tile(t, i, x, ask, 0, nq, 1);
}

/* The first two tiles ask for the rows of for_scores, half of them each; the first one for all
 * when it is alone. Of codes there are half as many lines. */
static void score_pairs(const kt_attn_part *tile, kt_key_pairs x, const char *ask, int is_wide) {
    const kt_attn_part copy = *tile, *const t = &copy;
    const int64_t half = (x.end - x.begin) * (is_wide ? 128 : 64);
    int64_t i = 0;

    if (ask && t->n >= 8) {
        for (; i < 8; i += 4, ask += half) {
            if (is_wide)
                score_rows(t, i, x, ask, 2, 4);
            else
                score_rows(t, i, x, ask, 1, 4);
        }
    } else if (ask) {
        const int n = t->n >= 4 ? 4 : 1;
        if (n == 4 && is_wide)
            score_rows(t, i, x, ask, 4, 4);
        else if (n == 4)
            score_rows(t, i, x, ask, 2, 4);
        else if (is_wide)
            score_rows(t, i, x, ask, 4, 1);
        else
            score_rows(t, i, x, ask, 2, 1);
        i = n;
    }
    for (; i + 4 <= t->n; i += 4) score_rows(t, i, x, t->keys, 0, 4);
    for (; i < t->n; i++) score_rows(t, i, x, t->keys, 0, 1);
}

/* Long keys are met in slices that L1 holds, so that only the first queries wait for L2. A sum goes
 * through memory between two slices as it is. */
static void scores(const kt_attn_part *t) {
    const int64_t d = t->k.d, end = (d + 1) / 2;
    const char *ask = ask_from(&t->for_scores);
    const int is_wide = t->for_scores.bytes > d; /* BF16, not codes */
    const int64_t slice = d > SLICE_FROM && t->n > 4 ? SLICE / 2 : end;

    for (kt_key_pairs x = {0, slice}; x.begin < end; x.begin = x.end, x.end += slice) {
        if (x.end > end) x.end = end;
        score_pairs(t, x, ask ? ask + x.begin * (is_wide ? 256 : 128) : NULL, is_wide);
    }
}

/* More queries than elsewhere: they share the turning of the keys. */
static const int32_t tile_queries[] = {32, 64, 128};
static const kt_param params[KT_ATTN_N_PARAMS] = {{"queries", tile_queries, 3, 128}};

#endif
