/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_scan.h"

#include <math.h>
#include <string.h>

enum { BLOCK = KT_LOGIT_BLOCK };

/* ---- blocks ---- */

/* First touched token with an id of at least `id`. */
static size_t first_touched(const kt_logit_view *v, int64_t id) {
    size_t low = 0, high = v->n_touched;

    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (v->touched[middle].id < id)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* The block, when touched[at] is the first touched token that may lie in it. */
static const float *block_at(const kt_logit_view *v, int64_t block, size_t at, float *tmp) {
    const int64_t first = block * BLOCK, left = v->n - first;
    const uint64_t mask = v->mask ? v->mask[block] : UINT64_MAX;
    const int is_touched = at < v->n_touched && v->touched[at].id < first + BLOCK;

    if (mask == UINT64_MAX && left >= BLOCK && !is_touched) return v->logits + first;
    for (int i = 0; left < BLOCK && i < BLOCK; i++) tmp[i] = -INFINITY;
    memcpy(tmp, v->logits + first, (size_t)(left < BLOCK ? left : BLOCK) * sizeof *tmp);
    for (; at < v->n_touched && v->touched[at].id < first + BLOCK; at++)
        tmp[v->touched[at].id - first] = v->touched[at].logit;
    for (uint64_t m = ~mask; m; m &= m - 1) tmp[__builtin_ctzll(m)] = -INFINITY;
    return tmp;
}

const float *kt_logit_block(const kt_logit_view *v, int64_t block, float tmp[KT_LOGIT_BLOCK]) {
    return block_at(v, block, first_touched(v, block * BLOCK), tmp);
}

void kt_logit_apply(kt_logit_view *v, float *out) {
    const size_t n = (size_t)v->n_blocks * BLOCK;

    memcpy(out, v->logits, (size_t)v->n * sizeof *out);
    for (size_t i = (size_t)v->n; i < n; i++) out[i] = -INFINITY;
    for (size_t i = 0; i < v->n_touched; i++) out[v->touched[i].id] = v->touched[i].logit;
    for (int64_t b = 0; v->mask && b < v->n_blocks; b++)
        for (uint64_t m = ~v->mask[b]; m; m &= m - 1)
            out[b * BLOCK + __builtin_ctzll(m)] = -INFINITY;
    v->logits = out;
    v->n = (int64_t)n;
    v->mask = NULL;
    v->n_touched = 0;
}

/* ---- maxima ---- */

float kt_logit_maxima(kt_logit_view *v) {
    float best = -INFINITY, tmp[BLOCK];
    size_t at = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        if (v->mask && !v->mask[b]) {
            v->block_max[b] = -INFINITY;
            continue;
        }
        while (at < v->n_touched && v->touched[at].id < b * BLOCK) at++;
        v->block_max[b] = v->pass->maximum(block_at(v, b, at, tmp));
        if (v->block_max[b] > best) best = v->block_max[b];
    }
    return best;
}

int32_t kt_logit_find(const kt_logit_view *v, float best) {
    float tmp[BLOCK];

    for (int64_t b = 0; b < v->n_blocks; b++) {
        const float *x;
        if (v->block_max[b] != best) continue;
        x = kt_logit_block(v, b, tmp);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] == best && b * BLOCK + i < v->n) return (int32_t)(b * BLOCK + i);
    }
    return 0;
}

/* ---- the likeliest ---- */

/* The k-th largest of x [n], which is put in another order (Hoare's selection). */
static float select_largest(float *x, int64_t n, int64_t k) {
    int64_t low = 0, high = n - 1;

    while (low < high) {
        const float pivot = x[low + (high - low) / 2];
        int64_t i = low, j = high;
        while (i <= j) {
            while (x[i] > pivot) i++;
            while (x[j] < pivot) j--;
            if (i <= j) {
                const float held = x[i];
                x[i++] = x[j];
                x[j--] = held;
            }
        }
        if (k - 1 <= j)
            high = j;
        else if (k - 1 >= i)
            low = i;
        else
            break;
    }
    return x[k - 1];
}

float kt_logit_bound(const kt_logit_view *v, int64_t k, float *work) {
    if (k > v->n_blocks) return -INFINITY;
    memcpy(work, v->block_max, (size_t)v->n_blocks * sizeof *work);
    return select_largest(work, v->n_blocks, k);
}

