/* Samplers with working memory of their own. SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "runtime/sample/sampler.h"

typedef struct own_sampler {
    kt_sampler base; /* first: what callers hold */
    kt_sampler_scratch scratch;
} own_sampler;

void kt_sampling_init(kt_sampling *sampling) {
    *sampling = KT_SAMPLING_GREEDY;
}

static kt_status check(const kt_sampling *o, kt_err *err) {
    if (!(o->temperature >= 0 && o->temperature <= 100))
        return kt_fail(err, KT_E_INVALID, "temperature %g, expected 0 to 100",
                       (double)o->temperature);
    if (o->top_k < 0) return kt_fail(err, KT_E_INVALID, "top_k %d, expected 0 or more", o->top_k);
    if (!(o->top_p > 0 && o->top_p <= 1))
        return kt_fail(err, KT_E_INVALID, "top_p %g, expected more than 0, at most 1",
                       (double)o->top_p);
    if (!(o->min_p >= 0 && o->min_p <= 1))
        return kt_fail(err, KT_E_INVALID, "min_p %g, expected 0 to 1", (double)o->min_p);
    if (!(o->repetition_penalty > 0 && o->repetition_penalty <= 100))
        return kt_fail(err, KT_E_INVALID,
                       "repetition_penalty %g, expected more than 0, at most 100",
                       (double)o->repetition_penalty);
    if (!(o->presence_penalty >= -100 && o->presence_penalty <= 100) ||
        !(o->frequency_penalty >= -100 && o->frequency_penalty <= 100))
        return kt_fail(err, KT_E_INVALID,
                       "presence_penalty %g, frequency_penalty %g, expected -100 to 100",
                       (double)o->presence_penalty, (double)o->frequency_penalty);
    return KT_OK;
}

kt_status kt_sampler_create(const kt_sampling *options, const kt_token_bias *bias, size_t n_bias,
                            int64_t vocab, kt_sampler **out, kt_err *err) {
    own_sampler *s;

    *out = NULL;
    KT_TRY(check(options, err));
    if (vocab < 1 || vocab > INT32_MAX)
        return kt_fail(err, KT_E_INVALID, "vocabulary of %lld tokens, expected 1 to %d",
                       (long long)vocab, INT32_MAX);
    s = calloc(1, sizeof *s);
    if (!s || kt_sampler_init(&s->base, options, bias, n_bias, vocab) != 0) {
        free(s);
        return kt_fail(err, KT_E_NOMEM, "no memory for a sampler");
    }
    *out = &s->base;
    return KT_OK;
}

void kt_sampler_destroy(kt_sampler *sampler) {
    own_sampler *s = (own_sampler *)(void *)sampler;

    if (!s) return;
    kt_sampler_deinit(&s->base);
    kt_sampler_scratch_deinit(&s->scratch);
    free(s);
}

kt_status kt_sampler_next(kt_sampler *sampler, const float *logits, const uint64_t *mask,
                          int32_t *token, kt_err *err) {
    own_sampler *s = (own_sampler *)(void *)sampler;
    const int32_t id = kt_sampler_pick(&s->base, logits, mask, &s->scratch);

    if (id == -1) return kt_fail(err, KT_E_INVALID, "the mask allows no token");
    if (id < 0 || kt_sampler_accept(&s->base, id) != 0)
        return kt_fail(err, KT_E_NOMEM, "no memory to choose a token");
    *token = id;
    return KT_OK;
}
