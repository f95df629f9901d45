/* Scores of the indexer with a key in each lane, once for both vector widths.
 *
 * A block of 64 keys is turned round and widened once for all rows of the call: pieces of PIECE
 * keys, [dim][PIECE] floats each, in scratch. A tile of HEADS heads times VECS vectors of keys
 * then stays in registers while the numbers of the keys pass; each number of a query is broadcast
 * from memory. A piece (16 KB at most with 128 numbers) stays in L1 while the queries of all heads
 * (32 KB with 64) pass. Per key the products are one chain of fused multiply-adds in the order of
 * the numbers, the heads another in their order: the same bits with any width, any cut of keys and
 * rows.
 *
 * The including file defines LANES, VEC, VECS, HEADS, the functions vec_*, and turn_tile: LANES
 * keys of 2 * LANES numbers to 2 * LANES vectors, PIECE floats apart.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_INDEXER_LANES_H
#define KT_INDEXER_LANES_H

#include <string.h>

#include "base/cpu.h"
#include "kernels/indexer/indexer_common.h"
#include "kernels/simd/fetch.h"
#include "kernels/simd/unroll.h"

#define KEYS KT_INDEX_BLOCK

static size_t workspace_bytes(const kt_problem *p, const kt_config *config) {
    (void)config;
    return (size_t)p->k * KEYS * sizeof(float);
}

/* n <= KEYS keys; what is missing of a vector's last lanes counts as zeros, and nothing past the
 * last key is read. */
static void turn_block(const uint16_t *keys, int64_t ldk, int64_t n, int64_t dim, float *out) {
    uint16_t part[LANES * 2 * LANES];

    for (int64_t j = 0; j < n; j += LANES)
        for (int64_t i = 0; i < dim; i += 2 * LANES) {
            const uint16_t *from = keys + j * ldk + i;
            int64_t ld = ldk;
            if (j + LANES > n) {
                memset(part, 0, sizeof part);
                for (int64_t x = j; x < n; x++)
                    memcpy(part + (x - j) * 2 * LANES, keys + x * ldk + i, 4 * LANES);
                from = part;
                ld = 2 * LANES;
            }
            turn_tile(from, ld, out + j / PIECE * PIECE * dim + i * PIECE + j % PIECE);
        }
}

/* Products of a piece of keys with nh heads, a constant at each call. */
KT_INLINE void multiply(const float *q, const float *turned, int64_t dim, VEC p[HEADS][VECS],
                        const int nh) {
    KT_EACH (h, nh) {
        KT_EACH (v, VECS) p[h][v] = vec_zero();
    }
    for (int64_t i = 0; i < dim; i++) {
        VEC x[VECS];
        KT_EACH (v, VECS) x[v] = vec_load(turned + i * PIECE + v * LANES);
        KT_EACH (h, nh) {
            const VEC y = vec_set(q[h * dim + i]);
            KT_EACH (v, VECS) p[h][v] = vec_fma(y, x[v], p[h][v]);
        }
    }
}

/* A piece of keys under nh heads, summed by their weights. */
KT_INLINE void score_tile(const float *q, const float *w, const float *turned, int64_t dim,
                          float *sum, const int nh) {
    VEC p[HEADS][VECS];

    multiply(q, turned, dim, p, nh);
    KT_EACH (v, VECS) {
        VEC s = vec_load(sum + v * LANES);
        KT_EACH (h, nh) s = vec_fma(vec_set(w[h]), vec_positive(p[h][v]), s);
        vec_store(sum + v * LANES, s);
    }
}

/* A share of the keys that are turned round next: in one go they would be waited for. */
typedef struct keys_ahead {
    const uint16_t *key;
    int64_t ld, n; /* how many are left */
    int is_near;
} keys_ahead;

static void fetch_keys(keys_ahead *a, int64_t n, int64_t dim) {
    for (; n > 0 && a->n > 0; n--, a->n--, a->key += a->ld)
        for (int64_t i = 0; i < dim; i += 32) kt_fetch_line(a->key + i, a->is_near);
}

