/* A vocabulary of a size that was asked for, for models whose weights are made up, too.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "runtime/token/tokenizer_impl.h"

enum { BYTES = 256, LETTERS = 26, MOST_LETTERS = 8 };

/* The id as a word: a space and its digits to the base of the alphabet. */
static size_t spell(int64_t id, char out[1 + MOST_LETTERS]) {
    size_t n = 0;

    out[n++] = ' ';
    for (int64_t rest = id; rest > 0; rest /= LETTERS) out[n++] = (char)('a' + rest % LETTERS);
    return n;
}

static kt_status fill(kt_tokenizer *t, int64_t n_tokens, kt_err *err) {
    for (int64_t id = 0; id < n_tokens; id++) {
        char text[1 + MOST_LETTERS] = {(char)id};
        const size_t size = id < BYTES ? 1 : spell(id, text);
        KT_TRY(kt_bpe_add_token(&t->bpe, id, text, size, KT_TOKEN_PIECE, err));
    }
    KT_TRY(kt_splitter_add(&t->splitter, KT_GPT2_PATTERN, sizeof KT_GPT2_PATTERN - 1, false,
                           KT_SPLIT_ISOLATED, false, err));
    t->bpe.ignore_merges = true;
    KT_TRY(kt_bpe_index(&t->bpe, err));
    return kt_bpe_finish(&t->bpe, err);
}

kt_status kt_tokenizer_make_up(int64_t n_tokens, kt_tokenizer **out, kt_err *err) {
    kt_tokenizer *t;
    kt_status st;

    *out = NULL;
    if (n_tokens < BYTES || n_tokens > KT_BPE_MAX_IDS)
        return kt_fail(err, KT_E_INVALID, "a made-up vocabulary of %lld tokens, expected %d to %d",
                       (long long)n_tokens, (int)BYTES, KT_BPE_MAX_IDS);
    t = calloc(1, sizeof *t);
    if (!t) return kt_fail(err, KT_E_NOMEM, "no memory for a vocabulary");
    kt_bpe_init(&t->bpe);
    st = fill(t, n_tokens, err);
    if (st != KT_OK) {
        kt_tokenizer_destroy(t);
        return st;
    }
    *out = t;
    return KT_OK;
}
