/* SPDX-License-Identifier: Apache-2.0 */
#include "kernels/attn/attn_ref.h"

#include <math.h>

#include "base/numeric.h"
#include "kernels/attn/attn_common.h"

/* Keys, or values, that a row sees: its first one is number 0. */
typedef struct seen {
    kt_weight_format cache;
    const char *rows;
    int64_t ld;
    const float *scale; /* NULL = 1 */
} seen;

static seen seen_from(const kt_attn_call *c, const void *rows, int64_t ld, const float *scale,
                      int64_t first) {
    kt_weight_format cache = c->problem->weights;
    return (seen){.cache = cache,
                  .rows = (const char *)rows + (size_t)(first * ld) * kt_attn_item_bytes(cache),
                  .ld = ld,
                  .scale = kt_attn_has_scales(cache) ? scale + first : NULL};
}

/* The first d elements of row j, without and with the row's scale. */
static void read_codes(const seen *x, int64_t j, int64_t d, double *row) {
    const uint16_t *wide = (const uint16_t *)x->rows + j * x->ld;
    const int8_t *codes = (const int8_t *)x->rows + j * x->ld;

    if (x->cache == KT_W_INT8_CHANNEL)
        for (int64_t i = 0; i < d; i++) row[i] = codes[i];
    else if (x->cache == KT_W_FP8_CHANNEL)
        for (int64_t i = 0; i < d; i++) row[i] = kt_f8e4m3_to_f32((uint8_t)codes[i]);
    else
        for (int64_t i = 0; i < d; i++) row[i] = kt_bf16_to_f32(wide[i]);
}

static void read_row(const seen *x, int64_t j, int64_t d, double *row) {
    read_codes(x, j, d, row);
    for (int64_t i = 0; x->scale && i < d; i++) row[i] *= x->scale[j];
}

/* What queries and weights are rounded to: relative to each number, or in steps of their group. To
 * 8 bits, queries go to the nearest and weights to one of the two neighbours; to 16 bits both go to
 * the nearest, a step being the largest / 32767 and with a BF16 cache no less than the sum of sizes
 * / 131000. Its keys and values then are rounded too, in steps of the row's largest (of a key each
 * group of elements') / 16383. A little more everywhere, since quotients are rounded before. */
typedef struct stepping {
    int64_t queries, keys; /* of a group; keys: 0 = numbers are not rounded in steps */
    double query, weight;  /* most that one is off by, in parts of the group's largest */
    double sum;            /* the same in parts of its sum of sizes */
    double row; /* most that an element of the cache is off by, in parts of the largest */
} stepping;

static stepping stepping_of(kt_numerics numerics, kt_weight_format cache) {
    const double half = 0.51;

    if (numerics == KT_NUM_ACTS8)
        return (stepping){.queries = 32, .keys = 32, .query = 0.501 / 127, .weight = 1.001 / 255};
    if (numerics == KT_NUM_ACTS16)
        return (stepping){.queries = 128,
                          .keys = KT_ATTN_BLOCK,
                          .query = half / 32767,
                          .weight = half / 32767,
                          .sum = kt_attn_has_scales(cache) ? 0.0 : half / 131000,
                          .row = kt_attn_has_scales(cache) ? 0.0 : half / 16383};
    return (stepping){0};
}

static double roundoff(kt_numerics numerics) {
    return numerics == KT_NUM_BF16_F32 ? 0x1p-8 : 0.0;
}

/* Of elements [begin, end) of x, times `scale`: the largest size, and the sum of sizes to *sum. */
static double largest_of(const float *x, int64_t begin, int64_t end, double scale, double *sum) {
    double top = 0.0;

    *sum = 0.0;
    for (int64_t i = begin; i < end; i++) {
        top = fmax(top, fabs((double)x[i] * scale));
        *sum += fabs((double)x[i] * scale);
    }
    return top;
}

