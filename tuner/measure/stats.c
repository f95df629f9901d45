/* SPDX-License-Identifier: Apache-2.0 */
#include "tuner/measure/stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static int sort_copy(const double *x, int n, double *sorted) {
    if (n > KT_MAX_SAMPLES) n = KT_MAX_SAMPLES;
    memcpy(sorted, x, sizeof *sorted * (size_t)n);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return n;
}

static double sorted_quantile(const double *sorted, int n, double q) {
    double at = q * (n - 1);
    int i = (int)at;
    if (i >= n - 1) return sorted[n - 1];
    return sorted[i] + (at - i) * (sorted[i + 1] - sorted[i]);
}

double kt_quantile(const double *x, int n, double q) {
    double sorted[KT_MAX_SAMPLES];
    n = sort_copy(x, n, sorted);
    return sorted_quantile(sorted, n, q);
}

/* A resample of sorted values is known by how often each was drawn, so its quantile is found by one
 * walk over the counts: no sort per resample, O(n) instead of O(n log n). */
static double resampled_quantile(const double *sorted, int n, double q, kt_rng *rng) {
    uint16_t drawn[KT_MAX_SAMPLES] = {0};
    double at = q * (n - 1);
    int rank = (int)at, seen = 0, i = 0;
    double low, high;

    for (int j = 0; j < n; j++) drawn[kt_rng_u64(rng) % (uint64_t)n]++;
    while (seen + drawn[i] <= rank) seen += drawn[i++];
    low = sorted[i];
    if (rank >= n - 1) return low;
    while (seen + drawn[i] <= rank + 1) seen += drawn[i++];
    high = sorted[i];
    return low + (at - rank) * (high - low);
}

kt_interval kt_quantile_interval(const double *x, int n, double q, double confidence, kt_rng *rng) {
    double sorted[KT_MAX_SAMPLES], boot[KT_BOOTSTRAP_ROUNDS];
    double tail = (1 - confidence) / 2;
    kt_interval out;

    n = sort_copy(x, n, sorted);
    for (int i = 0; i < KT_BOOTSTRAP_ROUNDS; i++) boot[i] = resampled_quantile(sorted, n, q, rng);
    qsort(boot, KT_BOOTSTRAP_ROUNDS, sizeof *boot, by_value);
    out.point = sorted_quantile(sorted, n, q);
    out.low = sorted_quantile(boot, KT_BOOTSTRAP_ROUNDS, tail);
    out.high = sorted_quantile(boot, KT_BOOTSTRAP_ROUNDS, 1 - tail);
    return out;
}

kt_interval kt_median_interval(const double *x, int n, double confidence) {
    double sorted[KT_MAX_SAMPLES], at_most_k, term;
    int k = 0;

    n = sort_copy(x, n, sorted);
    term = at_most_k = pow(0.5, n); /* P(Binomial(n, 1/2) = 0) */
    for (int next = 1; 2 * next < n; next++) {
        term *= (double)(n - next + 1) / next;
        at_most_k += term;
        if (2 * at_most_k > 1 - confidence) break;
        k = next;
    }
    return (kt_interval){sorted_quantile(sorted, n, 0.5), sorted[k], sorted[n - 1 - k]};
}

kt_interval kt_paired_log_ratio(const double *a, const double *b, int n, double confidence,
                                kt_rng *rng) {
    double ratio[KT_MAX_SAMPLES];
    if (n > KT_MAX_SAMPLES) n = KT_MAX_SAMPLES;
    for (int i = 0; i < n; i++) ratio[i] = log(a[i] / b[i]);
    return kt_quantile_interval(ratio, n, 0.5, confidence, rng);
}

/* Quantile of the normal distribution by bisection of erfc: 50 steps are exact to the last digits. */
static double normal_quantile(double tail) {
    double low = 0, high = 40;
    for (int i = 0; i < 50; i++) {
        double middle = (low + high) / 2;
        if (0.5 * erfc(middle / sqrt(2)) > tail)
            low = middle;
        else
            high = middle;
    }
    return low;
}

double kt_interval_p(kt_interval e, double confidence) {
    double deviation = (e.high - e.low) / 2 / normal_quantile((1 - confidence) / 2);
    if (!(deviation > 0)) return e.point == 0 ? 1 : 0;
    return erfc(fabs(e.point) / deviation / sqrt(2));
}

int kt_false_discovery(const double *p, int n, double rate, bool *marked) {
    int last = 0;
    if (n > KT_MAX_DISCOVERIES) n = KT_MAX_DISCOVERIES;
    /* The largest k with at least k values up to rate * k / n; those values are significant. */
    for (int k = 1; k <= n; k++) {
        int within = 0;
        for (int i = 0; i < n; i++) within += p[i] <= rate * k / n;
        if (within >= k) last = within;
    }
    for (int i = 0; i < n; i++) marked[i] = last > 0 && p[i] <= rate * last / n;
    return last;
}

/* P(at most hits of n) at this rate. */
static double binomial_tail(int hits, int n, double rate) {
    double sum = 0;
    for (int k = 0; k <= hits; k++)
        sum += exp(lgamma(n + 1.0) - lgamma(k + 1.0) - lgamma(n - k + 1.0) + k * log(rate) +
                   (n - k) * log1p(-rate));
    return sum;
}

double kt_rate_upper(int hits, int n, double confidence) {
    double low = (double)hits / n, high = 1;

    if (hits >= n) return 1;
    for (int i = 0; i < 60; i++) {
        const double middle = (low + high) / 2;
        if (middle > 0 && binomial_tail(hits, n, middle) > 1 - confidence)
            low = middle;
        else
            high = middle;
    }
    return high;
}
