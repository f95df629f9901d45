/* The gated delta rule, once for all widths and in both forms.
 *
 * Rows of keys and queries are brought to unit length once for all value heads of their key head.
 *
 * Recurrence: columns of the state are independent of each other. LANES * WIDTH of them stay in L1
 * while all rows pass: per row one pass over them, which writes the update and reads what comes of
 * it for S^T k and S^T q of the row after. o is exp(g) S^T q + (k . q) d.
 *
 * Chunks of rows (delta_chunks.h) do the same with several rows a pass.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_DELTA_LANES_H
#define KT_LINATTN_DELTA_LANES_H

#include <string.h>

#include "kernels/linattn/lanes.h"
#include "kernels/linattn/linattn_common.h"

#define ROWS KT_DELTA_ROWS
/* Vectors of columns of the state at a time: in L1, and of a few rows, whose state is read from
 * memory in long runs. */
#define AT_ONCE (LANES == 16 ? 2 : 4)
#define WIDEST (LANES == 16 ? 8 : 4)
/* Columns of the state lie 4 v bytes apart, in an eighth of L1's sets with v = 128. Where rows
 * enough meet them, a call works on a copy in blocks of BLOCK columns, [k, BLOCK] in one piece. */
#define BLOCK 32
#define ROWS_FOR_COPY 4
#define FETCHED 4 /* rows ahead: they lie in pages of their own, where no prefetcher follows */
#define CHUNK KT_DELTA_CHUNK

/* Scratch: of the rows that are prepared, then, for chunks, of one value head. */
typedef struct delta_room {
    int64_t ldk;     /* size of a key in whole lines */
    float *q, *k;    /* [ROWS, ldk] of unit length, zeros past the last element; q by k^-0.5 */
    float *copy;     /* [heads of a key head, v / BLOCK, k, BLOCK] of the state */
    int64_t first;   /* head that the copy begins with; -1 = there is none */
    float *beta, *g; /* [ROWS] */
    float *decay;    /* [ROWS] exp(g) */
    float *dot;      /* [ROWS] k . q of a row */
    float *kk, *qk;  /* [ROWS, CHUNK] products of k, and of q, with the k of the row's chunk */
    float *near;     /* [ROWS, CHUNK] -A */
    float *seen;     /* [ROWS, CHUNK] P */
    float *far;      /* [ROWS] exp(G_i) */
    float *rest;     /* [ROWS] exp(G_C - G_i) */
} delta_room;

static delta_room room_at(const kt_problem *p, void *scratch) {
    delta_room r = {.ldk = (p->k + 15) / 16 * 16, .first = -1};
    r.q = scratch;
    r.k = r.q + ROWS * r.ldk;
    r.beta = r.k + ROWS * r.ldk;
    r.g = r.beta + ROWS;
    r.decay = r.g + ROWS;
    r.dot = r.decay + ROWS;
    r.far = r.dot + ROWS;
    r.rest = r.far + ROWS;
    r.kk = r.rest + ROWS;
    r.qk = r.kk + ROWS * CHUNK;
    r.near = r.qk + ROWS * CHUNK;
    r.seen = r.near + ROWS * CHUNK;
    r.copy = r.seen + ROWS * CHUNK;
    return r;
}

static size_t workspace_bytes(const kt_problem *p, const kt_config *config) {
    const int64_t ldk = (p->k + 15) / 16 * 16;
    (void)config;
    return sizeof(float) * (size_t)(2 * ROWS * ldk + 6 * ROWS + 4 * ROWS * CHUNK +
                                    p->n / p->kv_heads * p->k * p->v);
}

static kt_status accepts(const kt_problem *p, const kt_config *config, kt_err *why) {
    (void)config;
    return kt_delta_accepts(p, LANES, why);
}

/* ---- rows ---- */

KT_INLINE float product(const float *a, const float *b, int64_t n) {
    LANES_VEC sum = lanes_set(0.0f);
    for (int64_t i = 0; i < n; i += LANES)
        sum = lanes_fma(lanes_load(a + i), lanes_load(b + i), sum);
    return lanes_sum(sum);
}

KT_INLINE void unit_row(const float *x, int64_t k, int64_t ldk, float scale, float *out) {
    float r;

    memcpy(out, x, (size_t)k * sizeof *out);
    memset(out + k, 0, (size_t)(ldk - k) * sizeof *out);
    r = scale / sqrtf(product(out, out, ldk) + KT_DELTA_EPS);
    for (int64_t i = 0; i < ldk; i += LANES)
        lanes_store(out + i, lanes_mul(lanes_load(out + i), lanes_set(r)));
}

KT_INLINE void fetch(const float *p, int64_t n) {
    for (int64_t i = 0; i < n; i += 16) __builtin_prefetch(p + i, 0, 3);
}

