/* What the server needs of an engine. The real one is kt_backend_from_engine; tests bring their
 * own. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_BACKEND_H
#define KT_RUNTIME_BACKEND_H

#include <stdint.h>

#include "kt/status.h"
#include "runtime/exec/engine.h"
#include "runtime/sample/sampler.h"
#include "runtime/token/tokenizer.h"

/* One thread at a time calls the functions; the data is constant. */
typedef struct kt_backend {
    void *self;
    const kt_tokenizer *tokenizer; /* borrowed */
    const char *model_name;        /* borrowed */
    char fingerprint[32];          /* changes when the same request may give another answer */
    int64_t vocab, max_context;
    int64_t eos[8];
    int n_eos;
    kt_sampling defaults; /* what the model's authors recommend */

    /* A sequence with room for capacity tokens. */
    kt_status (*open)(void *self, int64_t capacity, void **sequence, kt_err *err);
    void (*close)(void *self, void *sequence);
    void (*truncate)(void *self, void *sequence, int64_t length);
    /* Append n > 0 tokens; logits f32 [vocab] of the last. Asks cancel between chunks. */
    kt_status (*forward)(void *self, void *sequence, const int32_t *tokens, int64_t n,
                         float *logits, kt_cancel_fn cancel, void *cancel_arg, kt_err *err);
} kt_backend;

/* Fill out from an engine, which must outlive it and have a tokenizer. Sampling defaults come from
 * model_dir/generation_config.json if there is one. weights is a word for the fingerprint. */
kt_status kt_backend_from_engine(kt_engine *engine, const char *model_dir, const char *weights,
                                 kt_backend *out, kt_err *err);

#endif
