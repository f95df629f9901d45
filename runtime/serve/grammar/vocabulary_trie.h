/* Inside of a vocabulary, for masks. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_VOCABULARY_TRIE_H
#define KT_RUNTIME_VOCABULARY_TRIE_H

#include "runtime/serve/grammar/vocabulary.h"

/* A prefix of tokens. Nodes are in the order of their bytes, each before what goes on from it, so a
 * walk reads memory from front to back and skips what is refused. Tokens are in the same order:
 * those of a node and below are rank ... the rank of node `end`. */
typedef struct kt_trie_node {
    uint32_t end;   /* the first node that does not go on from this one */
    uint32_t rank;  /* tokens before this node's own */
    uint32_t seen;  /* 1 + index of the set of bytes below, or 0 where few nodes are */
    uint16_t depth; /* 1 for the first byte */
    uint8_t byte;
    uint8_t plain; /* all tokens of this node and below are, of up to KT_PLAIN_CHARS characters */
} kt_trie_node;

typedef struct kt_byte_set {
    uint64_t bits[4];
} kt_byte_set;

static inline void kt_byte_set_add(kt_byte_set *s, uint8_t byte) {
    s->bits[byte / 64] |= (uint64_t)1 << byte % 64;
}
static inline bool kt_byte_set_has(const kt_byte_set *s, uint8_t byte) {
    return s->bits[byte / 64] >> byte % 64 & 1;
}
static inline int kt_byte_set_size(const kt_byte_set *s) {
    return __builtin_popcountll(s->bits[0]) + __builtin_popcountll(s->bits[1]) +
           __builtin_popcountll(s->bits[2]) + __builtin_popcountll(s->bits[3]);
}
/* Have they no byte in common? */
static inline bool kt_byte_sets_apart(const kt_byte_set *a, const kt_byte_set *b) {
    return !((a->bits[0] & b->bits[0]) | (a->bits[1] & b->bits[1]) | (a->bits[2] & b->bits[2]) |
             (a->bits[3] & b->bits[3]));
}

typedef struct kt_trie {
    kt_trie_node *node; /* [n_nodes + 1]: the last one ends ranks */
    uint32_t n_nodes, most_depth;
    int32_t *order;    /* [ranked tokens]: their ids in the order of the trie */
    kt_byte_set *seen; /* bytes of all nodes below one, itself excluded */
    uint32_t n_seen;
} kt_trie;

/* A plain token is whole characters of UTF-8 that stand for themselves in a JSON string: no control
 * characters, quotes or backslashes. Most tokens are. */
enum { KT_PLAIN_CHARS = 16 };

struct kt_vocabulary {
    int32_t n_tokens;
    kt_trie all, other; /* other: without the plain ones of up to KT_PLAIN_CHARS characters */
    uint64_t *plain;    /* bits [KT_PLAIN_CHARS][words]: plain tokens of 1 to i + 1 characters */
    int32_t *ends;
    size_t n_ends;
    /* Bytes of each token in the form that grammars read; where special, the four of
     * KT_TOKEN_BYTE. */
    char *text;
    size_t *text_begin; /* [n_tokens + 1] */
    uint64_t *special;  /* bits: a token known by its id */
    size_t
        *name_begin; /* [n_tokens + 1] into name: the text of special tokens, for <name> in GBNF */
    char *name;
};

/* Id of the special token of this text, or -1. */
int32_t kt_vocabulary_find_special(const kt_vocabulary *v, const char *text, size_t size);

#endif
