/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/serve/grammar/vocabulary_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/utf8.h"
#include "runtime/serve/grammar/grammar_build.h"

/* From so many nodes below on, a node knows which bytes they hold. */
enum { KNOWN_FROM = 3, MOST_TOKEN_BYTES = 60000 };

static void trie_deinit(kt_trie *t) {
    free(t->node);
    free(t->order);
    free(t->seen);
}

void kt_vocabulary_destroy(kt_vocabulary *v) {
    if (!v) return;
    trie_deinit(&v->all);
    trie_deinit(&v->other);
    free(v->plain);
    free(v->ends);
    free(v->text);
    free(v->text_begin);
    free(v->special);
    free(v->name);
    free(v->name_begin);
    free(v);
}

int32_t kt_vocabulary_size(const kt_vocabulary *v) {
    return v->n_tokens;
}

size_t kt_vocabulary_words(const kt_vocabulary *v) {
    return ((size_t)v->n_tokens + 63) / 64;
}

int32_t kt_vocabulary_find_special(const kt_vocabulary *v, const char *text, size_t size) {
    for (int32_t id = 0; id < v->n_tokens; id++) {
        size_t begin = v->name_begin[id], n = v->name_begin[id + 1] - begin;
        if (n > 0 && n == size && memcmp(v->name + begin, text, n) == 0) return id;
    }
    return -1;
}

/* ---- tokens ---- */

static kt_status copy_tokens(kt_vocabulary *v, const kt_vocabulary_token *tokens, kt_err *err) {
    size_t total = 0, text = 0, name = 0;

    for (int32_t i = 0; i < v->n_tokens; i++) {
        if (tokens[i].size > MOST_TOKEN_BYTES)
            return kt_fail(err, KT_E_INVALID, "vocabulary: token %d has %zu bytes, at most %d", i,
                           tokens[i].size, (int)MOST_TOKEN_BYTES);
        total += tokens[i].size + 4;
    }
    v->text = malloc(total + 1);
    v->name = malloc(total + 1);
    if (!v->text || !v->name) return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory for tokens");
    for (int32_t i = 0; i < v->n_tokens; i++) {
        const kt_vocabulary_token *t = &tokens[i];
        v->text_begin[i] = text;
        v->name_begin[i] = name;
        if (t->special) {
            const char id[4] = {(char)KT_TOKEN_BYTE, (char)(i >> 16), (char)(i >> 8), (char)i};
            memcpy(v->text + text, id, 4);
            text += 4;
            if (t->size) memcpy(v->name + name, t->bytes, t->size);
            name += t->size;
            v->special[i / 64] |= (uint64_t)1 << i % 64;
        } else if (t->size && !memchr(t->bytes, KT_TOKEN_BYTE, t->size)) {
            memcpy(v->text + text, t->bytes, t->size);
            text += t->size;
        }
    }
    v->text_begin[v->n_tokens] = text;
    v->name_begin[v->n_tokens] = name;
    return KT_OK;
}

/* ---- the trie ---- */

typedef struct sorted_token {
    const char *bytes;
    size_t size;
    int32_t id;
    int chars; /* of a plain token, else 0 */
} sorted_token;

static int by_bytes(const void *a, const void *b) {
    const sorted_token *x = a, *y = b;
    int order = memcmp(x->bytes, y->bytes, x->size < y->size ? x->size : y->size);
    return order                ? order
           : x->size != y->size ? (x->size > y->size) - (x->size < y->size)
                                : (x->id > y->id) - (x->id < y->id);
}

static size_t common_prefix(const sorted_token *a, const sorted_token *b) {
    size_t n = 0;
    while (n < a->size && n < b->size && a->bytes[n] == b->bytes[n]) n++;
    return n;
}

/* Characters of a plain token, or 0. */
static int plain_chars(const char *text, size_t size) {
    const unsigned char *p = (const unsigned char *)text, *end = p + size;
    int chars = 0;

    for (; p < end; chars++) {
        const int n = kt_utf8_length(p, end);
        if (n == 0 || *p < 0x20 || *p == '"' || *p == '\\') return 0;
        p += n;
    }
    return chars;
}