/* n rows of key head `key` from `row` on. */
static void load_rows(const kt_delta_call *c, const delta_room *r, int64_t key, int64_t row,
                      int64_t n) {
    const int64_t k = c->problem->k;
    const float scale = 1.0f / sqrtf((float)k);

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (row + i) * c->ld + key * k;
        if (i + FETCHED < n) {
            fetch(c->q + at + FETCHED * c->ld, k);
            fetch(c->k + at + FETCHED * c->ld, k);
        }
        unit_row(c->q + at, k, r->ldk, scale, r->q + i * r->ldk);
        unit_row(c->k + at, k, r->ldk, 1.0f, r->k + i * r->ldk);
    }
}

/* norm o / sqrt(mean(o^2) + eps) silu(z), in place. */
KT_INLINE void gate_row(const kt_delta_call *c, const float *z, float *o) {
    const int64_t v = c->problem->v;
    const LANES_VEC r = lanes_set(1.0f / sqrtf(product(o, o, v) / (float)v + c->eps));

    for (int64_t i = 0; i < v; i += LANES) {
        LANES_VEC y = lanes_mul(lanes_mul(lanes_load(o + i), r), lanes_load(c->norm + i));
        lanes_store(o + i, lanes_mul(y, lanes_silu(lanes_load(z + i))));
    }
}

/* ---- recurrence ---- */

/* S^T k and S^T q of a row over nv vectors of columns. */
KT_INLINE void read_columns(const float *key, const float *query, int64_t k, const float *s,
                            int64_t lds, LANES_VEC *m, LANES_VEC *out, const int nv) {
    KT_EACH (c, nv) m[c] = out[c] = lanes_set(0.0f);
    for (int64_t i = 0; i < k; i++) {
        const LANES_VEC x = lanes_set(key[i]), y = lanes_set(query[i]);
        KT_EACH (c, nv) {
            const LANES_VEC state = lanes_load(s + i * lds + c * LANES);
            m[c] = lanes_fma(x, state, m[c]);
            out[c] = lanes_fma(y, state, out[c]);
        }
    }
}

/* S <- decay S + k d^T. */
KT_INLINE void write_columns(const float *key, LANES_VEC decay, const LANES_VEC *d, int64_t k,
                             float *s, int64_t lds, const int nv) {
    for (int64_t i = 0; i < k; i++) {
        const LANES_VEC x = lanes_set(key[i]);
        KT_EACH (c, nv) {
            float *at = s + i * lds + c * LANES;
            lanes_store(at, lanes_fma(x, d[c], lanes_mul(decay, lanes_load(at))));
        }
    }
}

/* Both in one pass, the second for one row and the first for the next: the operations of two. */
KT_INLINE void pass_columns(const delta_room *r, int64_t t, LANES_VEC decay, const LANES_VEC *d,
                            int64_t k, float *s, int64_t lds, LANES_VEC *m, LANES_VEC *out,
                            const int nv) {
    const float *key = r->k + t * r->ldk, *next = key + r->ldk, *query = r->q + (t + 1) * r->ldk;

    KT_EACH (c, nv) m[c] = out[c] = lanes_set(0.0f);
    for (int64_t i = 0; i < k; i++) {
        const LANES_VEC x = lanes_set(key[i]), y = lanes_set(next[i]), z = lanes_set(query[i]);
        KT_EACH (c, nv) {
            float *at = s + i * lds + c * LANES;
            const LANES_VEC state = lanes_fma(x, d[c], lanes_mul(decay, lanes_load(at)));
            lanes_store(at, state);
            m[c] = lanes_fma(y, state, m[c]);
            out[c] = lanes_fma(z, state, out[c]);
        }
    }
}

/* Some columns: of the values, the state and the results, rows ld apart. */
typedef struct columns {
    const float *v;
    float *s, *o;
    int64_t ldv, lds, ldo;
} columns;

KT_INLINE columns next_columns(columns x, int64_t n) {
    x.v += n;
    x.s += n;
    x.o += n;
    return x;
}

/* n rows meet nv vectors of columns; nv is a constant at each call. */
KT_INLINE void recur_columns(const delta_room *r, int64_t n, int64_t k, columns x, const int nv) {
    LANES_VEC m[WIDEST], out[WIDEST], d[WIDEST];

    read_columns(r->k, r->q, k, x.s, x.lds, m, out, nv);
    for (int64_t t = 0; t < n; t++, x.v += x.ldv, x.o += x.ldo) {
        const LANES_VEC decay = lanes_set(r->decay[t]);
        KT_EACH (c, nv) {
            d[c] = lanes_mul(lanes_set(r->beta[t]),
                             lanes_fnma(decay, m[c], lanes_load(x.v + c * LANES)));
            out[c] = lanes_fma(lanes_set(r->dot[t]), d[c], lanes_mul(decay, out[c]));
            lanes_store(x.o + c * LANES, out[c]);
        }
        if (t + 1 < n)
            pass_columns(r, t, decay, d, k, x.s, x.lds, m, out, nv);
        else
            write_columns(r->k + t * r->ldk, decay, d, k, x.s, x.lds, nv);
    }
}

