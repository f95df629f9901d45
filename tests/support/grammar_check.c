/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/support/grammar_check.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

static const char *const words[] = {
    "\",\"", "\":",  "\": ", "\":\"",    "\": \"",   "{\"",     "[{",   "}]",    "},",
    "}, {",  "],",   "\"]",  "\"}",      "[]",       "{}",      "true", "false", "null",
    "tr",    "ue",   "ull",  "se",       "\\u",      "\\\"",    "\\n",  "\\\\",  "00",
    "10",    "123",  "-1",   ".5",       "1.",       "e+",      "E1",   "ab",    "abc",
    "aa",    "aaa",  "aaaa", "ba",       "xx",       "x1",      "11",   "22",    "the",
    " the",  "name", "id",   "type",     "\"name\"", "\"id\":", ", ",   "  ",    "\n",
    "\n  ",  "((",   "))",   "()",       "(a",       "yes",     "no",   "yesno", "Zürich",
    "ü",     "\xc3", "\xa9", "\xf0\x9f", "🙂",     "\"🙂",  "2024", "-01-",  "T1",
    ":00",   "Z\"",  "a,b",  ",1",       "km",       "kk",      "m!",   "ab!",   "abab",
    "c!",    "D8",   "3D",   "DE",       "\\uD83D",  "é",       "\",",  "\"a",   "\"b",
    "a\":",  "b\"",  "{\"a", "[1",       "[1,2]",    "]}",      "]]",   "\"x\"", "0.5",
    "99",    "100",  "red",  "\"red\"",  "green",    "blue",    "e\"",  "d\""};
enum {
    BYTES = 255, /* all but the one that no text has */
    WORDS = sizeof words / sizeof *words,
    CALL = BYTES + WORDS,
    OTHER,
    END,
    EMPTY,
    TOKENS
};

const char *kt_small_text(int32_t id, size_t *size) {
    static char bytes[BYTES];

    if (id >= BYTES + WORDS) return NULL;
    *size = id < BYTES ? 1 : strlen(words[id - BYTES]);
    if (id >= BYTES) return words[id - BYTES];
    bytes[id] = (char)id;
    return &bytes[id];
}

kt_vocabulary *kt_small_vocabulary(void) {
    kt_vocabulary_token token[TOKENS] = {{NULL, 0, false}};
    const int32_t ends[] = {END};
    kt_vocabulary *v = NULL;
    kt_err err = {KT_OK, ""};

    for (int32_t i = 0; i < CALL; i++) token[i].bytes = kt_small_text(i, &token[i].size);
    token[CALL] = (kt_vocabulary_token){"<|call|>", 8, true};
    token[OTHER] = (kt_vocabulary_token){"<|other|>", 9, true};
    token[END] = (kt_vocabulary_token){"<|end|>", 7, true};
    token[EMPTY] = (kt_vocabulary_token){"", 0, false};
    cr_assert_eq(kt_vocabulary_create(token, TOKENS, ends, 1, &v, &err), KT_OK, "%s", err.message);
    return v;
}

int32_t kt_small_special(const kt_vocabulary *v, int which) {
    (void)v;
    return CALL + which;
}

int32_t kt_small_end(const kt_vocabulary *v) {
    (void)v;
    return END;
}

/* Accept the text in pieces of at most `piece` bytes; is it complete then? */
static bool takes_in_pieces(kt_grammar *g, const char *text, size_t size, size_t piece) {
    kt_grammar_state s;
    bool ok = true;

    cr_assert_eq(kt_grammar_state_init(&s, g, NULL), KT_OK);
    for (size_t at = 0; at < size && ok; at += piece) {
        size_t n = size - at < piece ? size - at : piece;
        kt_status st = kt_grammar_state_accept(&s, text + at, n, NULL);
        cr_assert(st == KT_OK || st == KT_E_MISMATCH, "%s", kt_status_name(st));
        ok = st == KT_OK;
    }
    ok = ok && kt_grammar_state_is_complete(&s);
    kt_grammar_state_deinit(&s);
    return ok;
}