/* open[d] is the node of depth d that may still get children. */
static void write_nodes(kt_trie *t, const sorted_token *token, uint32_t n, uint32_t *open) {
    uint32_t depth = 0;

    for (uint32_t i = 0; i < n; i++) {
        uint32_t shared = i ? (uint32_t)common_prefix(&token[i - 1], &token[i]) : 0;
        for (; depth > shared; depth--) t->node[open[depth]].end = t->n_nodes;
        for (; depth < token[i].size; t->n_nodes++) {
            kt_trie_node *node = &t->node[t->n_nodes];
            node->byte = (uint8_t)token[i].bytes[depth++];
            node->depth = (uint16_t)depth;
            node->rank = i;
            node->plain = 1;
            open[depth] = t->n_nodes;
        }
        if (token[i].chars == 0 || token[i].chars > KT_PLAIN_CHARS)
            for (uint32_t d = 1; d <= depth; d++) t->node[open[d]].plain = 0;
        t->order[i] = token[i].id;
    }
    for (; depth > 0; depth--) t->node[open[depth]].end = t->n_nodes;
    t->node[t->n_nodes] = (kt_trie_node){.end = t->n_nodes, .rank = n};
}

/* Which bytes lie below: children come after their node, so that from the back each is done
 * before. */
static kt_status find_seen(kt_trie *t, kt_err *err) {
    uint32_t n = 0;

    for (uint32_t i = 0; i < t->n_nodes; i++)
        if (t->node[i].end - i > KNOWN_FROM) t->node[i].seen = ++n;
    t->seen = calloc((size_t)n + 1, sizeof *t->seen);
    t->n_seen = n;
    if (!t->seen) return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory for %u sets of bytes", n);
    for (uint32_t i = t->n_nodes; i-- > 0;) {
        const kt_trie_node *node = &t->node[i];
        kt_byte_set *set = &t->seen[node->seen - 1];
        if (!node->seen) continue;
        for (uint32_t j = i + 1; j < node->end;) {
            const kt_trie_node *child = &t->node[j];
            kt_byte_set_add(set, child->byte);
            if (child->seen)
                for (int k = 0; k < 4; k++) set->bits[k] |= t->seen[child->seen - 1].bits[k];
            j = child->seen ? child->end : j + 1;
        }
    }
    return KT_OK;
}

/* From tokens in order. */
static kt_status write_trie(kt_trie *t, const sorted_token *token, uint32_t n, kt_err *err) {
    size_t nodes = 1;
    uint32_t *open;

    for (uint32_t i = 0; i < n; i++) {
        nodes += token[i].size - (i ? common_prefix(&token[i - 1], &token[i]) : 0);
        if (token[i].size > t->most_depth) t->most_depth = (uint32_t)token[i].size;
    }
    open = malloc(((size_t)t->most_depth + 1) * sizeof *open);
    t->order = malloc(((size_t)n + 1) * sizeof *t->order);
    t->node = calloc(nodes, sizeof *t->node);
    if (open && t->order && t->node) write_nodes(t, token, n, open);
    free(open);
    if (!open || !t->order || !t->node)
        return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory for a trie of %zu nodes", nodes);
    return find_seen(t, err);
}

static uint32_t list_tokens(const kt_vocabulary *v, sorted_token *token) {
    uint32_t n = 0;

    for (int32_t i = 0; i < v->n_tokens; i++) {
        const char *text = v->text + v->text_begin[i];
        const size_t size = v->text_begin[i + 1] - v->text_begin[i];
        if (size) token[n++] = (sorted_token){text, size, i, plain_chars(text, size)};
    }
    qsort(token, n, sizeof *token, by_bytes);
    return n;
}

