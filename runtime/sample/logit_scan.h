/* Passes over the logits of a whole vocabulary, in blocks of 64 tokens: one word of a mask each.
 * The largest logit of every block is found once; everything after that looks at few blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOGIT_SCAN_H
#define KT_RUNTIME_LOGIT_SCAN_H

#include <stddef.h>
#include <stdint.h>

enum { KT_LOGIT_BLOCK = 64 };

/* A token and its logit: one that penalties or biases touch, or a candidate. */
typedef struct kt_token_logit {
    int32_t id;
    float logit;
} kt_token_logit;

/* Logits as the choice sees them; nothing is copied. All pointers are borrowed. */
typedef struct kt_logit_view {
    const float *logits; /* [n] */
    int64_t n, n_blocks;
    const uint64_t *mask;          /* NULL = all are allowed */
    const kt_token_logit *touched; /* ascending ids: their logits instead */
    size_t n_touched;
    float *block_max; /* [n_blocks], of kt_logit_maxima */
} kt_logit_view;

/* Fill block_max; returns the largest of all. NaN and what is not allowed count as -infinity, here
 * and in all other functions. */
float kt_logit_maxima(kt_logit_view *v);
/* The lowest id that has the logit `best`, the largest. */
int32_t kt_logit_find(const kt_logit_view *v, float best);
/* The 64 logits of a block, behind the last token -infinity: in place, or in tmp. */
const float *kt_logit_block(const kt_logit_view *v, int64_t block, float tmp[KT_LOGIT_BLOCK]);

/* A bound that at least k tokens reach, as high as block maxima tell: the k-th largest of them;
 * -infinity when there are fewer blocks. work: float [n_blocks]. */
float kt_logit_bound(const kt_logit_view *v, int64_t k, float *work);
/* Tokens with a logit >= bound, in order of ids; out has room for kt_logit_room of them. */
size_t kt_logit_room(const kt_logit_view *v, float bound);
size_t kt_logit_gather(const kt_logit_view *v, float bound, kt_token_logit *out);

/* exp((x[i] - top) * scale) for a block, relative error under 3e-7; 0 under exp(-87). */
void kt_logit_exp(const float *x, float top, float scale, float out[KT_LOGIT_BLOCK]);
/* Sum of these over all tokens, at scale for each block into sums [n_blocks] (may be NULL), and the
 * exponentials themselves into out [64 * n_blocks] (may be NULL). */
double kt_logit_exp_sum(const kt_logit_view *v, float top, float scale, double *sums, float *out);
/* Over x [64 * n_blocks] >= 0: the sum of those >= bound, *count how many; sums as above. */
double kt_logit_sum_from(const float *x, int64_t n_blocks, float bound, int64_t *count,
                         double *sums);

#endif
