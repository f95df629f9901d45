/* Drafts by looking up n-grams: the longest suffix of a text that stood before in it says what may
 * come next. After A. Saxena, Prompt Lookup Decoding (2023); the search is that of LZ77.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_NGRAM_H
#define KT_RUNTIME_NGRAM_H

#include <stdbool.h>
#include <stdint.h>

enum {
    KT_NGRAM_LEAST = 2,      /* tokens of a match, at least */
    KT_NGRAM_LONGEST = 32,   /* longer ones count as so long */
    KT_NGRAM_LOOKED_AT = 32, /* earlier places that are compared for each of the orders */
    KT_NGRAM_ORDERS = 2
};

/* Of the tokens whose last 2 (or 4) have one hash: the latest place, and from each place the one
 * before. */
typedef struct kt_ngram_chain {
    int32_t *latest; /* owned: [room] by hash */
    int32_t *before; /* owned: [room] */
} kt_ngram_chain;

/* A text and where its n-grams stand: 20 bytes for each token that there is room for. One thread at
 * a time. Zero-initialise. */
typedef struct kt_ngram {
    int32_t *token;  /* owned: [n of room] */
    int64_t n, room; /* room: a power of two, and how many heads each chain has */
    kt_ngram_chain chain[KT_NGRAM_ORDERS];
    int64_t followed; /* the end of the last match, moved on with every token; -1 = none */
} kt_ngram;

void kt_ngram_deinit(kt_ngram *x);

/* Add the next token of the text. Constant time, but for a table that doubles now and then. false =
 * no memory, and nothing has changed. */
bool kt_ngram_push(kt_ngram *x, int32_t token);

/* What may come next, at most `most` tokens, into out [most]: those that followed the longest
 * suffix of the text found before, the latest of equal ones; past the text's end, what was drafted
 * goes on as the text did. Returns how many there are, 0 = no match of KT_NGRAM_LEAST tokens.
 * *matched: the length of the match. At most 65 places of 32 tokens are compared, whatever the
 * length of the text:
 * of a very common n-gram older places may be missed. */
int64_t kt_ngram_draft(kt_ngram *x, int64_t most, int32_t *out, int64_t *matched);

#endif
