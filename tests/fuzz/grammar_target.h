/* What fuzzers of grammars share: a small vocabulary, and a text drawn from masks.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_FUZZ_GRAMMAR_TARGET_H
#define KT_TESTS_FUZZ_GRAMMAR_TARGET_H

#include <stdlib.h>
#include <string.h>

#include "runtime/serve/grammar/grammar.h"

enum { KT_TARGET_TOKENS = 255 + 27, KT_TARGET_CALL = KT_TARGET_TOKENS - 2, KT_TARGET_END };

/* Tokens of several bytes: JSON, plain text of several lengths, and what is nearly plain. */
static inline const char *kt_target_word(int i) {
    static const char *const words[KT_TARGET_TOKENS - 255] = {"\",\"",
                                                              "\":",
                                                              "{\"",
                                                              "}]",
                                                              "true",
                                                              "null",
                                                              "123",
                                                              "ab",
                                                              "\\u",
                                                              "é",
                                                              "abc",
                                                              "a é",
                                                              "中文",
                                                              "🙂b",
                                                              "a\"",
                                                              "é\\",
                                                              "ab\n",
                                                              "中\",",
                                                              "\xa9z",
                                                              "a\xc3",
                                                              "12345678",
                                                              "\x7f~",
                                                              "abcdefghijklmnop",
                                                              "abcdefghijklmnopq",
                                                              "éèéèéèéèéèéè\"",
                                                              "<|call|>",
                                                              "<|end|>"};
    return words[i];
}

static inline const kt_vocabulary *kt_target_vocabulary(void) {
    static kt_vocabulary *v;
    static char bytes[255];
    kt_vocabulary_token token[KT_TARGET_TOKENS];
    const int32_t ends[] = {KT_TARGET_END};

    for (int i = 0; i < KT_TARGET_TOKENS && !v; i++) {
        const char *word = i < 255 ? &bytes[i] : kt_target_word(i - 255);
        if (i < 255) bytes[i] = (char)i;
        token[i] = (kt_vocabulary_token){word, i < 255 ? 1 : strlen(word), i >= KT_TARGET_CALL};
    }
    if (!v && kt_vocabulary_create(token, KT_TARGET_TOKENS, ends, 1, &v, NULL) != KT_OK) abort();
    return v;
}

/* Does the mask say what trying each token says? Out of luck (too ambiguous) is no answer. */
static inline void kt_target_check_mask(kt_grammar_state *s, const uint64_t *bits) {
    for (int32_t id = 0; id < KT_TARGET_TOKENS; id++) {
        kt_grammar_state tried;
        kt_status st;
        if (kt_grammar_state_copy(s, &tried, NULL) != KT_OK) abort();
        st = kt_grammar_state_accept_token(&tried, id, NULL);
        if (st != KT_E_UNSUPPORTED && (st == KT_OK) != (bits[id / 64] >> id % 64 & 1)) abort();
        kt_grammar_state_deinit(&tried);
    }
}

/* Tokens as the bytes of data choose among those allowed, into text[size]; *done when the end was
 * reached. Returns the bytes written. */
static inline size_t kt_target_walk(kt_grammar *g, const uint8_t *data, size_t n, char *text,
                                    size_t size, bool *done) {
    static const char closing[] = "\"]},:";
    uint64_t bits[(KT_TARGET_TOKENS + 63) / 64];
    kt_grammar_state s;
    size_t used = 0;
    int steps = 0;

    *done = false;
    if (kt_grammar_state_init(&s, g, NULL) != KT_OK) abort();
    for (; steps < 24 && used + 40 < size; steps++) {
        uint8_t byte = n ? data[(size_t)steps % n] : 0;
        int32_t id = byte, from;
        if (kt_grammar_state_mask(&s, bits, NULL) != KT_OK) break;
        kt_target_check_mask(&s, bits);
        if (steps > 12 && byte < 128) id = closing[byte % 5];
        for (from = id; !(bits[id / 64] >> id % 64 & 1);)
            if ((id = (id + 1) % KT_TARGET_TOKENS) == from) break;
        if (kt_grammar_state_accept_token(&s, id, NULL) != KT_OK) break;
        *done = id == KT_TARGET_END;
        if (*done) break;
        if (id < 255) {
            text[used++] = (char)id;
        } else if (id < KT_TARGET_CALL) {
            memcpy(text + used, kt_target_word(id - 255), strlen(kt_target_word(id - 255)));
            used += strlen(kt_target_word(id - 255));
        }
    }
    if (*done && !kt_grammar_state_is_complete(&s)) abort();
    kt_grammar_state_deinit(&s);
    return used;
}

#endif
