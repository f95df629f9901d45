/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/known_tokens.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "runtime/token/check_text.h"
#include "runtime/token/tokenizer_impl.h"

kt_status kt_tokenizer_fits(const kt_tokenizer *t, int64_t vocab, kt_err *err) {
    if (kt_tokenizer_size(t) <= vocab) return KT_OK;
    return kt_fail(err, KT_E_MISMATCH,
                   "the tokenizer has ids up to %d, the model's vocab_size is %lld: it belongs to "
                   "another model",
                   kt_tokenizer_size(t) - 1, (long long)vocab);
}

/* The id that the tokenizer has for a known token, -1 = none. Without a text: the id itself, if
 * it is added. */
static int32_t id_of(const kt_tokenizer *t, const kt_known_token *known) {
    if (known->text) return kt_tokenizer_find(t, known->text);
    if (known->id >= t->bpe.n_tokens) return -1;
    return t->bpe.tokens[known->id].flags & KT_TOKEN_ADDED ? known->id : -1;
}

static uint64_t digest_of(uint64_t before, const char *text, int32_t id) {
    char line[160];

    snprintf(line, sizeof line, "%016llx %.100s %d", (unsigned long long)before, text ? text : "",
             id);
    return kt_model_hash(line);
}

/* Does the check text come to a published hash? KT_OK where none of this size is known. */
static kt_status check_hashes(const kt_tokenizer *t, const kt_family *family, int64_t vocab,
                              kt_err *err) {
    const kt_known_hash *last = NULL;
    char hex[65] = "", with[65];

    for (size_t i = 0; i < family->n_hashes; i++) {
        const kt_known_hash *h = &family->hashes[i];
        if (h->vocab != vocab) continue;
        last = h;
        if (!*hex) KT_TRY(kt_check_text_hash(t, NULL, 0, hex, err));
        KT_TRY(kt_check_text_hash(t, h->before, h->n_before, with, err));
        if (strcmp(hex, h->sha256) == 0 || strcmp(with, h->sha256) == 0) return KT_OK;
    }
    if (!last) return KT_OK;
    return kt_fail(
        err, KT_E_MISMATCH,
        "the tokenizer's ids of the check text have the SHA-256 %s, those of a published "
        "%s model with vocab_size %lld have %s",
        hex, family->name, (long long)vocab, last->sha256);
}

kt_status kt_tokenizer_check(const kt_tokenizer *t, const kt_family *family, int64_t vocab,
                             kt_err *err) {
    uint64_t found = (uint64_t)vocab, expected = found;
    const kt_known_token *wrong = NULL;
    int32_t wrong_id = -1;
    char id[16] = "missing";

    for (size_t i = 0; i < family->n_tokens; i++) {
        const kt_known_token *known = &family->tokens[i];
        const int32_t is = id_of(t, known);
        if (known->vocab != vocab) continue;
        found = digest_of(found, known->text, is);
        expected = digest_of(expected, known->text, known->id);
        if (is == known->id || wrong) continue;
        wrong = known;
        wrong_id = is;
    }
    if (!wrong) return check_hashes(t, family, vocab, err);
    if (wrong_id >= 0) snprintf(id, sizeof id, "%d", wrong_id);
    return kt_fail(err, KT_E_MISMATCH,
                   "the tokenizer's digest is %016llx, a %s model with vocab_size %lld has "
                   "%016llx: token '%.60s' is %s, expected %d",
                   (unsigned long long)found, family->name, (long long)vocab,
                   (unsigned long long)expected, wrong->text ? wrong->text : "(added)", id,
                   wrong->id);
}
