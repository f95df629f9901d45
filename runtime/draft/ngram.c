/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/draft/ngram.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_ROOM = 512, NONE = -1 };

static const int order_tokens[KT_NGRAM_ORDERS] = {4, 2};

void kt_ngram_deinit(kt_ngram *x) {
    for (int i = 0; i < KT_NGRAM_ORDERS; i++) {
        free(x->chain[i].latest);
        free(x->chain[i].before);
    }
    free(x->token);
    memset(x, 0, sizeof *x);
}

/* ---- the text ---- */

/* FNV-1a over the tokens that end at `at`. */
static int64_t hash_at(const kt_ngram *x, int64_t at, int order) {
    uint64_t h = 0xcbf29ce484222325u;

    for (int64_t i = at - order_tokens[order] + 1; i <= at; i++)
        h = (h ^ (uint32_t)x->token[i]) * 0x100000001b3u;
    return (int64_t)((h ^ h >> 32) & (uint64_t)(x->room - 1));
}

/* Enter the n-gram that ends at `at`. */
static void enter(kt_ngram *x, int order, int64_t at) {
    kt_ngram_chain *c = &x->chain[order];
    int32_t *latest;

    if (at + 1 < order_tokens[order]) return;
    latest = &c->latest[hash_at(x, at, order)];
    c->before[at] = *latest;
    *latest = (int32_t)at;
}

static bool allocate(kt_ngram *x, int64_t room) {
    const size_t bytes = (size_t)room * sizeof(int32_t);
    bool is_whole;

    *x = (kt_ngram){.room = room, .followed = NONE, .token = malloc(bytes)};
    is_whole = x->token != NULL;
    for (int i = 0; i < KT_NGRAM_ORDERS; i++) {
        x->chain[i].latest = malloc(bytes);
        x->chain[i].before = malloc(bytes);
        is_whole = is_whole && x->chain[i].latest && x->chain[i].before;
        if (is_whole) memset(x->chain[i].latest, 0xff, bytes); /* NONE */
    }
    if (!is_whole) kt_ngram_deinit(x);
    return is_whole;
}

/* There are as many heads as there is room for tokens, so all are entered anew. */
static bool grow(kt_ngram *x) {
    const int64_t room = x->room ? 2 * x->room : FIRST_ROOM;
    kt_ngram more;

    if (room > INT32_MAX || !allocate(&more, room)) return false;
    more.n = x->n;
    if (x->n) {
        memcpy(more.token, x->token, (size_t)x->n * sizeof *x->token);
        more.followed = x->followed;
    }
    for (int i = 0; i < KT_NGRAM_ORDERS; i++)
        for (int64_t at = 0; at < x->n; at++) enter(&more, i, at);
    kt_ngram_deinit(x);
    *x = more;
    return true;
}

bool kt_ngram_push(kt_ngram *x, int32_t token) {
    if (x->n == x->room && !grow(x)) return false;
    if (x->followed != NONE)
        x->followed = x->token[x->followed + 1] == token ? x->followed + 1 : NONE;
    x->token[x->n] = token;
    for (int i = 0; i < KT_NGRAM_ORDERS; i++) enter(x, i, x->n);
    x->n++;
    return true;
}

/* ---- the search ---- */

/* Tokens that the text's end and what ends at `at` have in common. */
static int64_t length_at(const kt_ngram *x, int64_t at) {
    const int64_t end = x->n - 1;
    int64_t n = 0;

    while (n < KT_NGRAM_LONGEST && n <= at && x->token[at - n] == x->token[end - n]) n++;
    return n;
}

/* The longest match among the latest places of an order, better than *best. */
static void search(const kt_ngram *x, int order, int64_t *at, int64_t *best) {
    const kt_ngram_chain *c = &x->chain[order];
    int64_t place = x->n >= order_tokens[order] ? c->before[x->n - 1] : NONE;

    for (int i = 0; i < KT_NGRAM_LOOKED_AT && place != NONE; i++, place = c->before[place]) {
        const int64_t length = length_at(x, place);
        if (length <= *best) continue;
        *best = length;
        *at = place;
    }
}

int64_t kt_ngram_draft(kt_ngram *x, int64_t most, int32_t *out, int64_t *matched) {
    int64_t at = NONE, best = KT_NGRAM_LEAST - 1;

    *matched = 0;
    for (int i = 0; i < KT_NGRAM_ORDERS && best < order_tokens[i]; i++) search(x, i, &at, &best);
    if (x->n > 0 && x->followed != NONE && length_at(x, x->followed) > best) {
        at = x->followed;
        best = length_at(x, at);
    }
    x->followed = at;
    if (at == NONE) return 0;
    *matched = best;
    for (int64_t i = 0; i < most; i++) /* behind the text's end is what was drafted */
        out[i] = at + 1 + i < x->n ? x->token[at + 1 + i] : out[at + 1 + i - x->n];
    return most;
}
