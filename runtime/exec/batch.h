/* Steps over rows of many sequences, and the sequences themselves: pages of keys and values, states
 * of recurrent layers, reuse of what earlier sequences have computed.
 *
 * A row's logits are the same bits alone or in a batch, computed or reused, forked or not, as far
 * as they are the same in any chunks (kt_engine_options.deterministic).
 *
 * Threads: an engine, its sequences and its counters belong to one thread at a time; only the stop
 * flag of a step may be written by others meanwhile.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BATCH_H
#define KT_RUNTIME_BATCH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_engine kt_engine;
typedef struct kt_sequence kt_sequence; /* one conversation's tokens; owned by the caller */

#define KT_PAGE_TOKENS 64 /* tokens of a page; a block of attention (kernels/attn/attn_common.h) */

/* Rows of one sequence, which they continue at kt_sequence_length(seq). */
typedef struct kt_span {
    kt_sequence *seq; /* borrowed */
    int64_t first_row, rows;
    /* Later prompts may begin with the tokens up to this span's end: a copy of the states of
     * recurrent layers is kept there, if that is the end of a page (kt_sequence_chunk) and a slot
     * can be had. Models without such layers need none. */
    bool is_mark;
} kt_span;

/* One step. All pointers are borrowed during the call. */
typedef struct kt_batch {
    int64_t rows;         /* 1 to kt_engine_max_rows */
    const int32_t *token; /* [rows] */
    int n_spans;
    const kt_span *spans; /* in the order of rows, all of which they cover; no sequence twice */
    int64_t n_out;
    const int32_t *out_row; /* [n_out] ascending: rows that get logits */
} kt_batch;

/* Run one step and append its tokens to their sequences.
 *
 * logits  f32 [n_out, vocab], written; may be NULL when n_out is 0.
 * stop    NULL, or a flag that is read before each phase of the step (a layer has about eight).
 *         Where slots for states of recurrent layers are short, it is not read.
 *
 * Errors, each with all sequences as they were: KT_E_INVALID for a batch that breaks the rules
 * above, unknown tokens and spans over a sequence's reserved tokens; KT_E_CANCELLED when stop was
 * seen. KT_E_FORMAT, all tokens appended and all logits written, when a logit is not finite.
 * Allocates nothing. */
kt_status kt_engine_step(kt_engine *e, const kt_batch *batch, float *logits,
                         const atomic_bool *stop, kt_err *err);
int64_t kt_engine_max_rows(const kt_engine *e); /* of a step: options.max_chunk */

/* An empty sequence with pages for `capacity` tokens; 0 = none yet. KT_E_INVALID over the engine's
 * context, KT_E_NOMEM when the pool has not so many pages. */
kt_status kt_sequence_create(kt_engine *e, int64_t capacity, kt_sequence **out, kt_err *err);
void kt_sequence_destroy(kt_sequence *s); /* accepts NULL; before its engine */
int64_t kt_sequence_length(const kt_sequence *s);

/* Pages for `tokens` tokens in all, those that the sequence has among them; never fewer than
 * before. KT_E_NOMEM when the pool has not so many, even without cached prefixes, KT_E_INVALID over
 * the engine's context: then nothing has changed. */
kt_status kt_sequence_reserve(kt_sequence *s, int64_t tokens, kt_err *err);

/* Of an empty sequence: take over the longest beginning of tokens [n] that the cache has, whole
 * pages and at most n - 1 tokens, so that at least one is left to compute. Returns the sequence's
 * length then. With recurrent layers only up to where a state was kept. */
int64_t kt_sequence_reuse(kt_sequence *s, const int32_t *tokens, int64_t n);

/* How many of the next `left` tokens of a prompt a span takes at most, so that its end is where a
 * state should be kept: with recurrent layers up to the last page's end that leaves a token; else
 * all of them. Spans that end so want is_mark. */
int64_t kt_sequence_chunk(const kt_sequence *s, int64_t left);

/* Another sequence of the same tokens and reserved length: whole pages are shared, the last one and
 * states are copied. KT_E_NOMEM as in kt_sequence_reserve. */
kt_status kt_sequence_fork(const kt_sequence *s, kt_sequence **out, kt_err *err);

/* Forget tokens past length; returns the length that it has then. States of recurrent layers go
 * back to the last kept one at or before it: the end of the last kt_engine_forward of several
 * tokens, of a span with is_mark, or the beginning. Reserved pages remain reserved, but for those
 * that another sequence has too where the pool has none instead: then fewer tokens are reserved,
 * and where such a page is the one that length ends in, the sequence goes back to that page's
 * beginning. */
int64_t kt_sequence_truncate(kt_sequence *s, int64_t length);

/* How full the pools are. used + cached + free = all: used belongs to sequences, cached is kept for
 * reuse alone and given up when pages are short. Slots hold states of recurrent layers. */
typedef struct kt_kv_usage {
    int64_t pages, pages_used, pages_cached, pages_free;
    int64_t slots, slots_used, slots_cached, slots_free;
    int64_t reused_tokens; /* taken over by kt_sequence_reuse since the engine began */
} kt_kv_usage;

void kt_engine_kv_usage(const kt_engine *e, kt_kv_usage *out);
/* Forget all cached prefixes that no sequence uses (for tests and measurements). */
void kt_engine_drop_cache(kt_engine *e);

#endif
