/* Choosing the next token from logits.
 *
 * Threads: a sampler is used by one thread at a time; different samplers are independent.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_SAMPLER_H
#define KT_SAMPLER_H

#include "kt/api.h"

#ifdef __cplusplus
extern "C" {
#endif

/* How tokens are chosen. kt_sampling_init makes it greedy. */
typedef struct kt_sampling {
    float temperature;                         /* 0 = greedy */
    int32_t top_k;                             /* 0 = off */
    float top_p;                               /* 1 = off */
    float min_p;                               /* 0 = off */
    float repetition_penalty;                  /* 1 = off */
    float presence_penalty, frequency_penalty; /* 0 = off */
    uint64_t seed;
} kt_sampling;

KT_API void kt_sampling_init(kt_sampling *sampling);

/* What is added to one token's logit; -100 or less forbids it. */
typedef struct kt_token_bias {
    int32_t id;
    float bias;
} kt_token_bias;

/* The choices of one sequence: options, random numbers, and the tokens that penalties count. */
typedef struct kt_sampler kt_sampler;

/* A sampler for logits of `vocab` tokens. bias [n_bias] may be NULL; ids in any order, of an id
 * that stands twice the sum counts, ids outside the vocabulary are left out. KT_E_INVALID for
 * options out of range, by name. */
KT_API kt_status kt_sampler_create(const kt_sampling *options, const kt_token_bias *bias,
                                   size_t n_bias, int64_t vocab, kt_sampler **out, kt_err *err);
KT_API void kt_sampler_destroy(kt_sampler *s);

/* Tokens of the prompt, which the repetition penalty counts, and one that was generated, which all
 * penalties count. Ids outside the vocabulary are ignored. 0, or -1 when memory is short. */
KT_API int kt_sampler_accept_prompt(kt_sampler *s, const int32_t *ids, size_t n);
KT_API int kt_sampler_accept(kt_sampler *s, int32_t token);

/* Pick from logits f32 [vocab], and accept what was picked. mask: NULL, or bit i % 64 of word
 * i / 64 says that token i is allowed. Order: mask, bias, penalties, temperature, then top-k, top-p
 * and min-p, each on what the one before left. Ties: lowest id. KT_E_INVALID when the mask allows
 * nothing, KT_E_NOMEM. Deterministic: the same sampler, logits and mask give the same token on
 * every machine of one kind. */
KT_API kt_status kt_sampler_next(kt_sampler *s, const float *logits, const uint64_t *mask,
                                 int32_t *token, kt_err *err);

#ifdef __cplusplus
}
#endif
#endif