/* Take the plain tokens out of the list, into masks. Returns how many others stay, in order. */
static uint32_t take_plain(kt_vocabulary *v, sorted_token *token, uint32_t n) {
    const size_t words = kt_vocabulary_words(v);
    uint32_t kept = 0;

    for (uint32_t i = 0; i < n; i++) {
        const int32_t id = token[i].id;
        if (token[i].chars == 0 || token[i].chars > KT_PLAIN_CHARS)
            token[kept++] = token[i];
        else
            v->plain[(size_t)(token[i].chars - 1) * words + (size_t)id / 64] |= (uint64_t)1
                                                                                << id % 64;
    }
    for (size_t i = words; i < KT_PLAIN_CHARS * words; i++) v->plain[i] |= v->plain[i - words];
    return kept;
}

static kt_status sort_tokens(kt_vocabulary *v, kt_err *err) {
    sorted_token *token = malloc(((size_t)v->n_tokens + 1) * sizeof *token);
    uint32_t n;
    kt_status st;

    v->plain = calloc(KT_PLAIN_CHARS * kt_vocabulary_words(v), sizeof *v->plain);
    if (!token || !v->plain) {
        free(token);
        return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory to sort %d tokens", v->n_tokens);
    }
    n = list_tokens(v, token);
    st = write_trie(&v->all, token, n, err);
    if (st == KT_OK) st = write_trie(&v->other, token, take_plain(v, token, n), err);
    free(token);
    return st;
}

/* ---- making one ---- */

static kt_status fill(kt_vocabulary *v, const kt_vocabulary_token *tokens, const int32_t *ends,
                      kt_err *err) {
    size_t n = (size_t)v->n_tokens;

    v->text_begin = malloc((n + 1) * sizeof *v->text_begin);
    v->name_begin = malloc((n + 1) * sizeof *v->name_begin);
    v->special = calloc(n / 64 + 1, sizeof *v->special);
    v->ends = malloc((v->n_ends + 1) * sizeof *v->ends);
    if (!v->text_begin || !v->name_begin || !v->special || !v->ends)
        return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory for %d tokens", v->n_tokens);
    for (size_t i = 0; i < v->n_ends; i++) {
        if (ends[i] < 0 || ends[i] >= v->n_tokens)
            return kt_fail(err, KT_E_INVALID, "vocabulary: end token %d, expected 0 to %d", ends[i],
                           v->n_tokens - 1);
        v->ends[i] = ends[i];
    }
    KT_TRY(copy_tokens(v, tokens, err));
    return sort_tokens(v, err);
}

kt_status kt_vocabulary_create(const kt_vocabulary_token *tokens, int32_t n, const int32_t *ends,
                               size_t n_ends, kt_vocabulary **out, kt_err *err) {
    kt_vocabulary *v;
    kt_status st;

    *out = NULL;
    if (n <= 0 || n >= 1 << 24)
        return kt_fail(err, KT_E_INVALID, "vocabulary: %d tokens, expected 1 to %d", n,
                       (1 << 24) - 1);
    v = calloc(1, sizeof *v);
    if (!v) return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory");
    v->n_tokens = n;
    v->n_ends = n_ends;
    st = fill(v, tokens, ends, err);
    if (st == KT_OK)
        *out = v;
    else
        kt_vocabulary_destroy(v);
    return st;
}

kt_status kt_vocabulary_from_tokenizer(const kt_tokenizer *t, const int32_t *ends, size_t n_ends,
                                       kt_vocabulary **out, kt_err *err) {
    int32_t n = kt_tokenizer_size(t);
    kt_vocabulary_token *tokens = calloc((size_t)n + 1, sizeof *tokens);
    kt_status st;

    *out = NULL;
    if (!tokens) return kt_fail(err, KT_E_NOMEM, "vocabulary: no memory for %d tokens", n);
    for (int32_t i = 0; i < n; i++) {
        kt_vocabulary_token *token = &tokens[i];
        token->bytes = kt_tokenizer_bytes(t, i, &token->size, &token->special);
        if (!token->bytes) *token = (kt_vocabulary_token){"", 0, false};
    }
    st = kt_vocabulary_create(tokens, n, ends, n_ends, out, err);
    free(tokens);
    return st;
}
