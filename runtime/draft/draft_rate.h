/* How often drafted tokens come true: measured for every generated token that there was a draft
 * for, whether it was computed as a draft or not. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_DRAFT_RATE_H
#define KT_RUNTIME_DRAFT_RATE_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KT_DRAFT_CLASSES = 5, /* of matches: 2 to 3 tokens, 4 to 7, 8 to 15, 16 to 31, 32 and more */
    KT_DRAFT_MOST = 16    /* tokens of a draft */
};

/* Trials and hits of each class, old ones fading. Zero-initialise. */
typedef struct kt_draft_rate {
    double trials[KT_DRAFT_CLASSES], hits[KT_DRAFT_CLASSES];
} kt_draft_rate;

/* Token i of a draft that continues a match of `matched` tokens is one whose match has matched + i.
 * is_hit: what was generated is what was drafted. */
void kt_draft_rate_add(kt_draft_rate *rate, int64_t matched, bool is_hit);

/* The probability that the token behind a match of `matched` tokens comes true, by a text's own
 * trials and those of all texts: the latter count as some trials before the text's first, and as
 * half where nothing was tried at all. In (0, 1). */
double kt_draft_rate_of(const kt_draft_rate *own, const kt_draft_rate *all, int64_t matched);

#endif
