/* The parsed form of JSON, shared by the reader and the accessors; everyone else uses base/json.h.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_JSON_TREE_H
#define KT_BASE_JSON_TREE_H

#include "base/arena.h"
#include "base/json.h"

struct kt_json {
    kt_json_type type;
    bool truth;    /* BOOL */
    size_t length; /* bytes of a string or lexeme, elements, members */
    union {
        const char *text;                    /* STRING, NUMBER: NUL-terminated */
        const struct kt_json *items;         /* ARRAY */
        const struct kt_json_object *object; /* OBJECT */
    } as;
};

typedef struct kt_json_member_slot {
    const char *key;
    size_t key_size;
    struct kt_json value;
} kt_json_member_slot;

/* Members in source order. Objects of more than KT_JSON_LINEAR members carry an open-addressing
 * table of member number + 1 (0 = empty), at most half full. */
typedef struct kt_json_object {
    const kt_json_member_slot *members;
    const uint32_t *table;
    uint32_t table_mask;
    uint64_t seed;
} kt_json_object;

enum { KT_JSON_LINEAR = 8 };

struct kt_json_doc {
    struct kt_json root;
    kt_arena arena; /* items, members, tables */
    char *texts;    /* all decoded strings and lexemes, one after the other */
};

uint64_t kt_json_hash(uint64_t seed, const char *key, size_t size);

#endif