static void load_rates(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                       int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        kt_delta_rates(c, head, row + i, &r->beta[i], &r->g[i]);
        r->decay[i] = expf(r->g[i]);
    }
}

static int64_t block_width(const kt_problem *p, int64_t x) {
    return p->v - x < BLOCK ? p->v - x : BLOCK;
}

/* Columns from `x` on of a head, at the beginning of a block where there is a copy. */
static columns columns_at(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                          int64_t x) {
    const int64_t k = c->problem->k, v = c->problem->v;
    columns at = {.v = c->v + row * c->ld + head * v + x,
                  .s = c->state + head * k * v + x,
                  .o = c->out + row * c->ldo + head * v + x,
                  .ldv = c->ld,
                  .lds = v,
                  .ldo = c->ldo};

    if (r->first >= 0) {
        at.s = r->copy + ((head - r->first) * v + x) * k;
        at.lds = block_width(c->problem, x);
    }
    return at;
}

/* The states of heads [r->first, last) to the copy, or back from it. */
static void copy_states(const kt_delta_call *c, const delta_room *r, int64_t last, int is_back) {
    const int64_t k = c->problem->k, v = c->problem->v;

    for (int64_t head = r->first; head < last; head++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t x = 0; x < v; x += LANES) {
                const int64_t at = x / BLOCK * BLOCK, ld = block_width(c->problem, at);
                float *own = c->state + (head * k + i) * v + x;
                float *copy = r->copy + ((head - r->first) * v + at) * k + i * ld + x - at;
                lanes_store(is_back ? own : copy, lanes_load(is_back ? copy : own));
            }
}

static void recur(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                  int64_t n) {
    const int64_t k = c->problem->k, v = c->problem->v;
    int64_t x = 0;

    load_rates(c, r, head, row, n);
    for (int64_t i = 0; i < n; i++)
        r->dot[i] = product(r->k + i * r->ldk, r->q + i * r->ldk, r->ldk);
    for (; r->first >= 0 && x + BLOCK <= v; x += BLOCK) {
        columns at = columns_at(c, r, head, row, x);
        for (int i = 0; i < BLOCK; i += AT_ONCE * LANES, at = next_columns(at, AT_ONCE * LANES))
            recur_columns(r, n, k, at, AT_ONCE);
    }
    for (; r->first < 0 && x + WIDEST * LANES <= v; x += WIDEST * LANES)
        recur_columns(r, n, k, columns_at(c, r, head, row, x), WIDEST);
    for (columns at = columns_at(c, r, head, row, x); x < v; x += LANES) {
        recur_columns(r, n, k, at, 1);
        at = next_columns(at, LANES);
    }
}

static void gate_rows(const kt_delta_call *c, int64_t head, int64_t row, int64_t n) {
    const int64_t v = c->problem->v;

    for (int64_t i = row; c->z && i < row + n; i++) {
        const float *z = c->z + i * c->ldz + head * v;
        if (i + FETCHED < row + n) fetch(z + FETCHED * c->ldz, v);
        gate_row(c, z, c->out + i * c->ldo + head * v);
    }
}

/* ---- the walk ---- */

/* n rows of the value heads [first, last) of one key head, one by one. */
static void rows_of_heads(const kt_delta_call *c, const delta_room *r, int64_t first, int64_t last,
                          int64_t row, int64_t n) {
    load_rows(c, r, first / (c->problem->n / c->problem->kv_heads), row, n);
    for (int64_t head = first; head < last; head++) {
        recur(c, r, head, row, n);
        gate_rows(c, head, row, n);
    }
}

/* The rows of the call for value heads [first, last) of one key head. */
typedef void group_rows(const kt_delta_call *c, const delta_room *r, int64_t first, int64_t last);

/* All heads of the call; at least `chunk` rows, or as many as a copy pays for, meet a copy. */
static void walk_groups(const kt_delta_call *c, group_rows *rows_of, int64_t chunk) {
    const int64_t group = c->problem->n / c->problem->kv_heads;
    const int has_copy = c->rows >= (chunk < ROWS_FOR_COPY ? chunk : ROWS_FOR_COPY);
    delta_room r = room_at(c->problem, c->scratch);

    for (int64_t first = c->head_begin, last; first < c->head_end; first = last) {
        last = (first / group + 1) * group;
        if (last > c->head_end) last = c->head_end;
        if (has_copy) {
            r.first = first;
            copy_states(c, &r, last, 0);
        }
        rows_of(c, &r, first, last);
        if (has_copy) copy_states(c, &r, last, 1);
    }
}

#endif