/* Most that element i of a query is off by. */
static double query_error(const kt_attn_call *c, const float *q, int64_t i, kt_numerics numerics) {
    const stepping step = stepping_of(numerics, c->problem->weights);
    double top, sum;
    int64_t begin, end;

    if (!step.keys) return roundoff(numerics) * fabs((double)q[i] * c->scale);
    begin = i / step.queries * step.queries;
    end = begin + step.queries < c->problem->k ? begin + step.queries : c->problem->k;
    top = largest_of(q, begin, end, c->scale, &sum);
    return fmax(step.query * top, step.sum * sum);
}

/* What rounding a row of the cache in steps adds to its score with x, whose elements are `off` by
 * so much. */
static double row_error(stepping step, int64_t d, const double *x, const double *off,
                        const double *row) {
    double error = 0.0;

    for (int64_t begin = 0, end; step.row > 0.0 && begin < d; begin = end) {
        double top = 0.0, sum = 0.0;
        end = begin + step.queries < d ? begin + step.queries : d;
        for (int64_t i = begin; i < end; i++) {
            top = fmax(top, fabs(row[i]));
            sum += fabs(x[i]) + off[i];
        }
        error += step.row * top * sum;
    }
    return error;
}

/* Scores into work[0..n), and how far the f32 score may be off into work[n..2n): d products with
 * the rounded, scaled query, and the row's scale. Returns the largest score. */
static double score_keys(const kt_attn_call *c, const float *q, const seen *keys, int64_t n,
                         kt_numerics numerics, double *work) {
    const double f32 = (2.0 * (double)c->problem->k + 3.0) * 0x1p-24;
    int64_t d = c->problem->k;
    double *x = work + 2 * n, *off = x + d, *key = off + d, top = -INFINITY;

    for (int64_t i = 0; i < d; i++) {
        x[i] = (double)q[i] * c->scale;
        off[i] = query_error(c, q, i, numerics) + f32 * fabs(x[i]);
    }
    for (int64_t j = 0; j < n; j++) {
        double score = 0.0, error = 0.0;
        read_row(keys, j, d, key);
        for (int64_t i = 0; i < d; i++) {
            score += x[i] * key[i];
            error += off[i] * fabs(key[i]);
        }
        work[j] = score;
        work[n + j] = error + row_error(stepping_of(numerics, c->problem->weights), d, x, off, key);
        top = fmax(top, score);
    }
    return top;
}

/* Of the row's d elements: what its scale is, or the step that its words have. */
static double row_step(const seen *values, stepping step, int64_t j, int64_t d, const double *row) {
    double top = 0.0;

    if (values->scale) return values->scale[j];
    for (int64_t i = 0; i < d; i++) top = fmax(top, fabs(row[i]));
    return top * step.row * 2.0;
}

/* Adds what rounding weights in steps of their group, and values in steps of their rows, adds to
 * each of d columns: up to a step times the code, for all. Groups begin where blocks do, in the
 * first block at its first key, which is number `first` of the cache. row and codes have room for d
 * each. */
static void add_error_of_steps(const seen *values, stepping step, const double *weights,
                               double total, int64_t first, int64_t n, int64_t d, double *row,
                               double *codes, double *error) {
    for (int64_t begin = 0, end; begin < n; begin = end) {
        int64_t block = KT_ATTN_BLOCK - (first + begin) % KT_ATTN_BLOCK; /* keys to its end */
        double top = 0.0, sum = 0.0, most;
        end = begin + (block < step.keys ? block : step.keys);
        if (end > n) end = n;
        for (int64_t i = 0; i < d; i++) codes[i] = 0.0;
        for (int64_t j = begin; j < end; j++) {
            double unit;
            read_codes(values, j, d, row);
            unit = row_step(values, step, j, d, row);
            top = fmax(top, weights[j] * unit);
            sum += weights[j] * unit;
            for (int64_t i = 0; i < d; i++) {
                codes[i] += values->scale ? fabs(row[i]) : unit > 0.0 ? fabs(row[i]) / unit + 1 : 0;
                if (step.row > 0.0) error[i] += weights[j] * unit / 2.0 / total;
            }
        }
        most = fmax(step.weight * top, step.sum * sum);
        for (int64_t i = 0; i < d; i++) error[i] += most * codes[i] / total;
    }
}

