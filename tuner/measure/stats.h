/* Order statistics and bootstrap intervals of timing samples.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_STATS_H
#define KT_TUNER_STATS_H

#include <stdbool.h>

#include "base/rng.h"

#define KT_MAX_SAMPLES 256       /* kept per contender; more would not change a decision */
#define KT_BOOTSTRAP_ROUNDS 1000 /* resamples: the 0.5 % tail is then five draws deep */

/* An estimate with the bounds of its interval. */
typedef struct kt_interval {
    double point, low, high;
} kt_interval;

/* Quantile q (0..1) of n >= 1 values, linear between order statistics; x is not changed.
 * n <= KT_MAX_SAMPLES; more are ignored. Thread-safe. */
double kt_quantile(const double *x, int n, double q);

/* Bootstrap interval (percentile method) of quantile q of n >= 1 values. */
kt_interval kt_quantile_interval(const double *x, int n, double q, double confidence, kt_rng *rng);

/* Median of n >= 1 independent values with the interval between two of them that holds the true
 * median at least with this confidence, whatever the distribution (the sign test): x[k] and
 * x[n-1-k] of the sorted values miss it with 2 P(Binomial(n, 1/2) <= k). Of fewer than six
 * values all of them, which is 94 % of five. */
kt_interval kt_median_interval(const double *x, int n, double confidence);

/* The largest rate that still gives at most `hits` of n >= 1 trials with probability 1 -
 * confidence: the one-sided upper bound of Clopper and Pearson (Biometrika 26, 1934). The lower
 * bound is 1 - kt_rate_upper(n - hits, n). */
double kt_rate_upper(int hits, int n, double confidence);

/* Median of log(a[i] / b[i]) over pairs taken in the same round, with its paired bootstrap
 * interval. Positive: b is faster. n >= 1; all values > 0. */
kt_interval kt_paired_log_ratio(const double *a, const double *b, int n, double confidence,
                                kt_rng *rng);

/* Two-sided p-value of a normal estimate with a 1 - confidence interval [low, high] around
 * point. Zero width: 0, or 1 when the point is 0. */
double kt_interval_p(kt_interval estimate, double confidence);

/* Benjamini and Hochberg: mark those of n p-values that are significant when at most `rate` of
 * the marked may be false. Returns how many. n <= KT_MAX_DISCOVERIES; more are not marked. */
#define KT_MAX_DISCOVERIES 8192
int kt_false_discovery(const double *p, int n, double rate, bool *marked);

#endif
