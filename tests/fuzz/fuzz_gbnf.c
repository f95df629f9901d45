/* GBNF: a grammar, a zero byte, and a text for it; the bytes of the text also choose among the
 * tokens of masks, which must hold what trying each token says.
 * SPDX-License-Identifier: Apache-2.0 */
#include "tests/fuzz/grammar_target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    size_t n = zero ? (size_t)(zero - data) : size;
    const uint8_t *rest = zero ? zero + 1 : data;
    size_t n_rest = zero ? size - n - 1 : size;
    kt_err err = {KT_OK, ""};
    kt_grammar_state s;
    kt_grammar *g;
    char text[600];
    bool done;

    if (kt_grammar_from_gbnf(kt_target_vocabulary(), (const char *)data, n, NULL, 0, &g, &err) !=
        KT_OK) {
        if (g || !err.message[0]) abort();
        return 0;
    }
    if (kt_grammar_state_init(&s, g, NULL) != KT_OK) abort();
    for (size_t i = 0; i < n_rest; i++)
        if (kt_grammar_state_accept(&s, (const char *)rest + i, 1, NULL) != KT_OK) break;
    kt_grammar_state_deinit(&s);
    kt_target_walk(g, rest, n_rest, text, sizeof text, &done);
    kt_grammar_destroy(g);
    return 0;
}
