/* The gated delta rule, once for all widths and in both forms.
 *
 * Rows of keys and queries are brought to unit length once for all value heads of their key head.
 *
 * Recurrence: columns of the state are independent of each other. LANES * WIDTH of them stay in L1
 * while all rows pass: per row one pass over them, which writes the update and reads what comes of
 * it for S^T k and S^T q of the row after. o is exp(g) S^T q + (k . q) d.
 *
 * Chunks of C rows, with S0 the state before them, G_i = g_1 + ... + g_i, and all exponents <= 0:
 *   A_ij = beta_i exp(G_i - G_j) (k_i . k_j) for j < i
 *   P_ij = exp(G_i - G_j) (q_i . k_j) for j <= i
 *   (I + A) D = diag(beta) (V - diag(exp G) K S0)         forward substitution
 *   O = diag(exp G) Q S0 + P D,   S = exp(G_C) S0 + sum_i exp(G_C - G_i) k_i d_i^T
 * which are products of matrices but for the four rows at a time that depend on each other. G is
 * summed in double, so that the difference of two large sums is as good as the g between them. No
 * row meets a number of a later one.
 *
 * Formulas: Yang, Kautz, Hatamizadeh, Gated Delta Networks (2024), section 3.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_LINATTN_DELTA_LANES_H
#define KT_LINATTN_DELTA_LANES_H

#include <string.h>

#include "kernels/linattn/lanes.h"
#include "kernels/linattn/linattn_common.h"

#define ROWS KT_DELTA_ROWS
#define WIDTH 4 /* vectors of columns of the state, or of a product, at a time */
/* Columns of a single row, whose state is read once from memory: 512 bytes in one run. */
#define WIDEST (LANES == 16 ? 8 : WIDTH)

/* Scratch: of the rows that are prepared, then, for chunks, of one value head. */
typedef struct delta_room {
    int64_t ldk;  /* size of a key in whole lines */
    float *q, *k; /* [ROWS, ldk] of unit length, zeros past the last element; q by k^-0.5 */
    float
        *turned; /* [ldk, ROWS] k turned round, zeros past the last row; or columns of the state */
    float *kk, *qk;  /* [ROWS, ROWS] products of k, and of q, with k */
    float *beta, *g; /* [ROWS] */
    float *decay;    /* [ROWS] exp of g, or of G */
    float *dot;      /* [ROWS] k . q of a row */
    float *same;     /* [ldk] exp(G_C) for every row of the state */
    float *near;     /* [ROWS, ROWS] -A */
    float *seen;     /* [ROWS, ROWS] P */
    float *d;        /* [ROWS, v] */
} delta_room;

static delta_room room_at(const kt_problem *p, void *scratch) {
    delta_room r = {.ldk = (p->k + 15) / 16 * 16};
    r.q = scratch;
    r.k = r.q + ROWS * r.ldk;
    r.beta = r.k + ROWS * r.ldk;
    r.g = r.beta + ROWS;
    r.decay = r.g + ROWS;
    r.dot = r.decay + ROWS;
    r.turned = r.dot + ROWS;
    r.kk = r.turned + ROWS * r.ldk;
    r.qk = r.kk + ROWS * ROWS;
    r.near = r.qk + ROWS * ROWS;
    r.seen = r.near + ROWS * ROWS;
    r.same = r.seen + ROWS * ROWS;
    r.d = r.same + r.ldk;
    return r;
}

