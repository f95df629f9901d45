/* Four lanes at a time: SSE2 is what every x86-64 processor has, and the passes wait for the cache,
 * not for arithmetic. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/logit_scan.h"

#include <emmintrin.h>
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
    for (int i = 0; i < BLOCK; i++) tmp[i] = -INFINITY;
    memcpy(tmp, v->logits + first, (size_t)(left < BLOCK ? left : BLOCK) * sizeof *tmp);
    for (; at < v->n_touched && v->touched[at].id < first + BLOCK; at++)
        tmp[v->touched[at].id - first] = v->touched[at].logit;
    for (int i = 0; mask != UINT64_MAX && i < BLOCK; i++)
        if (!(mask >> i & 1)) tmp[i] = -INFINITY;
    return tmp;
}

const float *kt_logit_block(const kt_logit_view *v, int64_t block, float tmp[KT_LOGIT_BLOCK]) {
    return block_at(v, block, first_touched(v, block * BLOCK), tmp);
}

/* ---- maxima ---- */

static float max_of_lanes(__m128 x) {
    x = _mm_max_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_max_ss(x, _mm_shuffle_ps(x, x, 1)));
}

/* Of two operands of which the first is NaN, maxps gives the second. */
static float block_maximum(const float *x) {
    __m128 a = _mm_set1_ps(-INFINITY), b = a, c = a, d = a;

    for (int i = 0; i < BLOCK; i += 16) {
        a = _mm_max_ps(_mm_loadu_ps(x + i), a);
        b = _mm_max_ps(_mm_loadu_ps(x + i + 4), b);
        c = _mm_max_ps(_mm_loadu_ps(x + i + 8), c);
        d = _mm_max_ps(_mm_loadu_ps(x + i + 12), d);
    }
    return max_of_lanes(_mm_max_ps(_mm_max_ps(a, b), _mm_max_ps(c, d)));
}

float kt_logit_maxima(kt_logit_view *v) {
    float best = -INFINITY, tmp[BLOCK];
    size_t at = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        if (v->mask && !v->mask[b]) {
            v->block_max[b] = -INFINITY;
            continue;
        }
        while (at < v->n_touched && v->touched[at].id < b * BLOCK) at++;
        v->block_max[b] = block_maximum(block_at(v, b, at, tmp));
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

/* ---- exponentials ---- */

/* exp(x) for x <= 0: x = n ln 2 + r with |r| <= ln 2 / 2, whose exponential is the polynomial of
 * Cephes' expf; ln 2 is in two parts so that r is exact. -87 ln: the smallest normal number. */
static __m128 exp4(__m128 x) {
    const __m128 is_seen = _mm_cmpgt_ps(x, _mm_set1_ps(-87.0f));
    __m128 clamped = _mm_max_ps(x, _mm_set1_ps(-87.0f)); /* NaN becomes -87 */
    __m128i n = _mm_cvtps_epi32(_mm_mul_ps(clamped, _mm_set1_ps(1.44269504f)));
    __m128 whole = _mm_cvtepi32_ps(n), p = _mm_set1_ps(1.9875691500e-4f);
    __m128 r = _mm_sub_ps(clamped, _mm_mul_ps(whole, _mm_set1_ps(0.693359375f)));

    r = _mm_sub_ps(r, _mm_mul_ps(whole, _mm_set1_ps(-2.12194440e-4f)));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.3981999507e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(8.3334519073e-3f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(4.1665795894e-2f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(1.6666665459e-1f));
    p = _mm_add_ps(_mm_mul_ps(p, r), _mm_set1_ps(5.0000001201e-1f));
    p = _mm_add_ps(_mm_mul_ps(_mm_mul_ps(p, r), r), _mm_add_ps(r, _mm_set1_ps(1)));
    n = _mm_slli_epi32(_mm_add_epi32(n, _mm_set1_epi32(127)), 23);
    return _mm_and_ps(is_seen, _mm_mul_ps(p, _mm_castsi128_ps(n)));
}

static double sum_of_lanes(__m128 x) {
    const __m128d d = _mm_add_pd(_mm_cvtps_pd(x), _mm_cvtps_pd(_mm_movehl_ps(x, x)));
    return _mm_cvtsd_f64(d) + _mm_cvtsd_f64(_mm_unpackhi_pd(d, d));
}

static double exp_block(const float *x, float top, float scale, float *out) {
    const __m128 t = _mm_set1_ps(top), s = _mm_set1_ps(scale);
    __m128 sum[4] = {_mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps(), _mm_setzero_ps()};

    for (int i = 0; i < BLOCK; i += 4) {
        const __m128 e = exp4(_mm_mul_ps(_mm_sub_ps(_mm_loadu_ps(x + i), t), s));
        sum[i / 4 % 4] = _mm_add_ps(sum[i / 4 % 4], e);
        if (out) _mm_storeu_ps(out + i, e);
    }
    return sum_of_lanes(_mm_add_ps(_mm_add_ps(sum[0], sum[1]), _mm_add_ps(sum[2], sum[3])));
}

void kt_logit_exp(const float *x, float top, float scale, float out[KT_LOGIT_BLOCK]) {
    exp_block(x, top, scale, out);
}

double kt_logit_exp_sum(const kt_logit_view *v, float top, float scale, double *sums, float *out) {
    float tmp[BLOCK];
    double total = 0;
    size_t at = 0;

    for (int64_t b = 0; b < v->n_blocks; b++) {
        double sum;
        while (at < v->n_touched && v->touched[at].id < b * BLOCK) at++;
        sum = exp_block(block_at(v, b, at, tmp), top, scale, out ? out + b * BLOCK : NULL);
        if (sums) sums[b] = sum;
        total += sum;
    }
    return total;
}

double kt_logit_sum_from(const float *x, int64_t n_blocks, float bound, int64_t *count,
                         double *sums) {
    const __m128 least = _mm_set1_ps(bound);
    __m128i n = _mm_setzero_si128();
    int32_t lanes[4];
    double total = 0;

    for (int64_t b = 0; b < n_blocks; b++) {
        __m128 sum = _mm_setzero_ps();
        double of_block;
        for (int i = 0; i < BLOCK; i += 4) {
            const __m128 e = _mm_loadu_ps(x + b * BLOCK + i), is_in = _mm_cmpge_ps(e, least);
            sum = _mm_add_ps(sum, _mm_and_ps(is_in, e));
            n = _mm_sub_epi32(n, _mm_castps_si128(is_in));
        }
        of_block = sum_of_lanes(sum);
        if (sums) sums[b] = of_block;
        total += of_block;
    }
    _mm_storeu_si128((__m128i *)(void *)lanes, n);
    *count = (int64_t)lanes[0] + lanes[1] + lanes[2] + lanes[3];
    return total;
}
