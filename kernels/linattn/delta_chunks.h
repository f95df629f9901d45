/* The gated delta rule with a few rows a pass over the state, once for all widths.
 *
 * Chunks of C rows, with S0 the state before them, G_i = g_1 + ... + g_i, and all exponents <= 0:
 *   A_ij = beta_i exp(G_i - G_j) (k_i . k_j) for j < i
 *   P_ij = exp(G_i - G_j) (q_i . k_j) for j <= i
 *   (I + A) D = diag(beta) (V - diag(exp G) K S0)         forward substitution
 *   O = diag(exp G) Q S0 + P D,   S = exp(G_C) S0 + sum_i exp(G_C - G_i) k_i d_i^T
 * As in the recurrence, a few columns of the state stay in L1, and one pass over them writes S and
 * reads K S and Q S of the chunk that follows. Per number of the state and row that is 3 + 1 / C
 * multiply-adds where the recurrence takes 4 operations, and one load and one store for C rows.
 * With a few rows A and P cost nothing; products of whole matrices (64 rows) would pay them with
 * what larger tiles gain. exp(G_i - G_j) is the product of the rows' own exponentials. No row
 * meets a number of a later one.
 *
 * Formulas: Yang, Kautz, Hatamizadeh, Gated Delta Networks (2024), section 3.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_DELTA_CHUNKS_H
#define KT_LINATTN_DELTA_CHUNKS_H

#include "kernels/linattn/delta_lanes.h"

/* Sums of a chunk over some columns, in registers. */
typedef struct chunk_sums {
    LANES_VEC m[CHUNK][AT_ONCE], out[CHUNK][AT_ONCE], d[CHUNK][AT_ONCE];
} chunk_sums;

/* Products of a chunk's rows with each other, for all value heads of the key head. */
static void products_of_rows(const delta_room *r, int64_t n, int64_t size) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i % size; j++) {
            const float *key = r->k + (i - i % size + j) * r->ldk;
            if (j < i % size) r->kk[i * CHUNK + j] = product(r->k + i * r->ldk, key, r->ldk);
            r->qk[i * CHUNK + j] = product(r->q + i * r->ldk, key, r->ldk);
        }
}

/* -A, P and the exponentials of n rows, a multiple of `size`. */
static void weigh_rows(const delta_room *r, int64_t n, int64_t size) {
    for (int64_t i = 0; i < n; i++) {
        const int64_t in_chunk = i % size;
        float weight = 1.0f;
        r->far[i] = in_chunk ? r->decay[i] * r->far[i - 1] : r->decay[i];
        for (int64_t j = in_chunk; j >= 0; j--) {
            if (j < in_chunk) r->near[i * CHUNK + j] = -r->beta[i] * weight * r->kk[i * CHUNK + j];
            r->seen[i * CHUNK + j] = weight * r->qk[i * CHUNK + j];
            if (in_chunk == size - 1) r->rest[i - in_chunk + j] = weight;
            weight *= r->decay[i - in_chunk + j];
        }
    }
}

/* Row i of the state joins S^T k and S^T q of row j of a chunk. */
KT_INLINE void read_row(const float *key, const float *query, int64_t i, const LANES_VEC *state,
                        chunk_sums *sums, const int j, const int nv) {
    const LANES_VEC y = lanes_set(key[i]), z = lanes_set(query[i]);

    KT_EACH (c, nv) sums->m[j][c] = lanes_fma(y, state[c], sums->m[j][c]);
    KT_EACH (c, nv) sums->out[j][c] = lanes_fma(z, state[c], sums->out[j][c]);
}

