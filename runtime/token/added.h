/* Added tokens: texts that become one id before anything else happens ("<|im_end|>", runs of
 * spaces). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_ADDED_H
#define KT_RUNTIME_ADDED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kt/status.h"

typedef struct kt_added_flags {
    bool special;     /* only recognised when the caller asks for it */
    bool single_word; /* not next to a letter, digit or underscore */
    bool lstrip;      /* takes the white space before it */
    bool rstrip;      /* takes the white space after it */
} kt_added_flags;

/* A set of such texts, as a trie. Zero-initialise; kt_added_deinit. */
typedef struct kt_added {
    struct kt_added_node *nodes; /* [0] is the root */
    size_t n_nodes, capacity;
    uint32_t first[256]; /* child of the root by byte, 0 = none */
} kt_added;

void kt_added_deinit(kt_added *a);

/* Text must not be empty. A text given twice keeps the later id. */
kt_status kt_added_insert(kt_added *a, const char *text, size_t size, int32_t id,
                          kt_added_flags flags, kt_err *err);

typedef struct kt_added_match {
    size_t begin, end; /* in the text, with what lstrip and rstrip took */
    int32_t id;
} kt_added_match;

/* Where texts may be found: in these spans (ascending, apart), and anywhere those that are nothing
 * but white space. */
typedef struct kt_added_places {
    const struct kt_trusted_span *spans;
    size_t n_spans, next; /* next: of the span to look at, moves on */
} kt_added_places;

/* The next match in text[from, size): leftmost, then longest. False when there is none. With
 * `places` (NULL = everywhere) a match lies inside of one of them before lstrip and rstrip; calls
 * for one text go from its beginning to its end. */
bool kt_added_next(const kt_added *a, const char *text, size_t size, size_t from,
                   bool parse_special, kt_added_places *places, kt_added_match *out);

/* Id of exactly this text, or -1. */
int32_t kt_added_find(const kt_added *a, const char *text, size_t size);

#endif
