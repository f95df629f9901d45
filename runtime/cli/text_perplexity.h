/* The perplexity of a text under a model that is loaded for it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_TEXT_PERPLEXITY_H
#define KT_RUNTIME_TEXT_PERPLEXITY_H

#include "runtime/exec/perplexity.h"

typedef struct kt_text_perplexity_request {
    const char *model; /* a folder, GGUF file or name, loaded with native weights */
    const char *text;  /* path of a file of UTF-8 */
    int64_t window;    /* tokens (kt_perplexity_measure) */
    int n_threads;     /* 0 = one per usable core */
} kt_text_perplexity_request;

/* Load, measure, forget. Ctrl-C ends it (KT_E_CANCELLED) where it is watched (interrupt.h). Fails
 * as kt_engine_create does, KT_E_NOMEM where the model does not fit this machine. */
kt_status kt_text_perplexity(const kt_text_perplexity_request *request, kt_perplexity *out,
                             kt_err *err);

#endif