/* S^T k and S^T q of nr rows from `t` on over nv vectors of columns. */
KT_INLINE void read_chunk(const delta_room *r, int64_t t, int64_t k, const columns *x,
                          chunk_sums *sums, const int nr, const int nv) {
    const float *key = r->k + t * r->ldk, *query = r->q + t * r->ldk;

    KT_EACH (j, nr) {
        KT_EACH (c, nv) sums->m[j][c] = sums->out[j][c] = lanes_set(0.0f);
    }
    for (int64_t i = 0; i < k; i++) {
        LANES_VEC state[AT_ONCE];
        KT_EACH (c, nv) state[c] = lanes_load(x->s + i * x->lds + c * LANES);
        KT_EACH (j, nr) {
            read_row(key + j * r->ldk, query + j * r->ldk, i, state, sums, j, nv);
        }
    }
}

/* The updates of nr rows to sums->d, each with the weight that it leaves the chunk with, and the
 * rows' results. */
KT_INLINE void end_chunk(const delta_room *r, int64_t t, const columns *x, chunk_sums *sums,
                         const int nr, const int nv) {
    KT_EACH (i, nr) {
        const float *near = r->near + (t + i) * CHUNK, *seen = r->seen + (t + i) * CHUNK;
        const LANES_VEC far = lanes_set(r->far[t + i]), beta = lanes_set(r->beta[t + i]);
        KT_EACH (c, nv) {
            const LANES_VEC v = lanes_load(x->v + i * x->ldv + c * LANES);
            LANES_VEC d = lanes_mul(beta, lanes_fnma(far, sums->m[i][c], v));
            LANES_VEC out = lanes_mul(far, sums->out[i][c]);
            KT_EACH (j, i) {
                d = lanes_fma(lanes_set(near[j]), sums->d[j][c], d);
                out = lanes_fma(lanes_set(seen[j]), sums->d[j][c], out);
            }
            sums->d[i][c] = d;
            lanes_store(x->o + i * x->ldo + c * LANES, lanes_fma(lanes_set(seen[i]), d, out));
        }
    }
    KT_EACH (i, nr) {
        const LANES_VEC rest = lanes_set(r->rest[t + i]);
        KT_EACH (c, nv) sums->d[i][c] = lanes_mul(rest, sums->d[i][c]);
    }
}

/* Rows of keys: of the chunk, of the one behind it, and that one's queries. */
typedef struct chunk_rows {
    const float *key, *next, *query;
    int64_t ld;
} chunk_rows;

/* Row i of the state behind a chunk; and, if they are wanted, row i - 1, which is `behind`, joins
 * the sums of the next one: an update is a chain of multiply-adds that wait for each other. */
KT_INLINE void pass_row(const chunk_rows *r, int64_t i, LANES_VEC decay, float *at,
                        chunk_sums *sums, LANES_VEC *behind, const int nr, const int nv,
                        const int is_read) {
    LANES_VEC state[AT_ONCE];

    KT_EACH (c, nv) state[c] = lanes_mul(decay, lanes_load(at + c * LANES));
    KT_EACH (j, nr) {
        const LANES_VEC y = lanes_set(r->key[j * r->ld + i]);
        KT_EACH (c, nv) state[c] = lanes_fma(y, sums->d[j][c], state[c]);
        if (is_read)
            read_row(r->next + j * r->ld, r->query + j * r->ld, i - 1, behind, sums, j, nv);
    }
    KT_EACH (c, nv) {
        lanes_store(at + c * LANES, state[c]);
        behind[c] = state[c];
    }
}

/* The state behind the rows from `t` on and what comes of it for the chunk after them. */
KT_INLINE void pass_chunk(const delta_room *r, int64_t t, int64_t k, const columns *x,
                          chunk_sums *sums, const int nr, const int nv) {
    const float *key = r->k + t * r->ldk;
    const chunk_rows rows = {key, key + nr * r->ldk, r->q + (t + nr) * r->ldk, r->ldk};
    const LANES_VEC decay = lanes_set(r->far[t + nr - 1]);
    LANES_VEC behind[AT_ONCE];

    KT_EACH (j, nr) {
        KT_EACH (c, nv) sums->m[j][c] = sums->out[j][c] = lanes_set(0.0f);
    }
    pass_row(&rows, 0, decay, x->s, sums, behind, nr, nv, 0);
    for (int64_t i = 1; i < k; i++)
        pass_row(&rows, i, decay, x->s + i * x->lds, sums, behind, nr, nv, 1);
    KT_EACH (j, nr) {
        read_row(rows.next + j * rows.ld, rows.query + j * rows.ld, k - 1, behind, sums, j, nv);
    }
}

