/* The parts of a parser that its files share. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_PARSER_IMPL_H
#define KT_RUNTIME_PARSER_IMPL_H

#include "base/rng.h"
#include "runtime/chat/calls.h"
#include "runtime/chat/channels.h"
#include "runtime/chat/json_stream.h"
#include "runtime/chat/parser.h"
#include "runtime/chat/reasoning.h"

enum {
    KT_MARK_BYTES = 64,       /* longest mark */
    KT_CALL_NAME_BYTES = 256, /* longest function name and parameter name */
    KT_CALL_PARAMS = 1024,    /* parameters of one call */
    KT_TREE_DEPTH = 16,       /* of elements in elements; deeper ones are text */
    KT_PARSER_SPACE = 64,     /* white space held back, as it may belong to a mark */
    KT_PARSER_OUT = 4096,     /* bytes of one event */
    KT_PARSER_HELD = 1 << 19, /* of a call that is not yet known to be one; of one typed value */
    KT_PARSER_ASIDE = 1 << 16 /* of text inside a call, which comes after it */
};

typedef enum kt_mark {
    KT_MARK_THINK_BEGIN,
    KT_MARK_THINK_END,
    KT_MARK_SECTION_BEGIN,
    KT_MARK_SECTION_END,
    KT_MARK_CALL_BEGIN,
    KT_MARK_CALL_END,
    KT_MARK_PREFIX_END,
    KT_MARK_NAME_END,
    KT_MARK_ARGUMENTS_END,
    KT_MARK_PARAM_BEGIN,
    KT_MARK_KEY_END,
    KT_MARK_VALUE_BEGIN,
    KT_MARK_VALUE_END,
    KT_MARK_START, /* of messages with headers; call_end is CALL_END there */
    KT_MARK_CHANNEL,
    KT_MARK_CONSTRAIN,
    KT_MARK_MESSAGE,
    KT_MARK_MESSAGE_END,
    KT_MARK_ANSWER_END,
    KT_MARKS
} kt_mark;

typedef enum kt_parser_state {
    KT_AT_TEXT,
    KT_AT_REASONING,
    KT_AT_SECTION,   /* between calls */
    KT_AT_PREFIX,    /* before prefix_end */
    KT_AT_NAME,      /* up to name_end */
    KT_AT_BODY,      /* before the arguments' { */
    KT_AT_ARGUMENTS, /* inside them */
    KT_AT_OBJECT,    /* inside {"name": ..., "arguments": ...} */
    KT_AT_END,       /* after the arguments, before call_end */
    KT_AT_SPOILT,    /* after an error in a call that was begun: text up to call_end */
    KT_AT_PARAMS,    /* between parameters */
    KT_AT_KEY,
    KT_AT_BETWEEN, /* between key_end and value_begin */
    KT_AT_VALUE,
    KT_AT_HEADER, /* of a message */
    KT_AT_TREE,   /* between tags of elements */
    KT_AT_TAG,
    KT_PARSER_STATES
} kt_parser_state;

typedef struct kt_parser_bytes { /* a growing buffer with a limit */
    char *at;
    size_t size, capacity;
} kt_parser_bytes;

typedef enum kt_object_place { /* in KT_AT_OBJECT */
                               KT_OBJECT_OPEN,
                               KT_OBJECT_KEY_OR_END,
                               KT_OBJECT_KEY,
                               KT_OBJECT_COLON,
                               KT_OBJECT_VALUE,
                               KT_OBJECT_NAME,
                               KT_OBJECT_ARGUMENTS,
                               KT_OBJECT_STRING, /* arguments written as a string of JSON */
                               KT_OBJECT_OTHER,  /* the value of another key */
                               KT_OBJECT_AFTER
} kt_object_place;

typedef enum kt_value_kind {
    KT_VALUE_STRING, /* streamed as a JSON string */
    KT_VALUE_TYPED,  /* collected, then written as what it is */
    KT_VALUE_ASIDE   /* of a parameter that was there before */
} kt_value_kind;

typedef enum kt_element_kind {
    KT_ELEMENT_LEAF,   /* collected, or a container whose first child has not come */
    KT_ELEMENT_STRING, /* streamed */
    KT_ELEMENT_OBJECT,
    KT_ELEMENT_ARRAY,
    KT_ELEMENT_ASIDE /* of a key that was there before */
} kt_element_kind;

typedef struct kt_parser_element {
    kt_element_kind kind;
    const kt_json *schema; /* or NULL */
    int n_children, first_key;
    size_t n_name;
    char name[KT_CALL_NAME_BYTES];
} kt_parser_element;

/* Types that a schema allows for a value: bit t for kt_json_type t. 0 = nothing is known. */
typedef unsigned kt_value_types;

struct kt_parser {
    kt_parser_choice choice;
    const kt_calls *calls;       /* NULL: calls are text */
    const kt_channels *channels; /* NULL: answers have no messages with headers */
    const kt_json *tools;
    kt_rng rng;
    int first_call;

    /* Marks: text without white space at its ends, size 0 = there is none; id of a special token
     * or -1. */
    struct {
        const char *text;
        size_t size;
        int32_t id;
    } mark[KT_MARKS];
    int32_t part_id;
    uint32_t first[256]; /* marks that begin with this byte and are recognised by text */

    kt_parser_state state,
        origin; /* origin: TEXT or REASONING, where a call that is none goes back to */
    char pending[KT_MARK_BYTES]; /* what may become a mark */
    size_t n_pending;
    bool finished, no_memory;

