/* Trie over bytes. A walk from each start costs at most the longest added text, so the whole search
 * is linear in the text. SPDX-License-Identifier: Apache-2.0 */
#include "runtime/token/added.h"

#include <utf8proc.h>

#include "runtime/token/text.h"
#include "runtime/token/tokenizer.h"
#include "runtime/token/utf8_scan.h"

typedef struct kt_added_node {
    uint32_t child, sibling; /* 0 = none */
    int32_t id;              /* -1 = no text ends here */
    kt_added_flags flags;
    unsigned char byte;
    bool is_blank; /* nothing but white space up to here */
} kt_added_node;

void kt_added_deinit(kt_added *a) {
    free(a->nodes);
    memset(a, 0, sizeof *a);
}

static kt_status new_node(kt_added *a, unsigned char byte, uint32_t *out, kt_err *err) {
    void *data = a->nodes;
    kt_status st = kt_grow(&data, a->n_nodes, &a->capacity, 1, sizeof *a->nodes, err);

    a->nodes = data;
    if (st != KT_OK) return st;
    if (a->n_nodes >= UINT32_MAX) return kt_fail(err, KT_E_FORMAT, "added tokens are too long");
    a->nodes[a->n_nodes] = (kt_added_node){.id = -1, .byte = byte};
    *out = (uint32_t)a->n_nodes++;
    return KT_OK;
}

static uint32_t child_of(const kt_added *a, uint32_t node, unsigned char byte) {
    uint32_t c;

    if (node == 0) return a->first[byte];
    for (c = a->nodes[node].child; c; c = a->nodes[c].sibling) {
        if (a->nodes[c].byte == byte) break;
    }
    return c;
}

kt_status kt_added_insert(kt_added *a, const char *text, size_t size, int32_t id,
                          kt_added_flags flags, kt_err *err) {
    uint32_t at = 0;

    if (a->n_nodes == 0) KT_TRY(new_node(a, 0, &at, err));
    for (size_t i = 0; i < size; i++) {
        unsigned char byte = (unsigned char)text[i];
        uint32_t c = child_of(a, at, byte);
        if (!c) {
            KT_TRY(new_node(a, byte, &c, err));
            a->nodes[c].is_blank =
                (at == 0 || a->nodes[at].is_blank) && (byte == ' ' || (byte >= 9 && byte <= 13));
            a->nodes[c].sibling = a->nodes[at].child;
            a->nodes[at].child = c;
            if (at == 0) a->first[byte] = c;
        }
        at = c;
    }
    a->nodes[at].id = id;
    a->nodes[at].flags = flags;
    return KT_OK;
}

int32_t kt_added_find(const kt_added *a, const char *text, size_t size) {
    uint32_t at = 0;

    if (a->n_nodes == 0 || size == 0) return -1;
    for (size_t i = 0; i < size; i++) {
        at = child_of(a, at, (unsigned char)text[i]);
        if (!at) return -1;
    }
    return a->nodes[at].id;
}

/* Length and node of the longest text at s, 0 = none. Behind `trusted` bytes only blank ones. */
static size_t longest(const kt_added *a, const char *s, size_t n, size_t trusted,
                      bool parse_special, const kt_added_node **out) {
    size_t found = 0;
    uint32_t at = 0;

    for (size_t i = 0; i < n; i++) {
        const kt_added_node *node;
        at = child_of(a, at, (unsigned char)s[i]);
        if (!at) break;
        node = &a->nodes[at];
        if (node->id < 0 || (node->flags.special && !parse_special)) continue;
        if (i >= trusted && !node->is_blank) continue;
        found = i + 1;
        *out = node;
    }
    return found;
}

static bool is_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || cp == 0x20 || cp == 0x85 || cp == 0xa0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200a) || cp == 0x2028 || cp == 0x2029 || cp == 0x202f ||
           cp == 0x205f || cp == 0x3000;
}

/* What a regular expression calls \w. */
static bool is_word(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: return false;
    }
}

/* The character that ends at `end`; the text is well-formed. Returns its length. */
static size_t char_before(const char *text, size_t end, uint32_t *cp) {
    size_t begin = end - 1;
    while (begin > 0 && ((unsigned char)text[begin] & 0xc0) == 0x80) begin--;
    kt_utf8_next(text + begin, end - begin, cp);
    return end - begin;
}

static bool stands_alone(const char *text, size_t size, size_t begin, size_t end) {
    uint32_t cp = 0;

    if (begin > 0) {
        char_before(text, begin, &cp);
        if (is_word(cp)) return false;
    }
    if (end == size) return true;
    kt_utf8_next(text + end, size - end, &cp);
    return !is_word(cp);
}

/* How many bytes from i on belong to one trusted span. */
static size_t trusted_from(kt_added_places *p, size_t i, size_t size) {
    if (!p) return size - i;
    while (p->next < p->n_spans && p->spans[p->next].end <= i) p->next++;
    if (p->next == p->n_spans || p->spans[p->next].begin > i) return 0;
    return (p->spans[p->next].end < size ? p->spans[p->next].end : size) - i;
}

bool kt_added_next(const kt_added *a, const char *text, size_t size, size_t from,
                   bool parse_special, kt_added_places *places, kt_added_match *out) {
    if (a->n_nodes == 0) return false;
    for (size_t i = from; i < size; i++) {
        const kt_added_node *node = NULL;
        size_t begin = i, end;
        uint32_t cp;

        if (!a->first[(unsigned char)text[i]]) continue;
        end =
            i + longest(a, text + i, size - i, trusted_from(places, i, size), parse_special, &node);
        if (end == i) continue;
        if (node->flags.single_word && !stands_alone(text, size, begin, end)) {
            i = end - 1;
            continue;
        }
        while (node->flags.lstrip && begin > from) {
            size_t n = char_before(text, begin, &cp);
            if (!is_space(cp) || n > begin - from) break;
            begin -= n;
        }
        while (node->flags.rstrip && end < size) {
            int n = kt_utf8_next(text + end, size - end, &cp);
            if (n <= 0 || !is_space(cp)) break;
            end += (size_t)n;
        }
        *out = (kt_added_match){begin, end, node->id};
        return true;
    }
    return false;
}
