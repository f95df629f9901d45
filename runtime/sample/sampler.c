/* Sampling. The maxima of blocks of 64 logits say where the likely tokens are: the k-th largest
 * maximum is a bound that at least k tokens reach, and every token that reaches it lies in a block
 * whose maximum does. So top-k reads the vocabulary once and then some k blocks.
 *
 * Without top-k nothing is sorted. A token is drawn from all that min-p leaves, and top-p keeps it
 * when the tokens before it weigh less than the share: one pass says that. Where they weigh more,
 * the share lies among them, and the next draw is from them alone. What is drawn is spread as if
 * the share had been found first, for each draw is from a set that holds it, and is taken only when
 * it lies inside. At a share p that takes about 1 + ln(1/p) passes over weights that were made
 * once. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/sample/sampler.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "runtime/sample/logit_scan.h"

enum { BLOCK = KT_LOGIT_BLOCK };

/* Bias that forbids a token, as the API has it. */
static const float forbidding = -100;

/* ---- what a sampler remembers ---- */

static int by_id(const void *a, const void *b) {
    const int32_t x = ((const kt_token_bias *)a)->id, y = ((const kt_token_bias *)b)->id;
    return (x > y) - (x < y);
}

static int copy_bias(kt_sampler *s, const kt_token_bias *bias, size_t n) {
    size_t kept = 0;

    if (n == 0) return 0;
    s->bias = malloc(n * sizeof *s->bias);
    if (!s->bias) return -1;
    for (size_t i = 0; i < n; i++)
        if (bias[i].id >= 0 && bias[i].id < s->vocab) s->bias[kept++] = bias[i];
    qsort(s->bias, kept, sizeof *s->bias, by_id);
    for (size_t i = 0; i < kept; i++) {
        kt_token_bias *last = s->n_bias ? &s->bias[s->n_bias - 1] : NULL;
        if (last && last->id == s->bias[i].id)
            last->bias += s->bias[i].bias;
        else
            s->bias[s->n_bias++] = s->bias[i];
    }
    return 0;
}

int kt_sampler_init(kt_sampler *s, const kt_sampling *options, const kt_token_bias *bias,
                    size_t n_bias, int64_t vocab) {
    memset(s, 0, sizeof *s);
    s->options = *options;
    s->vocab = vocab;
    kt_rng_seed(&s->rng, options->seed);
    return copy_bias(s, bias, n_bias);
}

void kt_sampler_deinit(kt_sampler *s) {
    free(s->counts);
    free(s->bias);
    memset(s, 0, sizeof *s);
}

void kt_sampler_scratch_deinit(kt_sampler_scratch *w) {
    free(w->memory);
    free(w->candidates);
    free(w->touched);
    free(w->logits);
    memset(w, 0, sizeof *w);
}

static int reserve_counts(kt_sampler *s, size_t more) {
    size_t want = s->counts_capacity ? s->counts_capacity : 64;
    kt_token_count *grown;

    while (want - s->n_counts < more) want *= 2;
    if (want == s->counts_capacity) return 0;
    grown = realloc(s->counts, want * sizeof *grown);
    if (!grown) return -1;
    s->counts = grown;
    s->counts_capacity = want;
    return 0;
}

static int count_order(const void *a, const void *b) {
    const int32_t x = ((const kt_token_count *)a)->id, y = ((const kt_token_count *)b)->id;
    return (x > y) - (x < y);
}

int kt_sampler_accept_prompt(kt_sampler *s, const int32_t *ids, size_t n) {
    size_t kept = 0;

    if (s->options.repetition_penalty == 1) return 0;
    if (reserve_counts(s, n) != 0) return -1;
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && ids[i] < s->vocab)
            s->counts[s->n_counts++] = (kt_token_count){ids[i], 0};
    qsort(s->counts, s->n_counts, sizeof *s->counts, count_order);
    for (size_t i = 0; i < s->n_counts; i++) {
        if (kept && s->counts[kept - 1].id == s->counts[i].id)
            s->counts[kept - 1].generated += s->counts[i].generated;
        else
            s->counts[kept++] = s->counts[i];
    }
    s->n_counts = kept;
    return 0;
}

int kt_sampler_accept(kt_sampler *s, int32_t token) {
    const kt_sampling *o = &s->options;
    size_t low = 0, high = s->n_counts;

    if (o->repetition_penalty == 1 && o->presence_penalty == 0 && o->frequency_penalty == 0)
        return 0;
    if (token < 0 || token >= s->vocab) return 0;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (s->counts[middle].id < token)
            low = middle + 1;
        else
            high = middle;
    }
    if (low == s->n_counts || s->counts[low].id != token) {
        if (reserve_counts(s, 1) != 0) return -1;
        memmove(s->counts + low + 1, s->counts + low, (s->n_counts - low) * sizeof *s->counts);
        s->counts[low] = (kt_token_count){token, 0};
        s->n_counts++;
    }
    if (s->counts[low].generated < INT32_MAX) s->counts[low].generated++;
    return 0;
}

