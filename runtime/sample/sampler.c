/* Sampling: penalties, temperature, then top-k, top-p and min-p in that order, each on what the one
 * before left. Candidates are taken from a heap in descending order, so that a vocabulary of 150,000
 * is not sorted for the sake of the twenty tokens that matter.
 * SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int kt_sampler_init(kt_sampler *s, const kt_sampling *options, int64_t vocab) {
    size_t n = (size_t)vocab;

    memset(s, 0, sizeof *s);
    s->options = *options;
    s->vocab = vocab;
    kt_rng_seed(&s->rng, options->seed);
    s->scratch = malloc(n * sizeof *s->scratch);
    s->order = malloc(n * sizeof *s->order);
    s->counts = calloc(n, sizeof *s->counts);
    if (s->scratch && s->order && s->counts) return 0;
    kt_sampler_deinit(s);
    return -1;
}

void kt_sampler_deinit(kt_sampler *s) {
    free(s->scratch);
    free(s->order);
    free(s->counts);
    memset(s, 0, sizeof *s);
}

void kt_sampler_accept(kt_sampler *s, int32_t token) {
    if (token >= 0 && token < s->vocab && s->counts[token] < INT32_MAX) s->counts[token]++;
}

/* Logits after penalties into scratch; NaN counts as impossible. */
static void penalise(kt_sampler *s, const float *logits) {
    const kt_sampling *o = &s->options;

    for (int64_t i = 0; i < s->vocab; i++) {
        float l = isnan(logits[i]) ? -INFINITY : logits[i];
        if (s->counts[i]) {
            l = l > 0 ? l / o->repetition_penalty : l * o->repetition_penalty;
            l -= o->presence_penalty + o->frequency_penalty * (float)s->counts[i];
        }
        s->scratch[i] = l;
    }
}

static int32_t largest(const float *x, int64_t n) {
    int32_t best = 0;

    for (int64_t i = 1; i < n; i++)
        if (x[i] > x[best]) best = (int32_t)i;
    return best;
}

static float log_probability(const float *logits, int64_t n, int32_t token) {
    double top = logits[largest(logits, n)], sum = 0;

    for (int64_t i = 0; i < n; i++) sum += exp((double)logits[i] - top);
    return (float)((double)logits[token] - top - log(sum));
}

/* ---- a max-heap of token ids by logit, lower id first among equals ---- */

static int goes_first(const float *x, int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
}

static void sift_down(const float *x, int32_t *heap, int64_t n, int64_t at) {
    for (;;) {
        int64_t child = 2 * at + 1;
        int32_t held = heap[at];
        if (child >= n) return;
        if (child + 1 < n && goes_first(x, heap[child + 1], heap[child])) child++;
        if (!goes_first(x, heap[child], held)) return;
        heap[at] = heap[child];
        heap[child] = held;
        at = child;
    }
}

/* Move the first of the heap's n ids behind the others. */
static int32_t pop(const float *x, int32_t *heap, int64_t n) {
    int32_t first = heap[0];

    heap[0] = heap[n - 1];
    heap[n - 1] = first;
    sift_down(x, heap, n - 1, 0);
    return first;
}

/* ---- drawing ---- */

static double weight(const kt_sampler *s, int32_t token, double top) {
    return exp(((double)s->scratch[token] - top) / s->options.temperature);
}

static int32_t draw_from_all(kt_sampler *s, int32_t best) {
    double top = s->scratch[best], sum = 0, at, passed = 0;
    int32_t last = best;

    for (int64_t i = 0; i < s->vocab; i++) sum += weight(s, (int32_t)i, top);
    at = kt_rng_double(&s->rng) * sum;
    for (int64_t i = 0; i < s->vocab; i++) {
        double w = weight(s, (int32_t)i, top);
        if (w <= 0) continue;
        last = (int32_t)i;
        passed += w;
        if (passed > at) break;
    }
    return last;
}

/* Number of candidates kept, at the end of order in descending order from its end; *kept is the sum
 * of their weights. */
static int64_t keep_best(kt_sampler *s, int32_t best, double *kept) {
    const kt_sampling *o = &s->options;
    int64_t n = s->vocab, most = o->top_k > 0 && o->top_k < n ? o->top_k : n, count = 0;
    double top = s->scratch[best], total = 0, limit;

    for (int64_t i = 0; i < n; i++) s->order[i] = (int32_t)i;
    for (int64_t i = n / 2; i-- > 0;) sift_down(s->scratch, s->order, n, i);
    if (most == n)
        for (int64_t i = 0; i < n; i++) total += weight(s, (int32_t)i, top);
    else
        for (; count < most; count++) total += weight(s, pop(s->scratch, s->order, n - count), top);
    limit = (double)o->top_p * total;
    *kept = 0;
    for (int64_t i = 0; i < most; i++) {
        int32_t token = i < count ? s->order[n - 1 - i] : pop(s->scratch, s->order, n - i);
        double w = weight(s, token, top);
        if (i > 0 && (*kept >= limit || w < o->min_p || w <= 0)) return i;
        *kept += w;
    }
    return most;
}

static int32_t draw_from_best(kt_sampler *s, int32_t best) {
    double kept, at;
    int64_t n = keep_best(s, best, &kept), i = 0;

    at = kt_rng_double(&s->rng) * kept;
    for (; i + 1 < n; i++) {
        at -= weight(s, s->order[s->vocab - 1 - i], s->scratch[best]);
        if (at < 0) break;
    }
    return s->order[s->vocab - 1 - i];
}

int32_t kt_sampler_pick(kt_sampler *s, const float *logits, float *logprob) {
    const kt_sampling *o = &s->options;
    int32_t token;

    penalise(s, logits);
    token = largest(s->scratch, s->vocab);
    if (o->temperature > 0 && isfinite(s->scratch[token])) {
        int is_filtered = o->top_k > 0 || o->top_p < 1 || o->min_p > 0;
        token = is_filtered ? draw_from_best(s, token) : draw_from_all(s, token);
    }
    if (logprob) *logprob = log_probability(logits, s->vocab, token);
    return token;
}
