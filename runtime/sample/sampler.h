/* Choosing the next token. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SAMPLER_H
#define KT_RUNTIME_SAMPLER_H

#include <stdint.h>

#include "base/rng.h"

typedef struct kt_sampling {
    float temperature;                         /* 0 = greedy */
    int32_t top_k;                             /* 0 = off */
    float top_p;                               /* 1 = off */
    float min_p;                               /* 0 = off */
    float repetition_penalty;                  /* 1 = off */
    float presence_penalty, frequency_penalty; /* 0 = off */
    uint64_t seed;
} kt_sampling;

#define KT_SAMPLING_GREEDY ((kt_sampling){0.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0})

typedef struct kt_sampler {
    kt_sampling options;
    kt_rng rng;
    int64_t vocab;
    float *scratch;  /* owned */
    int32_t *order;  /* owned */
    int32_t *counts; /* owned: times each token was generated or given */
} kt_sampler;

/* 0 on success, -1 when memory is short. */
int kt_sampler_init(kt_sampler *s, const kt_sampling *options, int64_t vocab);
void kt_sampler_deinit(kt_sampler *s);
void kt_sampler_accept(kt_sampler *s, int32_t token); /* counts for the penalties */
/* Pick from logits [vocab] (unchanged). Ties: lowest id. *logprob (may be NULL) is the natural log
 * of its probability under the plain softmax of logits. */
int32_t kt_sampler_pick(kt_sampler *s, const float *logits, float *logprob);

#endif
