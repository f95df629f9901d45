/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/cli/text_perplexity.h"

#include <stdlib.h>

#include "base/buffer.h"
#include "base/err.h"
#include "runtime/cli/interrupt.h"

#define MAX_TEXT_BYTES ((size_t)1 << 30)

static int is_stopped(void *arg, const kt_perplexity *so_far) {
    (void)so_far;
    return kt_interrupted(arg);
}

static kt_status measure(kt_engine *e, const kt_text_perplexity_request *r, kt_perplexity *out,
                         kt_err *err) {
    char *text = NULL;
    size_t size = 0, n = 0;
    int32_t *ids = NULL;
    kt_status st;

    KT_TRY(kt_file_read(r->text, MAX_TEXT_BYTES, &text, &size, err));
    st = kt_tokenizer_encode(kt_engine_tokenizer(e), text, size, true, &ids, &n, err);
    if (st == KT_OK)
        st = kt_perplexity_measure(e, ids, (int64_t)n, r->window, is_stopped, NULL, out, err);
    free(ids);
    free(text);
    return st;
}

kt_status kt_text_perplexity(const kt_text_perplexity_request *r, kt_perplexity *out, kt_err *err) {
    const kt_engine_options options = {.model_dir = r->model,
                                       .n_threads = r->n_threads,
                                       .max_context = r->window,
                                       .cancel = kt_interrupted};
    kt_engine *e = NULL;
    kt_status st = kt_engine_create(&options, &e, err);

    *out = (kt_perplexity){0};
    if (st == KT_OK) st = measure(e, r, out, err);
    if (st != KT_OK) *out = (kt_perplexity){0};
    kt_engine_destroy(e);
    return st;
}
