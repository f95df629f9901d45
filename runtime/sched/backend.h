/* What the scheduler needs of an engine. The real one is kt_backend_from_engine; tests bring their
 * own, whose sequences are structures of theirs behind the same pointer type.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BACKEND_H
#define KT_RUNTIME_BACKEND_H

#include <stdint.h>

#include "base/pool.h"
#include "kt/status.h"
#include "runtime/exec/batch.h"
#include "runtime/exec/engine.h"
#include "runtime/exec/engine_draft.h"
#include "runtime/sample/sampler.h"
#include "runtime/token/tokenizer.h"

/* The scheduler's thread alone calls the functions; the data is constant. Functions over sequences
 * are those of runtime/exec/batch.h by the same names. */
typedef struct kt_backend {
    void *self;
    const kt_tokenizer *tokenizer; /* borrowed */
    const char *model_name;        /* borrowed */
    char fingerprint[32];          /* changes when the same request may give another answer */
    int64_t vocab, max_context, max_rows;
    int64_t eos[8];
    int n_eos;
    kt_sampling defaults; /* what the model's authors recommend */
    kt_pool *pool;        /* borrowed: where tokens are chosen side by side; NULL = on one thread */

    kt_status (*open)(void *self, kt_sequence **out, kt_err *err); /* empty, without pages */
    void (*close)(void *self, kt_sequence *s);
    kt_status (*reserve)(void *self, kt_sequence *s, int64_t tokens, kt_err *err);
    int64_t (*reuse)(void *self, kt_sequence *s, const int32_t *tokens, int64_t n);
    int64_t (*chunk)(void *self, const kt_sequence *s, int64_t left);
    kt_status (*fork)(void *self, const kt_sequence *s, kt_sequence **out, kt_err *err);
    int64_t (*length)(void *self, const kt_sequence *s);
    kt_status (*step)(void *self, const kt_batch *batch, float *logits, const kt_stop *stop,
                      kt_err *err);
    void (*usage)(void *self, kt_kv_usage *out);
    /* kt_sequence_guess and kt_sequence_truncate, for drafts; NULL = there are none. What go_back
     * returns may be less than what was asked for: the rest is computed again. */
    int64_t (*guess)(void *self, kt_sequence *s, int64_t n, int n_spans);
    int64_t (*go_back)(void *self, kt_sequence *s, int64_t length);
    /* kt_sequence_keep_recent, after steps of an answer that end with a page; NULL = no need. */
    void (*keep_recent)(void *self, kt_sequence *s);
    /* kt_engine_draft; NULL = the model has no draft head, or it was not loaded. */
    kt_status (*draft)(void *self, kt_draft_span *spans, int n_spans, float *logits, kt_err *err);
    /* How long a step should take (kt_engine_expected_ns), 0 = nothing is known; NULL = never. */
    double (*expected_ns)(void *self, int64_t rows, int64_t logits);
} kt_backend;

/* Fill out from an engine, which must outlive it and have a tokenizer. Sampling defaults come from
 * model_dir/generation_config.json if there is one; model_dir NULL = a model with made-up weights,
 * which is given those of Qwen3. weights is a word for the fingerprint. */
kt_status kt_backend_from_engine(kt_engine *engine, const char *model_dir, const char *weights,
                                 kt_backend *out, kt_err *err);

#endif