/* ---- working memory ---- */

/* Parts of the scratch memory: for each block a maximum, a sum, a float of work. */
static float *block_maxima(kt_sampler_scratch *w, int64_t n_blocks) {
    return (float *)((double *)w->memory + n_blocks);
}
static double *block_sums(kt_sampler_scratch *w) {
    return w->memory;
}
static float *block_work(kt_sampler_scratch *w, int64_t n_blocks) {
    return block_maxima(w, n_blocks) + n_blocks;
}

static int reserve(void **memory, size_t *have, size_t want, size_t item) {
    void *fresh;

    if (want <= *have) return 0;
    fresh = malloc(want * item);
    if (!fresh) return -1;
    free(*memory);
    *memory = fresh;
    *have = want;
    return 0;
}

static int reserve_blocks(kt_sampler_scratch *w, int64_t n_blocks) {
    const size_t of_block = sizeof(double) + 2 * sizeof(float);
    return reserve(&w->memory, &w->bytes, (size_t)n_blocks * of_block, 1);
}

static kt_logit_view view_of(const float *logits, int64_t vocab, const uint64_t *mask,
                             kt_sampler_scratch *w) {
    const int64_t n_blocks = (vocab + BLOCK - 1) / BLOCK;

    if (!w->pass) w->pass = kt_logit_pass_best();
    return (kt_logit_view){.pass = w->pass,
                           .logits = logits,
                           .n = vocab,
                           .n_blocks = n_blocks,
                           .mask = mask,
                           .block_max = block_maxima(w, n_blocks)};
}

/* ---- penalties and biases ---- */

static float penalised(const kt_sampling *o, float l, int32_t generated) {
    l = l > 0 ? l / o->repetition_penalty : l * o->repetition_penalty;
    if (generated) l -= o->presence_penalty + o->frequency_penalty * (float)generated;
    return l;
}

/* Logits of all tokens that the sampler touches: a merge of two ascending lists. */
static int touch(const kt_sampler *s, const float *logits, kt_sampler_scratch *w,
                 kt_logit_view *v) {
    size_t i = 0, k = 0, n = 0;
    kt_token_logit *out;

    if (s->n_bias + s->n_counts == 0) return 0;
    if (reserve(&w->touched, &w->n_touched, s->n_bias + s->n_counts, sizeof *out) != 0) return -1;
    out = w->touched;
    while (i < s->n_bias || k < s->n_counts) {
        const int32_t a = i < s->n_bias ? s->bias[i].id : INT32_MAX;
        const int32_t b = k < s->n_counts ? s->counts[k].id : INT32_MAX;
        const int32_t id = a < b ? a : b;
        float l = isnan(logits[id]) ? -INFINITY : logits[id];
        if (a == id) {
            l = s->bias[i].bias <= forbidding ? -INFINITY : l + s->bias[i].bias;
            i++;
        }
        if (b == id) l = penalised(&s->options, l, s->counts[k++].generated);
        out[n++] = (kt_token_logit){id, l};
    }
    v->touched = out;
    v->n_touched = n;
    return 0;
}

/* ---- drawing ---- */

/* What a draw works with. */
typedef struct draw {
    kt_sampler *s;
    kt_sampler_scratch *w;
    kt_logit_view v;
    float top;
    int32_t best;
} draw;

static double weight(const draw *d, float logit) {
    return exp(((double)logit - d->top) / d->s->options.temperature);
}

