/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_ref.h"

#include <math.h>

#include "kernels/attn/attn_common.h"

/* Element i of row j of keys or values. */
static double stored(const kt_attn_call *c, const void *rows, const float *scale, int64_t j,
                     int64_t i) {
    double item = kt_attn_item(c->problem->weights, rows, j * c->ldkv + i);
    return kt_attn_has_scales(c->problem->weights) ? item * scale[j] : item;
}

/* What queries and weights are rounded to: relative to each number, or in steps of its group. Queries go to the
 * nearest, weights to one of the two neighbours; a little more, since the quotient is rounded before. */
#define GROUP 32
static const double query_rounding = 0.501 / 127.0, weight_rounding = 1.001 / 255.0;

static double roundoff(kt_numerics numerics) {
    return numerics == KT_NUM_BF16_F32 ? 0x1p-8 : 0.0;
}

/* Most that element i of a query is off by. */
static double query_error(const kt_attn_call *c, const float *q, int64_t i, kt_numerics numerics) {
    int64_t end = i / GROUP * GROUP + GROUP;
    double top = 0.0;

    if (numerics != KT_NUM_ACTS8) return roundoff(numerics) * fabs((double)q[i] * c->scale);
    if (end > c->problem->k) end = c->problem->k;
    for (int64_t x = i / GROUP * GROUP; x < end; x++)
        top = fmax(top, fabs((double)q[x] * c->scale));
    return query_rounding * top;
}

/* Scores into work[0..n), and how far the f32 score may be off into work[n..2n): d products with the
 * rounded, scaled query, and the row's scale. */
static double score_keys(const kt_attn_call *c, const float *q, int64_t n, kt_numerics numerics,
                         double *work) {
    const double f32 = (2.0 * (double)c->problem->k + 3.0) * 0x1p-24;
    double top = -INFINITY;

    for (int64_t j = 0; j < n; j++) work[j] = work[n + j] = 0.0;
    for (int64_t i = 0; i < c->problem->k; i++) {
        double x = (double)q[i] * c->scale, off = query_error(c, q, i, numerics);
        for (int64_t j = 0; j < n; j++) {
            double key = stored(c, c->k, c->k_scale, j, i);
            work[j] += x * key;
            work[n + j] += f32 * fabs(x * key) + off * fabs(key);
        }
    }
    for (int64_t j = 0; j < n; j++) top = fmax(top, work[j]);
    return top;
}

/* What rounding weights in steps of their group adds to column i: up to a step times the code, for all. */
static double error_of_steps(const kt_attn_call *c, const double *weights, int64_t n, int64_t i) {
    double error = 0.0;

    for (int64_t begin = 0; begin < n; begin += GROUP) {
        int64_t end = begin + GROUP < n ? begin + GROUP : n;
        double top = 0.0, codes = 0.0;
        for (int64_t j = begin; j < end; j++) {
            top = fmax(top, weights[j] * c->v_scale[j]);
            codes += fabs(kt_attn_item(c->problem->weights, c->v, j * c->ldkv + i));
        }
        error += weight_rounding * top * codes;
    }
    return error;
}

/* Weight j is off by the factor exp(delta_j): its score's error, the rounding of score - max, the
 * polynomial (2^-22), its own rounding, and per later block or chunk one more exp and product to rescale. Numerator and
 * denominator are sums of n terms (times a value's scale) in any order, 2 n u of the sum of magnitudes each:
 *   |error| <= sum P |v| (e_j + 2 n u) + |want| (sum P e_j + 2 n u),  e_j = exp(delta_j) - 1,
 * and to second order a little more, hence 1.1. Weights below 2^-126 may vanish. */
void kt_attn_ref(const kt_attn_call *c, int64_t row, int64_t head, kt_numerics numerics,
                 double *work, double *want, double *bound) {
    const double u = 0x1p-24;
    int64_t n = (int64_t)c->position[row] + 1, d = c->problem->k;
    const float *q = c->q + row * c->ldq + head * d;
    double top = score_keys(c, q, n, numerics, work), total = 0.0, spread = 0.0;
    double steps = 3.0 + (double)(n / KT_ATTN_BLOCK + n / KT_ATTN_CHUNK);

    for (int64_t j = 0; j < n; j++) {
        double delta =
            work[n + j] + u * (fabs(work[j]) + fabs(top)) + steps * 0x1p-22 + roundoff(numerics);
        work[n + j] = expm1(delta) + 2.0 * (double)(n + 1) * u;
        work[j] = exp(work[j] - top);
        total += work[j];
    }
    for (int64_t j = 0; j < n; j++) spread += work[j] / total * work[n + j];
    for (int64_t i = 0; i < d; i++) {
        double sum = 0.0, error = 0.0, size = 0.0;
        for (int64_t j = 0; j < n; j++) {
            double v = stored(c, c->v, c->v_scale, j, i), p = work[j] / total;
            sum += p * v;
            error += p * fabs(v) * work[n + j];
            size += fabs(v);
        }
        if (numerics == KT_NUM_ACTS8) error += error_of_steps(c, work, n, i) / total;
        want[i] = sum;
        bound[i] = 1.1 * (error + fabs(sum) * spread) + 0x1p-125 * size + 0x1p-126;
    }
}
