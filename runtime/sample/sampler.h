/* Choosing the next token. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SAMPLER_H
#define KT_RUNTIME_SAMPLER_H

#include "base/rng.h"
#include "kt/sampler.h"

#define KT_SAMPLING_GREEDY ((kt_sampling){0.0f, 0, 1.0f, 0.0f, 1.0f, 0.0f, 0.0f, 0})

/* How often a token was generated, and whether the prompt has it. */
typedef struct kt_token_count {
    int32_t id, generated;
} kt_token_count;

/* The choices of one sequence: options, random numbers, and the few tokens that penalties and
 * biases touch. One thread at a time. */
struct kt_sampler {
    kt_sampling options;
    kt_rng rng;
    int64_t vocab;
    kt_token_count *counts; /* owned: ascending ids, each once */
    size_t n_counts, counts_capacity;
    kt_token_bias *bias; /* owned: ascending ids, each once */
    size_t n_bias;
};

/* Working memory of a pick, for one thread at a time; any number of samplers share one.
 * Zero-initialise. */
typedef struct kt_sampler_scratch {
    const struct kt_logit_pass *pass; /* for this processor; NULL = not chosen yet */
    void *memory;                     /* owned */
    size_t bytes;
    void *candidates; /* owned */
    size_t n_candidates;
    void *touched; /* owned */
    size_t n_touched;
    void *logits; /* owned: after mask, biases and penalties, and as much again: to select in, then
                     weights */
    size_t n_logits;
} kt_sampler_scratch;

void kt_sampler_scratch_deinit(kt_sampler_scratch *w);

/* Takes no memory yet. 0 on success; -1 when memory is short for the biases (bias may be NULL, ids
 * in any order; of an id that stands twice the sum counts; ids outside the vocabulary are left
 * out). */
int kt_sampler_init(kt_sampler *s, const kt_sampling *options, const kt_token_bias *bias,
                    size_t n_bias, int64_t vocab);
void kt_sampler_deinit(kt_sampler *s);
/* Pick from logits f32 [vocab]. mask: NULL, or bit i % 64 of word i / 64 says that token i is
 * allowed. Order: mask, bias, penalties, temperature, then top-k, top-p and min-p, each on what the
 * one before left. Ties: lowest id. NaN is impossible. Returns -1 when the mask allows nothing, -2
 * when memory is short.
 * Deterministic: the same sampler, logits and mask give the same token on every machine of one
 * kind. */
int32_t kt_sampler_pick(kt_sampler *s, const float *logits, const uint64_t *mask,
                        kt_sampler_scratch *w);

/* Natural logs of probabilities under the plain softmax of logits [vocab]: of id into *own, and the
 * n likeliest tokens in descending order (ties: lowest id) into ids and logprobs [n]. Returns how
 * many there are, or -1 when memory is short. */
int kt_sampler_logprobs(const float *logits, int64_t vocab, int32_t id, int n, float *own,
                        int32_t *ids, float *logprobs, kt_sampler_scratch *w);

#endif