size_t kt_attn_ref_work(const kt_problem *p, int64_t keys) {
    int64_t d = kt_attn_value_size(p) > p->k ? kt_attn_value_size(p) : p->k;
    return (size_t)(2 * keys + 3 * d);
}

/* Weight j is off by the factor exp(delta_j): its score's error, the rounding of score - max,
 * the polynomial (2^-22), its own rounding, and per later block or chunk one more exp and
 * product to rescale. Numerator and denominator are sums of n terms (times a value's scale) in
 * any order, 2 n u of the sum of magnitudes each:
 *   |error| <= sum P |v| (e_j + 2 n u) + |want| (sum P e_j + 2 n u),  e_j = exp(delta_j) - 1,
 * and to second order a little more, hence 1.1. Weights below 2^-126 may vanish. A window that
 * begins inside a block and a chunk may have one of each more. A sink is one weight more, without a
 * value: its score is exact, its weight off by the rounding of score - max and two exponentials. */
void kt_attn_ref(const kt_attn_call *c, int64_t row, int64_t head, kt_numerics numerics,
                 double *work, double *want, double *bound) {
    const double u = 0x1p-24;
    int64_t first = kt_attn_first_key(c->problem, c->position[row]);
    int64_t n = (int64_t)c->position[row] + 1 - first, d = kt_attn_value_size(c->problem);
    const float *q = c->q + row * c->ldq + head * c->problem->k;
    const seen keys = seen_from(c, c->k, c->ldkv, c->k_scale, first);
    const seen values = seen_from(c, c->v, c->ldv ? c->ldv : c->ldkv, c->v_scale, first);
    double top = score_keys(c, q, &keys, n, numerics, work), total = 0.0, spread = 0.0;
    const double sink = c->sink ? c->sink[head] : -INFINITY;
    double *size = work + 2 * n, *value = size + d;
    double steps = (first ? 5.0 : 3.0) + (double)(n / KT_ATTN_BLOCK + n / KT_ATTN_CHUNK);

    if (sink > top) top = sink;
    if (c->sink) {
        const double delta = u * (fabs(sink) + fabs(top)) + (steps + 2.0) * 0x1p-22;
        total = exp(sink - top);
        spread = total * (expm1(delta) + 2.0 * (double)(n + 1) * u);
        steps += 2.0;
    }
    for (int64_t j = 0; j < n; j++) {
        double delta =
            work[n + j] + u * (fabs(work[j]) + fabs(top)) + steps * 0x1p-22 + roundoff(numerics);
        work[n + j] = expm1(delta) + 2.0 * (double)(n + 1) * u;
        work[j] = exp(work[j] - top);
        total += work[j];
    }
    spread /= total;
    for (int64_t j = 0; j < n; j++) spread += work[j] / total * work[n + j];
    for (int64_t i = 0; i < d; i++) want[i] = bound[i] = size[i] = 0.0;
    for (int64_t j = 0; j < n; j++) {
        double p = work[j] / total, e = p * work[n + j];
        read_row(&values, j, d, value);
        for (int64_t i = 0; i < d; i++) {
            want[i] += p * value[i];
            bound[i] += e * fabs(value[i]);
            size[i] += fabs(value[i]);
        }
    }
    if (stepping_of(numerics, c->problem->weights).keys)
        add_error_of_steps(&values, stepping_of(numerics, c->problem->weights), work, total, first,
                           n, d, value, value + d, bound);
    for (int64_t i = 0; i < d; i++)
        bound[i] = 1.1 * (bound[i] + fabs(want[i]) * spread) + 0x1p-125 * size[i] + 0x1p-126;
}