bool kt_grammar_takes(kt_grammar *g, const char *text, size_t size) {
    bool whole = takes_in_pieces(g, text, size, size + 1);

    cr_expect_eq(takes_in_pieces(g, text, size, 1), whole, "'%s' byte by byte", text);
    cr_expect_eq(takes_in_pieces(g, text, size, 3), whole, "'%s' by three bytes", text);
    return whole;
}

static void check_mask(kt_grammar_state *s, const kt_vocabulary *v, const uint64_t *bits,
                       const char *text, size_t size) {
    for (int32_t id = 0; id < kt_vocabulary_size(v); id++) {
        kt_grammar_state tried;
        bool allowed = bits[id / 64] >> id % 64 & 1;
        kt_status st;
        cr_assert_eq(kt_grammar_state_copy(s, &tried, NULL), KT_OK);
        st = kt_grammar_state_accept_token(&tried, id, NULL);
        cr_assert(st == KT_OK || st == KT_E_MISMATCH);
        cr_expect_eq(allowed, st == KT_OK, "after '%.*s': token %d: the mask says %d, trying %d",
                     (int)size, text, id, allowed, st == KT_OK);
        kt_grammar_state_deinit(&tried);
    }
}

/* One of the allowed tokens; when `ends`, an end if it is one. -1 = none is. */
static int32_t draw(const uint64_t *bits, int32_t n, kt_rng *rng, bool ends) {
    int32_t allowed[TOKENS];
    int32_t count = 0;

    for (int32_t i = 0; i < n; i++)
        if (bits[i / 64] >> i % 64 & 1) allowed[count++] = i;
    if (count == 0) return -1;
    if (ends && (bits[END / 64] >> END % 64 & 1)) return END;
    return allowed[kt_rng_below(rng, (uint64_t)count)];
}

/* A closing token where there is one, so that texts end. */
static int32_t draw_closing(const uint64_t *bits, int32_t n, kt_rng *rng) {
    static const char closing[] = "\"]}),:";

    if (bits[END / 64] >> END % 64 & 1) return END;
    for (const char *c = closing; *c; c++)
        if (bits[*c / 64] >> *c % 64 & 1) return *c;
    return draw(bits, n, rng, true);
}

void kt_grammar_walk(kt_grammar *g, const kt_vocabulary *v, kt_rng *rng, int most, char *out,
                     size_t *size) {
    uint64_t bits[(TOKENS + 63) / 64];
    int32_t n = kt_vocabulary_size(v), id = 0;
    char text[16384];
    size_t used = 0;
    kt_grammar_state s;
    kt_err err = {KT_OK, ""};

    cr_assert_eq(kt_grammar_state_init(&s, g, &err), KT_OK, "%s", err.message);
    for (int step = 0; step < most + 3000 && id != END; step++) {
        size_t bytes;
        const char *token;
        cr_assert_eq(kt_grammar_state_mask(&s, bits, &err), KT_OK, "%s", err.message);
        if (step < most) check_mask(&s, v, bits, text, used);
        id = step < most ? draw(bits, n, rng, kt_rng_below(rng, 4) == 0)
                         : draw_closing(bits, n, rng);
        cr_assert(id >= 0, "nothing can follow '%.*s'", (int)used, text);
        cr_assert_eq(kt_grammar_state_accept_token(&s, id, &err), KT_OK, "%s", err.message);
        token = kt_small_text(id, &bytes);
        if (!token) continue;
        cr_assert(used + bytes <= sizeof text);
        memcpy(text + used, token, bytes);
        used += bytes;
    }
    if (id == END) cr_expect(kt_grammar_state_is_complete(&s));
    kt_grammar_state_deinit(&s);
    if (!out) return;
    cr_assert(used <= *size);
    memcpy(out, text, used);
    *size = id == END ? used : 0;
}