/* The state behind the last rows. */
KT_INLINE void leave_chunk(const delta_room *r, int64_t t, int64_t k, const columns *x,
                           chunk_sums *sums, const int nr, const int nv) {
    const chunk_rows rows = {.key = r->k + t * r->ldk, .ld = r->ldk};
    const LANES_VEC decay = lanes_set(r->far[t + nr - 1]);
    LANES_VEC unread[AT_ONCE];

    for (int64_t i = 0; i < k; i++)
        pass_row(&rows, i, decay, x->s + i * x->lds, sums, unread, nr, nv, 0);
}

/* n rows in chunks of nr meet nv vectors of columns: constants at each call. */
KT_INLINE void chunk_columns(const delta_room *r, int64_t n, int64_t k, columns x, const int nr,
                             const int nv) {
    chunk_sums sums;

    read_chunk(r, 0, k, &x, &sums, nr, nv);
    for (int64_t t = 0; t < n; t += nr, x.v += nr * x.ldv, x.o += nr * x.ldo) {
        end_chunk(r, t, &x, &sums, nr, nv);
        if (t + nr < n)
            pass_chunk(r, t, k, &x, &sums, nr, nv);
        else
            leave_chunk(r, t, k, &x, &sums, nr, nv);
    }
}

/* Registers: 2 nr nv sums, nr nv updates, nv of the state and a factor. */
#define SHORT (LANES == 16 ? 4 : 2) /* rows of a chunk with two vectors of columns at a time */
#define LONG (2 * SHORT)            /* with one */

/* `width` columns from x on, in chunks of `size` rows: SHORT or LONG. */
static void chunk_block(const delta_room *r, int64_t n, int64_t k, columns x, int64_t size,
                        int64_t width) {
    const int step = size == SHORT && width == BLOCK ? 2 : 1;

    for (int64_t i = 0; i < width; i += step * LANES, x = next_columns(x, step * LANES)) {
        if (step == 2)
            chunk_columns(r, n, k, x, SHORT, 2);
        else if (size == SHORT)
            chunk_columns(r, n, k, x, SHORT, 1);
        else
            chunk_columns(r, n, k, x, LONG, 1);
    }
}

/* n rows from `row` on, whole chunks, of a head whose state is copied. */
static void chunks_of_head(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                           int64_t n, int64_t size) {
    load_rates(c, r, head, row, n);
    weigh_rows(r, n, size);
    for (int64_t x = 0; x < c->problem->v; x += BLOCK)
        chunk_block(r, n, c->problem->k, columns_at(c, r, head, row, x), size,
                    block_width(c->problem, x));
    gate_rows(c, head, row, n);
}

/* Chunks begin where the position is a multiple of their size; rows that do not fill one go one by
 * one. */
static void rows_of_group(const kt_delta_call *c, const delta_room *r, int64_t first,
                          int64_t last) {
    const int64_t group = c->problem->n / c->problem->kv_heads, size = c->config->value[0];

    for (int64_t row = 0, n; row < c->rows; row += n) {
        const int64_t left = c->rows - row, into = (c->position + row) % size;
        if (into || left < size) {
            n = left < size - into ? left : size - into;
            rows_of_heads(c, r, first, last, row, n);
            continue;
        }
        n = left < ROWS ? left / size * size : ROWS;
        load_rows(c, r, first / group, row, n);
        products_of_rows(r, n, size);
        for (int64_t head = first; head < last; head++) chunks_of_head(c, r, head, row, n, size);
    }
}

static void walk(const kt_delta_call *c) {
    walk_groups(c, rows_of_group, c->config->value[0]);
}

#endif
