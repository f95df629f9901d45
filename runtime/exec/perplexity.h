/* Perplexity of a text under a model. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PERPLEXITY_H
#define KT_RUNTIME_PERPLEXITY_H

#include "runtime/exec/engine.h"

typedef struct kt_perplexity {
    int64_t tokens, windows, counted;
    double nll;        /* mean natural negative log-likelihood of a counted token */
    double perplexity; /* exp(nll) */
} kt_perplexity;

/* Protocol: the tokens are cut into windows of `window` that do not overlap, the last partial
 * one is dropped; each starts at position 0 without BOS; tokens 1 .. window - 1 count. progress
 * (may be NULL) is told after each window; a nonzero answer stops with KT_E_CANCELLED. */
kt_status kt_perplexity_measure(kt_engine *e, const int32_t *tokens, int64_t n, int64_t window,
                                int (*progress)(void *arg, const kt_perplexity *so_far), void *arg,
                                kt_perplexity *out, kt_err *err);

#endif