static void score_block(const kt_index_call *c, int64_t row, const float *turned, int64_t n,
                        float *out, keys_ahead *ahead) {
    const int64_t heads = c->problem->n, dim = c->problem->k;
    const float *q = c->q + row * c->ldq, *w = c->w + row * c->ldw;
    const int64_t share = HEADS * PIECE / heads + 1;
    float sum[KEYS];

    for (int64_t at = 0; at < n; at += PIECE) {
        const float *piece = turned + at * dim;
        int64_t h = 0;
        KT_EACH (v, VECS) vec_store(sum + at + v * LANES, vec_zero());
        for (; h + HEADS <= heads; h += HEADS) {
            fetch_keys(ahead, share, dim);
            score_tile(q + h * dim, w + h, piece, dim, sum + at, HEADS);
        }
        for (; h + 4 <= heads; h += 4) score_tile(q + h * dim, w + h, piece, dim, sum + at, 4);
        for (; h < heads; h++) score_tile(q + h * dim, w + h, piece, dim, sum + at, 1);
    }
    memcpy(out, sum, (size_t)n * sizeof *out);
}

/* A piece of n keys under nh heads, each for itself: to rows lds apart. */
KT_INLINE void put_tile(const float *q, const float *turned, int64_t dim, int64_t n, float *out,
                        int64_t lds, const int nh) {
    VEC p[HEADS][VECS];
    float part[PIECE];

    multiply(q, turned, dim, p, nh);
    KT_EACH (h, nh) {
        KT_EACH (v, VECS) vec_store(part + v * LANES, p[h][v]);
        memcpy(out + h * lds, part, (size_t)n * sizeof *out);
    }
}

/* Scores of each head, from out on. */
static void score_heads(const kt_index_call *c, int64_t row, const float *turned, int64_t n,
                        float *out, keys_ahead *ahead) {
    const int64_t heads = c->problem->n, dim = c->problem->k;
    const int64_t share = HEADS * PIECE / heads + 1;
    const float *q = c->q + row * c->ldq;

    for (int64_t at = 0; at < n; at += PIECE, out += PIECE) {
        const float *piece = turned + at * dim;
        const int64_t here = n - at < PIECE ? n - at : PIECE;
        int64_t h = 0;
        fetch_keys(ahead, share, dim);
        for (; h + HEADS <= heads; h += HEADS)
            put_tile(q + h * dim, piece, dim, here, out + h * c->lds, c->lds, HEADS);
        for (; h + 4 <= heads; h += 4)
            put_tile(q + h * dim, piece, dim, here, out + h * c->lds, c->lds, 4);
        for (; h < heads; h++) put_tile(q + h * dim, piece, dim, here, out + h * c->lds, c->lds, 1);
    }
}

static void index_dots(const kt_index_call *c) {
    const int64_t apart = c->problem->kv_heads;
    const int is_near = kt_cpu_fetches_near();
    float *turned = c->scratch;

    for (int64_t i = 0, n; i < c->n_keys; i += n) {
        keys_ahead ahead = {.key = c->keys + (i + KEYS) * c->ldk, .ld = c->ldk, .is_near = is_near};
        n = c->n_keys - i < KEYS ? c->n_keys - i : KEYS;
        ahead.n = c->n_keys - i - n < KEYS ? c->n_keys - i - n : KEYS;
        turn_block(c->keys + i * c->ldk, c->ldk, n, c->problem->k, turned);
        for (int64_t r = c->row_begin; r < c->row_end; r++)
            if (apart)
                score_heads(c, r, turned, n, c->score + r * apart * c->lds + i, &ahead);
            else
                score_block(c, r, turned, n, c->score + r * c->lds + i, &ahead);
    }
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    return kt_index_accepts(p, 2 * LANES, why);
}

#endif
