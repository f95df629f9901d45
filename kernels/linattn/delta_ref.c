/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/linattn/delta_ref.h"

#include <math.h>

#include "kernels/linattn/linattn_common.h"

static const double u = 0x1p-24;

/* One row, exact, and how far f32 is off: of k and q relatively, of alpha and beta too. */
typedef struct exact_row {
    double *k, *q;
    double alpha, beta;
    double k_off, q_off, alpha_off, beta_off;
} exact_row;

/* Per column of the state. A kernel's own state of a moment is the sum of what its updates d left,
 * by exact weights; how far that is off is e, in the norm of the column. The step I - beta k k^T
 * makes no vector longer (|k| <= 1, beta <= 1), so that e only grows by what a step adds: the
 * error of d and of its rounding.
 *
 * d comes from sums whose terms are the first state and all updates since, with weights that are
 * products of alpha: m bounds the sum of their magnitudes, far the error that the weights bring
 * into it. */
typedef struct column {
    double m, far, e;
} column;

size_t kt_delta_ref_doubles(const kt_problem *p) {
    return (size_t)(2 * p->k + 3 * p->v);
}

/* Sum of k squares (k u), root and quotient, the 1e-6 (exact in double to u of itself), two
 * products. */
static double unit(const float *x, int64_t n, double scale, double *out) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) sum += (double)x[i] * x[i];
    for (int64_t i = 0; i < n; i++) out[i] = scale * x[i] / sqrt(sum + (double)KT_DELTA_EPS);
    return (((double)n + 3.0) / 2.0 + 5.0) * u;
}

/* softplus(x), x = a + dt_bias: the sum is off by u |x|, its slope is at most 1; an exponential, a
 * logarithm and a sum add 6 u of the result. alpha_off is the error of g plus, in chunks, of its
 * share in a difference of sums. */
static void load_row(const kt_delta_call *c, int64_t head, int64_t row, exact_row *r) {
    const kt_problem *p = c->problem;
    const int64_t key = head / (p->n / p->kv_heads), at = row * c->ld + key * p->k;
    const double b = c->b[row * c->ldba + head];
    const double x = (double)c->a[row * c->ldba + head] + c->dt_bias[head];
    const double soft = fmax(x, 0.0) + log1p(exp(-fabs(x))), g = c->decay[head] * soft;

    r->k_off = unit(c->k + at, p->k, 1.0, r->k);
    r->q_off = unit(c->q + at, p->k, 1.0 / sqrt((double)p->k), r->q) + 2.0 * u;
    r->alpha = exp(g);
    r->alpha_off = fabs((double)c->decay[head]) * u * (fabs(x) + 6.0 * soft) + 3.0 * u * fabs(g);
    r->alpha_off = expm1(r->alpha_off) + 3.0 * u;
    r->beta = 1.0 / (1.0 + exp(-b));
    r->beta_off = 5.0 * u;
}

/* S <- alpha S + k d^T for column j; returns d. */
static double step_column(const exact_row *r, const kt_problem *p, double value, int64_t j,
                          double *state) {
    double m = 0.0, d;

    for (int64_t i = 0; i < p->k; i++) m += r->k[i] * r->alpha * state[i * p->v + j];
    d = r->beta * (value - m);
    for (int64_t i = 0; i < p->k; i++)
        state[i * p->v + j] = r->alpha * state[i * p->v + j] + r->k[i] * d;
    return d;
}

/* Rounding of a sum over the key, of up to a chunk's rows, and of a weight (2^-22). */
static double sum_off(const kt_problem *p) {
    return ((double)p->k + (double)KT_DELTA_ROWS + 12.0) * u + 0x1p-22;
}

static void step_error(const exact_row *r, const kt_problem *p, double value, double d, column *c) {
    const double m = r->alpha * c->m, far = r->alpha * (c->far + r->alpha_off * c->m);
    const double wrong = r->beta * ((sum_off(p) + 2.0 * r->k_off) * m + far +
                                    (r->beta_off + 3.0 * u) * (fabs(value) + m));

    c->e = r->alpha * c->e + wrong + (r->alpha_off + 2.0 * u) * m + (r->k_off + 2.0 * u) * fabs(d);
    c->m = m + fabs(d) + wrong;
    c->far = far;
}

/* What a column of the state, or with |q| its product with a query, is off by; 1.1: to second
 * order. */
static double column_off(const exact_row *r, const kt_problem *p, const column *c) {
    return 1.1 * (c->e + c->far + (sum_off(p) + r->k_off + r->q_off) * c->m) + 0x1p-120;
}

/* out = norm o r silu(z), r = 1 / sqrt(mean(o^2) + eps): the norm of o is off by at most that of
 * its bounds; the sum of squares, root and quotient by ((v + 3) / 2 + 4) u; three products and a
 * silu (2^-21) follow. */
static void gate(const kt_delta_call *c, const float *z, double *o, double *off) {
    const int64_t v = c->problem->v;
    double square = 0.0, wrong = 0.0, r, most, least, relative;

    for (int64_t j = 0; j < v; j++) square += o[j] * o[j], wrong += off[j] * off[j];
    r = 1.0 / sqrt(square / (double)v + c->eps);
    least = fmax(sqrt(square) - sqrt(wrong), 0.0);
    most = sqrt(square) + sqrt(wrong);
    relative = fmax(1.0 / sqrt(least * least / (double)v + c->eps) / r - 1.0,
                    1.0 - 1.0 / sqrt(most * most / (double)v + c->eps) / r);
    relative += (((double)v + 3.0) / 2.0 + 8.0) * u + 0x1p-21;
    for (int64_t j = 0; j < v; j++) {
        const double f = r * c->norm[j] * z[j] / (1.0 + exp(-(double)z[j]));
        off[j] = fabs(f) * (1.1 * relative * (fabs(o[j]) + off[j]) + off[j]) + 0x1p-120;
        o[j] *= f;
    }
}

void kt_delta_ref(const kt_delta_call *c, int64_t head, int64_t step, double *work, double *want,
                  double *bound, double *state, double *state_bound) {
    const kt_problem *p = c->problem;
    const double length = 1.0 / sqrt((double)p->k); /* of a query */
    exact_row r = {.k = work, .q = work + p->k};
    column *columns = (column *)(void *)(work + 2 * p->k);

    for (int64_t j = 0; j < p->v; j++) {
        double sum = 0.0;
        for (int64_t i = 0; i < p->k; i++) {
            double x = state[i * p->v + j] = c->state[(head * p->k + i) * p->v + j];
            sum += x * x;
        }
        columns[j] = (column){.m = sqrt(sum)};
    }
    for (int64_t row = 0; row < c->rows; row++) {
        double *o = want + row * step, *off = bound + row * step;
        load_row(c, head, row, &r);
        for (int64_t j = 0; j < p->v; j++) {
            double value = c->v[row * c->ld + head * p->v + j];
            step_error(&r, p, value, step_column(&r, p, value, j, state), &columns[j]);
            o[j] = 0.0;
            for (int64_t i = 0; i < p->k; i++) o[j] += r.q[i] * state[i * p->v + j];
            off[j] = length * column_off(&r, p, &columns[j]);
        }
        if (c->z) gate(c, c->z + row * c->ldz + head * p->v, o, off);
    }
    for (int64_t j = 0; j < p->v; j++)
        for (int64_t i = 0; i < p->k; i++)
            state_bound[i * p->v + j] = column_off(&r, p, &columns[j]);
}