    /* text and reasoning */
    char space[KT_PARSER_SPACE];
    size_t n_space;
    bool at_block;      /* only white space since the start, a mark's end or a call's end */
    bool skip_newlines; /* right after a mark */
    bool line_start, in_fence;
    int n_ticks;        /* backticks since the line's start; -1 = something else came */
    bool opens_in_text; /* the first push writes the begin mark as text */

    /* headers */
    bool header_role;      /* the header begins with a role */
    size_t header_part;    /* where the role is in held */
    size_t header_channel; /* where the channel's name is in held, or 0 */
    size_t header_type;    /* where the mark before the type is in held, or 0 */
    bool has_said[2];      /* a message of text, of reasoning has begun */

    /* calls */
    int n_calls, n_whole;
    bool in_section, begun; /* begun: TOOL_BEGIN has been sent and TOOL_END has not */
    kt_parser_bytes held;   /* raw bytes of a call that is not begun */
    char name[KT_CALL_NAME_BYTES + 1];
    size_t n_name;
    char id[KT_CALL_NAME_BYTES + 16];
    kt_json_stream json, other; /* arguments; another value, or arguments in a string */
    uint32_t present;           /* bit m: mark m exists */
    uint32_t by_id;             /* bit m: it is a special token */
    kt_object_place place;
    char key[KT_CALL_NAME_BYTES + 1];
    size_t n_key;
    bool has_arguments;
    kt_parser_bytes
        value; /* arguments before their name; a typed value; the raw start of a parameter */
    kt_parser_bytes aside;
    const kt_json *properties; /* of the schema of the function being called, or NULL */
    kt_value_kind value_kind;
    kt_value_types types;
    bool value_began, newline_held;
    uint64_t keys[KT_CALL_PARAMS]; /* hashes of the parameters so far */
    int n_keys;
    kt_parser_element tree[KT_TREE_DEPTH];
    int depth, n_root; /* open elements; parameters so far */

    /* output */
    kt_event_kind out_kind;
    char out[KT_PARSER_OUT + 8];
    size_t n_out;
    kt_event_sink *sink;
    void *sink_arg;
};

/* parser_out.c: bytes to events. text() joins pieces of a kind into one event per push. */
void kt_parser_text(kt_parser *p, kt_event_kind kind, const char *bytes, size_t size);
void kt_parser_flush(kt_parser *p, bool is_end); /* is_end: half characters come out as U+FFFD */
void kt_parser_call_event(kt_parser *p, kt_event_kind kind, bool is_cut);
/* Append to a buffer; false when it would grow over limit, or memory is short (p->no_memory). */
bool kt_parser_keep(kt_parser *p, kt_parser_bytes *b, const char *bytes, size_t size, size_t limit);

/* parser.c */
void kt_parser_prose(kt_parser *p, const char *bytes, size_t size); /* text or reasoning by state */
void kt_parser_put_space(kt_parser *p); /* what was held back is no mark's */
void kt_parser_end_section(kt_parser *p);
void kt_parser_spoil(kt_parser *p); /* the call cannot go on: what it held is text, or it is cut */

/* parser_call.c: a call's head and JSON arguments. Each run() takes 1 or more of n bytes and
 * returns how many, or 0 after it changed the state without taking any. */
void kt_parser_start_call(kt_parser *p);
void kt_parser_begin_call(kt_parser *p);
void kt_parser_end_call(kt_parser *p, bool is_cut);
bool kt_parser_name_ok(const char *name, size_t n);
void kt_parser_name_done(kt_parser *p);
size_t kt_parser_run_name(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_body(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_arguments(kt_parser *p, const char *bytes, size_t n);

/* parser_channels.c: headers of messages. */
void kt_parser_open_header(kt_parser *p, bool with_role);
void kt_parser_channel_mark(kt_parser *p, kt_mark m);
size_t kt_parser_run_header(kt_parser *p, const char *bytes, size_t n);

/* parser_tree.c: elements inside of elements. */
size_t kt_parser_run_tree(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_tag(kt_parser *p, const char *bytes, size_t n);
void kt_parser_tag_begin(kt_parser *p);
void kt_parser_tree_end(kt_parser *p); /* closes what is open, and the arguments' object */

/* parser_object.c, parser_params.c */
size_t kt_parser_run_object(kt_parser *p, const char *bytes, size_t n);
bool kt_parser_close_object(kt_parser *p); /* call_end came early: false when it is no call */
size_t kt_parser_run_params(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_key(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_between(kt_parser *p, const char *bytes, size_t n);
size_t kt_parser_run_value(kt_parser *p, const char *bytes, size_t n);
void kt_parser_param_begin(kt_parser *p);
void kt_parser_key_end(kt_parser *p);
void kt_parser_value_begin(kt_parser *p);
void kt_parser_value_end(kt_parser *p);
void kt_parser_params_end(kt_parser *p); /* closes the arguments' object */
void kt_parser_put_escaped(kt_parser *p, const char *bytes, size_t n); /* inside a JSON string */
void kt_parser_put_aside(kt_parser *p, const char *bytes, size_t size);

/* value_type.c: what the request's tools say. */
const kt_json *kt_tool_find(const kt_json *tools, const char *name,
                            size_t n); /* "function" object */
const kt_json *kt_tool_properties(const kt_json *function);
kt_value_types kt_schema_types(const kt_json *schema);
/* Write a collected value: as JSON where it is JSON or a Python literal and the types allow it,
 * else as a string. Output is malloc'd; NULL when memory is short. */
char *kt_value_to_json(const char *text, size_t n, kt_value_types types, bool any_json,
                       size_t *size);

#endif
