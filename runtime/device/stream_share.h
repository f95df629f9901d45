/* Which experts of the CPU a device computes for one long step: a pure function of the routing and
 * of two rates. Their weights cross the link for it (expert_stream.h).
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_STREAM_SHARE_H
#define KT_RUNTIME_STREAM_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

/* --prefill-offload: "auto" (the default, also NULL) as the table says, "off" never, ROWS from
 * steps of so many rows on; "ROWS:P%" then always P percent of the experts with rows. */
typedef struct kt_stream_word {
    bool is_auto;
    int64_t rows; /* INT64_MAX = never; of auto not set */
    int percent;  /* -1 = so that both sides end together */
} kt_stream_word;

/* KT_E_INVALID with what was found and what was expected. */
kt_status kt_stream_word_parse(const char *text, kt_stream_word *out, kt_err *err);

/* One layer's call. */
typedef struct kt_stream_call {
    const int64_t *rows;  /* [experts] of each in this step */
    const int32_t *place; /* [experts] at least 0: the device has it already */
    int64_t experts;
    int64_t topk;
    /* The crossover: rows of a step at which all experts over the link take as long as the CPU
     * takes for all of their rows. Both rates follow: an expert takes the link 1 / experts of that
     * time, a row of an expert takes the CPU 1 / (crossover * topk) of it. */
    int64_t crossover;
    int percent; /* as above */
} kt_stream_call;

/* Experts that cross, those with most rows first, into list (room for call->experts); how many. As
 * long as the side that ends last ends sooner by one more. Nobody crosses without rows. The same
 * for the same call. Thread-safe. */
int64_t kt_stream_choose(const kt_stream_call *call, int32_t *list);

#endif