void kt_logit_keep_largest(float *x, int64_t n, int64_t k, float *work) {
    int64_t equals = k;
    float least;

    for (int64_t i = 0; i < n; i++) work[i] = x[i] > -INFINITY ? x[i] : -INFINITY; /* no NaN */
    least = select_largest(work, n, k);
    for (int64_t i = 0; i < n; i++) equals -= x[i] > least;
    for (int64_t i = 0; i < n; i++) {
        if (x[i] == least && equals-- > 0) continue;
        if (!(x[i] > least)) x[i] = -INFINITY;
    }
}

size_t kt_logit_room(const kt_logit_view *v, float bound) {
    size_t n = 0;
    for (int64_t b = 0; b < v->n_blocks; b++) n += v->block_max[b] >= bound ? BLOCK : 0;
    return n;
}

size_t kt_logit_gather(const kt_logit_view *v, float bound, kt_token_logit *out) {
    float tmp[BLOCK];
    size_t n = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        const float *x;
        if (!(v->block_max[b] >= bound)) continue;
        x = kt_logit_block(v, b, tmp);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] >= bound && b * BLOCK + i < v->n)
                out[n++] = (kt_token_logit){(int32_t)(b * BLOCK + i), x[i]};
    }
    return n;
}

/* ---- weights ---- */

double kt_logit_weigh(const kt_logit_view *v, const kt_logit_cut *cut, double *sums,
                      float *weights) {
    float tmp[BLOCK];
    double total = 0;
    size_t at = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        double sum = 0;
        if (v->block_max[b] >= cut->least && v->block_max[b] > -INFINITY) {
            while (at < v->n_touched && v->touched[at].id < b * BLOCK) at++;
            sum =
                v->pass->weigh(block_at(v, b, at, tmp), cut, weights ? weights + b * BLOCK : NULL);
        }
        if (sums) sums[b] = sum;
        total += sum;
    }
    return total;
}

double kt_logit_sum_over(const kt_logit_view *v, const float *weights, float over, double *sums,
                         int64_t *equals) {
    float tmp[BLOCK];
    double total = 0;
    size_t at = 0;

    *equals = 0;
    for (int64_t b = 0; b < v->n_blocks; b++) {
        sums[b] = 0;
        if (!(v->block_max[b] >= over)) continue;
        while (at < v->n_touched && v->touched[at].id < b * BLOCK) at++;
        sums[b] = v->pass->sum_over(block_at(v, b, at, tmp), weights + b * BLOCK, over, equals);
        total += sums[b];
    }
    return total;
}

double kt_logit_weigh_exactly(const kt_logit_view *v, double top, double temperature, float least) {
    float tmp[BLOCK];
    double total = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        const float *x;
        if (!(v->block_max[b] >= least)) continue;
        x = kt_logit_block(v, b, tmp);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] >= least) total += exp(((double)x[i] - top) / temperature);
    }
    return total;
}

/* ---- equals ---- */

int64_t kt_logit_count(const kt_logit_view *v, float logit, int64_t end) {
    float tmp[BLOCK];
    int64_t count = 0;

    for (int64_t b = 0; b * BLOCK < end; b++) {
        const float *x;
        int32_t n = 0;
        if (!(v->block_max[b] >= logit)) continue;
        x = kt_logit_block(v, b, tmp);
        if (end - b * BLOCK >= BLOCK)
            for (int i = 0; i < BLOCK; i++) n += x[i] == logit;
        else
            for (int i = 0; i < end - b * BLOCK; i++) n += x[i] == logit;
        count += n;
    }
    return count;
}

int32_t kt_logit_nth(const kt_logit_view *v, float logit, int64_t n) {
    float tmp[BLOCK];

    for (int64_t b = 0; b < v->n_blocks; b++) {
        const float *x;
        if (!(v->block_max[b] >= logit)) continue;
        x = kt_logit_block(v, b, tmp);
        for (int i = 0; i < BLOCK; i++)
            if (x[i] == logit && n-- == 0) return (int32_t)(b * BLOCK + i);
    }
    return -1;
}