static size_t workspace_bytes(const kt_problem *p, const kt_config *config) {
    int64_t ldk = (p->k + 15) / 16 * 16;
    (void)config;
    return sizeof(float) *
           (size_t)(3 * ROWS * ldk + 4 * ROWS + 4 * ROWS * ROWS + ldk + ROWS * p->v);
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

/* n rows of key head `key` from `row` on. */
static void load_rows(const kt_delta_call *c, const delta_room *r, int64_t key, int64_t row,
                      int64_t n) {
    const int64_t k = c->problem->k;
    const float scale = 1.0f / sqrtf((float)k);

    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (row + i) * c->ld + key * k;
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

/* n rows of `rows` meet nv vectors of columns; nv is a constant at each call. v, s and o begin at
 * the first one. */
KT_INLINE void recur_columns(const delta_room *r, int64_t n, int64_t k, const float *v, int64_t ldv,
                             float *s, int64_t lds, float *o, int64_t ldo, const int nv) {
    LANES_VEC m[WIDEST], out[WIDEST], d[WIDEST];

    read_columns(r->k, r->q, k, s, lds, m, out, nv);
    for (int64_t t = 0; t < n; t++, v += ldv, o += ldo) {
        const LANES_VEC decay = lanes_set(r->decay[t]);
        KT_EACH (c, nv) {
            d[c] = lanes_mul(lanes_set(r->beta[t]),
                             lanes_fnma(decay, m[c], lanes_load(v + c * LANES)));
            out[c] = lanes_fma(lanes_set(r->dot[t]), d[c], lanes_mul(decay, out[c]));
            lanes_store(o + c * LANES, out[c]);
        }
        if (t + 1 < n)
            pass_columns(r, t, decay, d, k, s, lds, m, out, nv);
        else
            write_columns(r->k + t * r->ldk, decay, d, k, s, lds, nv);
    }
}

/* Columns of the state lie 4 v bytes apart, in an eighth of L1's sets with v = 128: worth a copy
 * when it is used again. */
#define COPIED (LANES == 16 ? 2 : WIDTH)
#define ROWS_FOR_COPY 4

static void copy_rows(float *to, int64_t ldt, const float *from, int64_t ldf, int64_t rows) {
    for (int64_t i = 0; i < rows; i++)
        KT_EACH (c, COPIED)
            lanes_store(to + i * ldt + c * LANES, lanes_load(from + i * ldf + c * LANES));
}

static void recur(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                  int64_t n) {
    const int64_t k = c->problem->k, v = c->problem->v;
    const float *values = c->v + row * c->ld + head * v;
    float *s = c->state + head * k * v, *o = c->out + row * c->ldo + head * v;
    int64_t x = 0;

    for (int64_t i = 0; i < n; i++) {
        kt_delta_rates(c, head, row + i, &r->beta[i], &r->g[i]);
        r->decay[i] = expf(r->g[i]);
        r->dot[i] = product(r->k + i * r->ldk, r->q + i * r->ldk, r->ldk);
    }
    for (; n >= ROWS_FOR_COPY && x + COPIED * LANES <= v; x += COPIED * LANES) {
        float *copy = r->turned;
        copy_rows(copy, COPIED * LANES, s + x, v, k);
        recur_columns(r, n, k, values + x, c->ld, copy, COPIED * LANES, o + x, c->ldo, COPIED);
        copy_rows(s + x, v, copy, COPIED * LANES, k);
    }
    for (; n == 1 && x + WIDEST * LANES <= v; x += WIDEST * LANES)
        recur_columns(r, n, k, values + x, c->ld, s + x, v, o + x, c->ldo, WIDEST);
    for (; x + WIDTH * LANES <= v; x += WIDTH * LANES)
        recur_columns(r, n, k, values + x, c->ld, s + x, v, o + x, c->ldo, WIDTH);
    for (; x < v; x += LANES) recur_columns(r, n, k, values + x, c->ld, s + x, v, o + x, c->ldo, 1);
}

/* ---- chunks ---- */

/* to = diag(keep) to + a b, keep NULL = 0; [rows, width] += [rows, depth] [depth, width]. */
typedef struct matrices {
    float *to;
    const float *keep, *a, *b;
    int64_t ldt, lda, ldb, depth;
} matrices;

/* nr rows x nv vectors from row `row` and column x on; constants at each call. */
KT_INLINE void multiply_tile(const matrices *m, int64_t row, int64_t x, const int nr,
                             const int nv) {
    const float *a = m->a + row * m->lda;
    float *to = m->to + row * m->ldt + x;
    LANES_VEC sum[4][WIDTH];

    KT_EACH (r, nr) {
        KT_EACH (c, nv)
            sum[r][c] = m->keep ? lanes_mul(lanes_set(m->keep[row + r]),
                                            lanes_load(to + r * m->ldt + c * LANES))
                                : lanes_set(0.0f);
    }
    for (int64_t i = 0; i < m->depth; i++) {
        LANES_VEC b[WIDTH];
        KT_EACH (c, nv) b[c] = lanes_load(m->b + i * m->ldb + x + c * LANES);
        KT_EACH (r, nr) {
            const LANES_VEC f = lanes_set(a[r * m->lda + i]);
            KT_EACH (c, nv) sum[r][c] = lanes_fma(f, b[c], sum[r][c]);
        }
    }
    KT_EACH (r, nr) {
        KT_EACH (c, nv) lanes_store(to + r * m->ldt + c * LANES, sum[r][c]);
    }
}

#define TILE \
    (LANES == 16 ? 4 : 2) /* vectors beside four rows: eight or sixteen sums in registers */

static void multiply(const matrices *m, int64_t rows, int64_t width) {
    int64_t row = 0;

    for (; row + 4 <= rows; row += 4) {
        int64_t x = 0;
        for (; x + TILE * LANES <= width; x += TILE * LANES) multiply_tile(m, row, x, 4, TILE);
        for (; x < width; x += LANES) multiply_tile(m, row, x, 4, 1);
    }
    for (; row < rows; row++) {
        int64_t x = 0;
        for (; x + TILE * LANES <= width; x += TILE * LANES) multiply_tile(m, row, x, 1, TILE);
        for (; x < width; x += LANES) multiply_tile(m, row, x, 1, 1);
    }
}

/* Rows of to += rows of a times the rows of b before them: `self` = 1 takes b's row of the same
 * number in. b may be to: four rows take all before them at once, then each other's in order. */
static void multiply_below(const matrices *m, int64_t rows, int64_t width, int64_t self) {
    for (int64_t row = 0; row < rows; row += 4) {
        const int64_t n = rows - row < 4 ? rows - row : 4;
        matrices part = *m;
        part.to += row * m->ldt;
        part.a += row * m->lda;
        part.depth = row;
        if (row) multiply(&part, n, width);
        part.b += row * m->ldb;
        for (int64_t r = 0; r < n; r++) {
            matrices one = part;
            one.to += r * m->ldt;
            one.a += r * m->lda + row;
            one.depth = r + self;
            if (one.depth) multiply(&one, 1, width);
        }
    }
}

/* Products of the rows with each other, for all value heads of the key head. */
static void products_of_rows(const delta_room *r, int64_t n) {
    matrices m = {.ldt = ROWS, .lda = r->ldk, .b = r->turned, .ldb = ROWS, .depth = r->ldk};

    memset(r->turned, 0, (size_t)(r->ldk * ROWS) * sizeof *r->turned);
    for (int64_t i = 0; i < n; i++)
        for (int64_t x = 0; x < r->ldk; x++) r->turned[x * ROWS + i] = r->k[i * r->ldk + x];
    m.to = r->kk, m.a = r->k;
    multiply(&m, n, (n + LANES - 1) / LANES * LANES);
    m.to = r->qk, m.a = r->q;
    multiply(&m, n, (n + LANES - 1) / LANES * LANES);
}

/* Row i of -A and P; what is past the diagonal is not read. */
static void weigh_row(const delta_room *r, const double *sum, int64_t i) {
    float e[ROWS];

    for (int64_t j = 0; j < ROWS; j++) e[j] = j <= i ? (float)(sum[i] - sum[j]) : 0.0f;
    for (int64_t j = 0; j <= i; j += LANES) {
        const LANES_VEC f = lanes_exp(lanes_load(e + j));
        const float *kk = r->kk + i * ROWS + j, *qk = r->qk + i * ROWS + j;
        lanes_store(r->near + i * ROWS + j,
                    lanes_mul(lanes_mul(lanes_set(-r->beta[i]), f), lanes_load(kk)));
        lanes_store(r->seen + i * ROWS + j, lanes_mul(f, lanes_load(qk)));
    }
}

/* The right side of the substitution: beta_i (v_i - exp(G_i) k_i S0). */
static void errors_of_state(const kt_delta_call *c, const delta_room *r, const float *values,
                            int64_t n) {
    const int64_t v = c->problem->v;

    for (int64_t i = 0; i < n; i++)
        for (int64_t x = 0; x < v; x += LANES) {
            float *d = r->d + i * v + x;
            const LANES_VEC e = lanes_fnma(lanes_set(r->decay[i]), lanes_load(d),
                                           lanes_load(values + i * c->ld + x));
            lanes_store(d, lanes_mul(lanes_set(r->beta[i]), e));
        }
}

/* Row i of n, width floats and ld apart, times f[i]. */
static void scale_rows(float *to, int64_t ld, const float *f, int64_t n, int64_t width) {
    for (int64_t i = 0; i < n; i++)
        for (int64_t x = 0; x < width; x += LANES)
            lanes_store(to + i * ld + x, lanes_mul(lanes_set(f[i]), lanes_load(to + i * ld + x)));
}

static const float ones[ROWS] = {
#define FOUR_ONES 1.0f, 1.0f, 1.0f, 1.0f
#define SIXTEEN_ONES FOUR_ONES, FOUR_ONES, FOUR_ONES, FOUR_ONES
    SIXTEEN_ONES, SIXTEEN_ONES, SIXTEEN_ONES, SIXTEEN_ONES};

/* D of n rows from `row` on; G into sum. */
static void substitute(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                       int64_t n, double sum[ROWS]) {
    const int64_t k = c->problem->k, v = c->problem->v;
    const matrices of_state = {.to = r->d,
                               .ldt = v,
                               .a = r->k,
                               .lda = r->ldk,
                               .b = c->state + head * k * v,
                               .ldb = v,
                               .depth = k};
    const matrices of_rows = {
        .to = r->d, .ldt = v, .keep = ones, .a = r->near, .lda = ROWS, .b = r->d, .ldb = v};

    for (int64_t i = 0; i < n; i++) {
        kt_delta_rates(c, head, row + i, &r->beta[i], &r->g[i]);
        sum[i] = (i ? sum[i - 1] : 0.0) + r->g[i];
        r->decay[i] = expf((float)sum[i]);
        weigh_row(r, sum, i);
    }
    multiply(&of_state, n, v);
    errors_of_state(c, r, c->v + row * c->ld + head * v, n);
    multiply_below(&of_rows, n, v, 0);
}

/* A chunk of n rows from `row` on. */
static void chunk(const kt_delta_call *c, const delta_room *r, int64_t head, int64_t row,
                  int64_t n) {
    const int64_t k = c->problem->k, v = c->problem->v;
    float *s = c->state + head * k * v, *o = c->out + row * c->ldo + head * v, rest[ROWS];
    double sum[ROWS];
    const matrices of_state = {
        .to = o, .ldt = c->ldo, .a = r->q, .lda = r->ldk, .b = s, .ldb = v, .depth = k};
    const matrices of_rows = {
        .to = o, .ldt = c->ldo, .keep = ones, .a = r->seen, .lda = ROWS, .b = r->d, .ldb = v};
    const matrices state = {.to = s,
                            .ldt = v,
                            .keep = r->same,
                            .a = r->turned,
                            .lda = ROWS,
                            .b = r->d,
                            .ldb = v,
                            .depth = n};

    substitute(c, r, head, row, n, sum);
    multiply(&of_state, n, v);
    scale_rows(o, c->ldo, r->decay, n, v);
    multiply_below(&of_rows, n, v, 1);
    for (int64_t i = 0; i < n; i++) rest[i] = expf((float)(sum[n - 1] - sum[i]));
    for (int64_t x = 0; x < k; x++) r->same[x] = r->decay[n - 1];
    scale_rows(r->d, v, rest, n, v);
    multiply(&state, k, v);
}

/* ---- the walk ---- */

/* n rows of the value heads [first, last) of one key head. */
static void rows_of_heads(const kt_delta_call *c, const delta_room *r, int64_t first, int64_t last,
                          int64_t row, int64_t n, int is_chunk) {
    const int64_t v = c->problem->v;

    load_rows(c, r, first / (c->problem->n / c->problem->kv_heads), row, n);
    if (is_chunk) products_of_rows(r, n);
    for (int64_t head = first; head < last; head++) {
        if (is_chunk)
            chunk(c, r, head, row, n);
        else
            recur(c, r, head, row, n);
        for (int64_t i = row; c->z && i < row + n; i++)
            gate_row(c, c->z + i * c->ldz + head * v, c->out + i * c->ldo + head * v);
    }
}

/* size: of a chunk, or 0 = recurrence alone. Chunks begin where the position is a multiple of
 * their size; rows that do not fill one go by the recurrence. */
static void walk(const kt_delta_call *c, int64_t size) {
    const int64_t group = c->problem->n / c->problem->kv_heads;
    const delta_room r = room_at(c->problem, c->scratch);

    for (int64_t first = c->head_begin, last; first < c->head_end; first = last) {
        last = (first / group + 1) * group;
        if (last > c->head_end) last = c->head_end;
        for (int64_t row = 0, n; row < c->rows; row += n) {
            const int64_t into = size ? (c->position + row) % size : 0;
            const int is_chunk = size && into == 0 && c->rows - row >= size;
            n = size ? size - into : ROWS;
            if (n > c->rows - row) n = c->rows - row;
            rows_of_heads(c, &r, first, last, row, n, is_chunk);
        }
    }
}

#endif