/* Larger logit first, lower id first among equals. */
static int goes_first(const void *a, const void *b) {
    const kt_token_logit *x = a, *y = b;
    if (x->logit != y->logit) return x->logit > y->logit ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

/* Tokens that reach the bound, in the scratch's candidates; -1 when memory is short. */
static int64_t gather(kt_sampler_scratch *w, const kt_logit_view *v, float bound) {
    if (reserve(&w->candidates, &w->n_candidates, kt_logit_room(v, bound),
                sizeof(kt_token_logit)) != 0)
        return -1;
    return (int64_t)kt_logit_gather(v, bound, w->candidates);
}

/* The k best tokens in descending order, or all there are; -1 when memory is short. */
static int64_t gather_best(kt_sampler_scratch *w, const kt_logit_view *v, int64_t k) {
    const float bound = kt_logit_bound(v, k, block_work(w, v->n_blocks));
    const int64_t n = gather(w, v, bound);

    if (n > 1) qsort(w->candidates, (size_t)n, sizeof(kt_token_logit), goes_first);
    return n < k ? n : k;
}

/* How many of the n descending candidates top-p (kept share: limit) and min-p leave; *kept is the
 * sum of their weights. */
static int64_t filter(const draw *d, int64_t n, double limit, double *kept) {
    const kt_token_logit *c = d->w->candidates;

    *kept = 0;
    for (int64_t i = 0; i < n; i++) {
        const double w = weight(d, c[i].logit);
        if (i > 0 && (*kept >= limit || w < d->s->options.min_p || w <= 0)) return i;
        *kept += w;
    }
    return n;
}

static int32_t draw_candidate(draw *d, int64_t n, double kept) {
    const kt_token_logit *c = d->w->candidates;
    double at = kt_rng_double(&d->s->rng) * kept;
    int64_t i = 0;

    for (; i + 1 < n; i++) {
        at -= weight(d, c[i].logit);
        if (at < 0) break;
    }
    return c[i].id;
}

static int32_t draw_top_k(draw *d, int64_t k) {
    const kt_token_logit *c;
    double total = 0, kept;
    int64_t n = gather_best(d->w, &d->v, k);

    if (n < 0) return -2;
    c = d->w->candidates;
    for (int64_t i = 0; i < n; i++) total += weight(d, c[i].logit);
    n = filter(d, n, (double)d->s->options.top_p * total, &kept);
    return draw_candidate(d, n, kept);
}

/* ---- drawing from the whole vocabulary ---- */

/* The least logit that min-p leaves; -infinity without it. The best token always stays. */
static float least_of_min_p(const draw *d) {
    const kt_sampling *o = &d->s->options;
    float l;

    if (!(o->min_p > 0)) return -INFINITY;
    l = (float)((double)d->top + (double)o->temperature * log((double)o->min_p));
    while (weight(d, l) >= o->min_p) l = nextafterf(l, -INFINITY);
    while (l < d->top && weight(d, l) < o->min_p) l = nextafterf(l, INFINITY);
    return l < d->top ? l : d->top;
}

static kt_logit_cut cut_at(const draw *d, float least) {
    return (kt_logit_cut){d->top, 1 / d->s->options.temperature, least};
}

/* The token at which the running sum of the cut's weights passes `at`; `sums` are of its blocks. */
static int32_t find_passed(const draw *d, const kt_logit_cut *cut, const double *sums, double at) {
    float x[BLOCK], tmp[BLOCK];
    int64_t last = 0;
    int32_t found = d->best;

    for (int64_t b = 0; b < d->v.n_blocks; b++) {
        if (sums[b] <= 0) continue;
        last = b;
        if (at < sums[b]) break;
        at -= sums[b];
    }
    d->v.pass->weigh(kt_logit_block(&d->v, last, tmp), cut, x);
    for (int i = 0; i < BLOCK; i++) {
        if (x[i] <= 0) continue;
        found = (int32_t)(last * BLOCK + i);
        at -= x[i];
        if (at < 0) break;
    }
    return found;
}

static float logit_of(const draw *d, int32_t token) {
    float tmp[BLOCK];
    return kt_logit_block(&d->v, token / BLOCK, tmp)[token % BLOCK];
}

/* What tokens weigh: those over a logit, and all. */
typedef struct share_sums {
    double above, total;
} share_sums;

/* f32 sums err by less than 1e-5 of the total; where that decides, they are made again in
 * double. */
static int is_near(const share_sums *s, double difference) {
    return fabs(difference) <= 1e-5 * s->total;
}

static void sum_exactly(const draw *d, float over, share_sums *s) {
    const double t = d->s->options.temperature;

    s->above = kt_logit_weigh_exactly(&d->v, d->top, t, over);
    s->total = kt_logit_weigh_exactly(&d->v, d->top, t, -INFINITY);
}

/* Do the tokens from `over` on make up the share already? */
static int is_share_full(const draw *d, float over, share_sums s) {
    const double p = d->s->options.top_p;

    if (is_near(&s, s.above - p * s.total)) sum_exactly(d, over, &s);
    return s.above >= p * s.total;
}

/* Of tokens of weight w each, how many belong to the share besides those from `over` on. */
static double kept_of_equals(const draw *d, float over, share_sums s, double w) {
    const double p = d->s->options.top_p, kept = (p * s.total - s.above) / w;

    if (is_near(&s, (kept - nearbyint(kept)) * w)) sum_exactly(d, over, &s);
    return fmax(1, ceil((p * s.total - s.above) / w));
}

/* The share ends among tokens of one logit, of which the first `kept` belong to it; those over them
 * are the cut's, whose blocks have `sums`. */
static int32_t draw_with_equals(draw *d, const kt_logit_cut *over, const double *sums, double above,
                                float logit, int64_t kept) {
    const double w = weight(d, logit);
    const double at = kt_rng_double(&d->s->rng) * (above + w * (double)kept);
    int64_t n;

    if (at < above) return find_passed(d, over, sums, at);
    n = (int64_t)((at - above) / w);
    return kt_logit_nth(&d->v, logit, n < kept ? n : kept - 1);
}

/* One of the tokens from `least` on that top-p keeps. Tokens are weighed once, into weights [64 *
 * blocks]; what follows compares and adds. */
static int32_t draw_share(draw *d, float least, float *weights) {
    double *sums = block_sums(d->w), left, kept;
    kt_logit_cut cut = cut_at(d, -INFINITY);
    int64_t equals;
    share_sums s;

    left = s.total = kt_logit_weigh(&d->v, &cut, sums, weights);
    cut.least = least;
    if (least > -INFINITY)
        left = kt_logit_sum_over(&d->v, weights, nextafterf(least, -INFINITY), sums, &equals);
    for (;;) {
        const int32_t token = find_passed(d, &cut, sums, kt_rng_double(&d->s->rng) * left);
        const float logit = logit_of(d, token);
        cut.least = nextafterf(logit, INFINITY);
        left = s.above = kt_logit_sum_over(&d->v, weights, logit, sums, &equals);
        if (logit < d->top && is_share_full(d, cut.least, s)) continue;
        if (equals == 1) return token;
        kept = kept_of_equals(d, cut.least, s, weight(d, logit));
        if ((double)kt_logit_count(&d->v, logit, token) < kept) return token;
        return draw_with_equals(d, &cut, sums, left, logit, (int64_t)kept);
    }
}

/* `k` is 0 or more than there are blocks, when maxima of blocks say nothing. */
static int32_t draw_from_all(draw *d, int64_t k) {
    const kt_logit_cut cut = cut_at(d, least_of_min_p(d));
    const size_t n = (size_t)d->v.n_blocks * BLOCK;
    const bool is_share = d->s->options.top_p < 1, changes = k || d->v.mask || d->v.n_touched;
    double *sums = block_sums(d->w), total;
    float *all;

    if (d->s->options.top_p <= 0) return d->best;
    if ((is_share || changes) && reserve(&d->w->logits, &d->w->n_logits, 2 * n, sizeof *all) != 0)
        return -2;
    all = d->w->logits;
    if (changes) kt_logit_apply(&d->v, all);
    if (k) kt_logit_keep_largest(all, (int64_t)n, k, all + n);
    if (is_share) return draw_share(d, cut.least, all + n);
    total = kt_logit_weigh(&d->v, &cut, sums, NULL);
    return find_passed(d, &cut, sums, kt_rng_double(&d->s->rng) * total);
}

/* The lowest token that is allowed, where no logit says anything; -1 when there is none. */
static int32_t first_allowed(const uint64_t *mask, int64_t vocab) {
    if (!mask) return 0;
    for (int64_t i = 0; i < vocab; i++)
        if (mask[i / 64] >> (i % 64) & 1) return (int32_t)i;
    return -1;
}

int32_t kt_sampler_pick(kt_sampler *s, const float *logits, const uint64_t *mask,
                        kt_sampler_scratch *w) {
    const kt_sampling *o = &s->options;
    draw d = {.s = s, .w = w};

    if (reserve_blocks(w, (s->vocab + BLOCK - 1) / BLOCK) != 0) return -2;
    d.v = view_of(logits, s->vocab, mask, w);
    if (touch(s, logits, w, &d.v) != 0) return -2;
    d.top = kt_logit_maxima(&d.v);
    if (d.top == -INFINITY) return first_allowed(mask, s->vocab);
    d.best = kt_logit_find(&d.v, d.top);
    if (o->temperature <= 0 || !isfinite(d.top)) return d.best;
    if (o->top_k <= 0 || o->top_k >= s->vocab) return draw_from_all(&d, 0);
    return o->top_k > d.v.n_blocks ? draw_from_all(&d, o->top_k) : draw_top_k(&d, o->top_k);
}

int kt_sampler_logprobs(const float *logits, int64_t vocab, int32_t id, int n, float *own,
                        int32_t *ids, float *logprobs, kt_sampler_scratch *w) {
    const kt_token_logit *c;
    kt_logit_view v;
    double log_sum;
    int64_t found = 0;
    float top;

    if (reserve_blocks(w, (vocab + BLOCK - 1) / BLOCK) != 0) return -1;
    v = view_of(logits, vocab, NULL, w);
    top = kt_logit_maxima(&v);
    log_sum = (double)top + log(kt_logit_weigh(&v, &(kt_logit_cut){top, 1, -INFINITY}, NULL, NULL));
    *own = (float)((double)logits[id] - log_sum);
    if (n > 0) found = gather_best(w, &v, n < vocab ? n : vocab);
    if (found < 0) return -1;
    c = w->candidates;
    for (int64_t i = 0; i < found; i++) {
        ids[i] = c[i].id;
        logprobs[i] = (float)((double)c[i].logit - log_sum);
    }
    return (int)found;
}
