/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "base/err.h"
#include "runtime/serve/hooks.h"

static kt_status open_state(void *arg, void **out, kt_err *err) {
    kt_grammar_state *s = calloc(1, sizeof *s);
    kt_status st;

    *out = NULL;
    if (!s) return kt_fail(err, KT_E_NOMEM, "no memory for the state of a grammar");
    st = kt_grammar_state_init(s, arg, err);
    if (st == KT_OK)
        *out = s;
    else
        free(s);
    return st;
}

static void close_state(void *state) {
    if (!state) return;
    kt_grammar_state_deinit(state);
    free(state);
}

static kt_status mask(void *state, uint64_t *bits, kt_err *err) {
    return kt_grammar_state_mask(state, bits, err);
}

static kt_status take(void *state, int32_t id, kt_err *err) {
    return kt_grammar_state_accept_token(state, id, err);
}

kt_constraint kt_constraint_of_grammar(kt_grammar *grammar) {
    return (kt_constraint){grammar, open_state, close_state, mask, take};
}
