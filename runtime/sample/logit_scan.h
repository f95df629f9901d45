/* Passes over the logits of a whole vocabulary, in blocks of 64 tokens: one word of a mask each.
 * The largest logit of every block is found once; everything after that looks at few blocks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_LOGIT_SCAN_H
#define KT_RUNTIME_LOGIT_SCAN_H

#include <stddef.h>
#include <stdint.h>

#include "runtime/sample/logit_pass.h"

/* A token and its logit: one that penalties or biases touch, or a candidate. */
typedef struct kt_token_logit {
    int32_t id;
    float logit;
} kt_token_logit;

/* Logits as the choice sees them; nothing is copied. All pointers are borrowed. */
typedef struct kt_logit_view {
    const kt_logit_pass *pass;
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

/* Write the logits as the choice sees them into out [64 * n_blocks], which the view then is of: for
 * many passes. */
void kt_logit_apply(kt_logit_view *v, float *out);

/* A bound that at least k tokens reach, as high as block maxima tell: the k-th largest of them;
 * -infinity when there are fewer blocks. work: float [n_blocks]. */
float kt_logit_bound(const kt_logit_view *v, int64_t k, float *work);
/* Leave the k largest of x [n], k <= n, the first among equals; the others become -infinity. A
 * vocabulary takes a millisecond. work: float [n]. */
void kt_logit_keep_largest(float *x, int64_t n, int64_t k, float *work);
/* Tokens with a logit >= bound, in order of ids; out has room for kt_logit_room of them. */
size_t kt_logit_room(const kt_logit_view *v, float bound);
size_t kt_logit_gather(const kt_logit_view *v, float bound, kt_token_logit *out);

/* The sum of all weights; each block's into sums [n_blocks] and each token's into weights
 * [64 * n_blocks], unless NULL. Weights of blocks in which nothing counts are not written. */
double kt_logit_weigh(const kt_logit_view *v, const kt_logit_cut *cut, double *sums,
                      float *weights);
/* The sum of those weights, made by kt_logit_weigh from all logits, that are of logits over `over`,
 * without weighing again: the same bits as that would give. *equals: how many logits are `over`. */
double kt_logit_sum_over(const kt_logit_view *v, const float *weights, float over, double *sums,
                         int64_t *equals);
/* The same in double throughout, which takes milliseconds. */
double kt_logit_weigh_exactly(const kt_logit_view *v, double top, double temperature, float least);
/* Tokens of exactly this logit: how many have an id under `end`, and the id of number n, n from 0,
 * or -1. */
int64_t kt_logit_count(const kt_logit_view *v, float logit, int64_t end);
int32_t kt_logit_nth(const kt_logit_view *v, float logit, int64_t n);

#endif
