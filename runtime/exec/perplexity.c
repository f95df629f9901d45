/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/exec/perplexity.h"

#include <math.h>
#include <stdlib.h>

#include "base/err.h"

/* Logits are taken in pieces of about this many bytes: a vocabulary of 150,000 times a whole window
 * would be hundreds of megabytes. */
#define LOGITS_BYTES ((int64_t)64 << 20)

static double negative_log_likelihood(const float *logits, int64_t vocab, int32_t token) {
    double top = logits[0], sum = 0;

    for (int64_t i = 1; i < vocab; i++)
        if (logits[i] > top) top = logits[i];
    for (int64_t i = 0; i < vocab; i++) sum += exp(logits[i] - top);
    return top + log(sum) - logits[token];
}

static kt_status add_window(kt_engine *e, kt_sequence *s, const int32_t *tokens, int64_t window,
                            int64_t rows, int64_t vocab, float *logits, double *sum, kt_err *err) {
    kt_sequence_truncate(s, 0);
    for (int64_t done = 0; done < window; done += rows) {
        int64_t n = window - done < rows ? window - done : rows;
        KT_TRY(kt_engine_forward(e, s, tokens + done, n, n, logits, NULL, NULL, NULL, err));
        for (int64_t i = 0; i < n && done + i + 1 < window; i++)
            *sum += negative_log_likelihood(logits + i * vocab, vocab, tokens[done + i + 1]);
    }
    return KT_OK;
}

kt_status kt_perplexity_measure(kt_engine *e, const int32_t *tokens, int64_t n, int64_t window,
                                int (*progress)(void *arg, const kt_perplexity *so_far), void *arg,
                                kt_perplexity *out, kt_err *err) {
    kt_engine_info info;
    kt_sequence *s = NULL;
    float *logits;
    int64_t rows;
    double sum = 0;
    kt_status st = KT_OK;

    *out = (kt_perplexity){.tokens = n};
    kt_engine_describe(e, &info);
    if (window < 2 || n < window)
        return kt_fail(err, KT_E_INVALID,
                       "the text has %lld tokens, expected at least one window of %lld",
                       (long long)n, (long long)window);
    rows = LOGITS_BYTES / ((int64_t)sizeof *logits * info.vocab);
    rows = rows < 1 ? 1 : rows > window ? window : rows;
    logits = malloc((size_t)(rows * info.vocab) * sizeof *logits);
    if (!logits) return kt_fail(err, KT_E_NOMEM, "no memory for the logits");
    st = kt_sequence_create(e, window, &s, err);
    for (int64_t first = 0; st == KT_OK && first + window <= n; first += window) {
        st = add_window(e, s, tokens + first, window, rows, info.vocab, logits, &sum, err);
        out->windows++;
        out->counted += window - 1;
        out->nll = sum / (double)out->counted;
        out->perplexity = exp(out->nll);
        if (st == KT_OK && progress && progress(arg, out))
            st =
                kt_fail(err, KT_E_CANCELLED, "stopped after %lld windows", (long long)out->windows);
    }
    kt_sequence_destroy(s);
    free(logits);
    return st;
}
