/* Inside of the template engine: values, strings that know where their bytes came from, and the
 * state of one rendering. `template.h` is what everyone else uses.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_JINJA_H
#define KT_RUNTIME_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/json.h"
#include "kt/status.h"
#include "runtime/chat/template.h"
#include "runtime/token/text.h"

typedef struct kt_jinja_node kt_jinja_node; /* jinja_node.h */
typedef struct kt_jinja_run kt_jinja_run;

/* ---- values ---- */

typedef enum kt_jinja_type {
    KT_JINJA_UNSET, /* an argument that was not given; never seen by a template */
    KT_JINJA_UNDEFINED,
    KT_JINJA_NONE,
    KT_JINJA_BOOL,
    KT_JINJA_INT,
    KT_JINJA_BIG, /* an integer beyond 64 bits: its digits, only printed and compared */
    KT_JINJA_FLOAT,
    KT_JINJA_STRING,
    KT_JINJA_LIST,
    KT_JINJA_DICT,
    KT_JINJA_NAMESPACE,
    KT_JINJA_MACRO,
    KT_JINJA_LOOP,
    KT_JINJA_BUILTIN, /* a global function, or a method with its object */
    KT_JINJA_CYCLER,
    KT_JINJA_JOINER
} kt_jinja_type;

typedef struct kt_jinja_value {
    kt_jinja_type type;
    union {
        bool truth;
        int64_t integer;
        double real;
        const struct kt_jinja_missing *missing; /* UNDEFINED; NULL = nothing to say about it */
        const struct kt_jinja_string *string;   /* STRING, BIG */
        struct kt_jinja_list *list;
        struct kt_jinja_dict *dict; /* DICT, NAMESPACE */
        struct kt_jinja_macro *macro;
        struct kt_jinja_loop *loop;
        struct kt_jinja_bound *bound;
        struct kt_jinja_cycle *cycle; /* CYCLER, JOINER */
    } as;
} kt_jinja_value;

/* What an undefined value stands for, for messages: a variable, or a member of something. */
typedef struct kt_jinja_missing {
    const char *of;   /* name of the type that lacks it; NULL = a variable */
    const char *name; /* NULL = element number `index` */
    size_t name_size;
    int64_t index;
} kt_jinja_missing;

/* UTF-8 that never changes. The spans are the trusted parts; one may end behind `size`. */
typedef struct kt_jinja_string {
    const char *data;
    size_t size;
    const kt_trusted_span *spans;
    size_t n_spans;
    struct kt_jinja_buffer *buffer; /* the text is the beginning of it; NULL = of none */
    bool all_trusted;
    bool is_markup; /* of filter safe or escape: what is added to it gets escaped */
} kt_jinja_string;

typedef enum kt_jinja_flavour {
    KT_JINJA_PLAIN, /* list */
    KT_JINJA_TUPLE,
    KT_JINJA_RANGE,
    KT_JINJA_KEYS, /* of a dictionary, as are the next two */
    KT_JINJA_VALUES,
    KT_JINJA_ITEMS,
    KT_JINJA_GENERATOR /* has neither a length nor elements by number */
} kt_jinja_flavour;

typedef struct kt_jinja_list {
    kt_jinja_flavour flavour;
    size_t size, capacity;
    kt_jinja_value *items;
} kt_jinja_list;

typedef struct kt_jinja_entry {
    kt_jinja_value key, value;
    uint64_t hash;
} kt_jinja_entry;

/* In order of insertion. Beyond 8 entries `slots` (open addressing) holds entry number + 1. */
typedef struct kt_jinja_dict {
    size_t size, capacity;
    kt_jinja_entry *entries;
    uint32_t *slots;
    size_t slot_mask;
} kt_jinja_dict;

typedef struct kt_jinja_macro {
    const kt_jinja_node *node;
    struct kt_jinja_scope *scope; /* where it was defined */
} kt_jinja_macro;

typedef struct kt_jinja_loop {
    const kt_jinja_value *items;
    size_t index, size;
    int depth;
    const kt_jinja_node *node; /* the statement when it is recursive, else NULL */
    struct kt_jinja_scope *scope;
    bool has_seen; /* loop.changed */
    kt_jinja_value seen;
} kt_jinja_loop;

typedef struct kt_jinja_cycle {
    kt_jinja_list items; /* of a joiner: its separator */
    size_t at;
} kt_jinja_cycle;

/* ---- builtins ---- */

enum {
    KT_JINJA_MAX_PARAMETERS = 6,
    KT_JINJA_MAX_NESTED =
        3000 /* evaluations and lists of statements at once: under 2 MiB of stack */
};

/* A call as written: positional arguments, then named ones. */
typedef struct kt_jinja_args {
    const kt_jinja_value *values; /* n_positional + n_named */
    size_t n_positional, n_named;
    const kt_jinja_string *names; /* of the named ones */
} kt_jinja_args;

/* arg[i] is what `parameters` calls the i-th, or UNSET. With `takes_any`, arg is NULL and args has
 * the call as it was written. */
typedef kt_status kt_jinja_function(kt_jinja_run *r, const kt_jinja_value *self,
                                    const kt_jinja_value *arg, const kt_jinja_args *args,
                                    kt_jinja_value *out);

typedef struct kt_jinja_builtin {
    const char *name;
    kt_jinja_function *run;
    int n_required;
    bool takes_any;
    bool changes; /* what it is called on, which may then refer to new memory */
    const char *parameters[KT_JINJA_MAX_PARAMETERS];
} kt_jinja_builtin;

typedef struct kt_jinja_bound {
    const kt_jinja_builtin *builtin;
    kt_jinja_value self;
    const char *of; /* type of the object, NULL = a global function */
} kt_jinja_bound;

extern const kt_jinja_builtin kt_jinja_text_filters[], kt_jinja_list_filters[], kt_jinja_tests[],
    kt_jinja_globals[], kt_jinja_string_methods[], kt_jinja_list_methods[],
    kt_jinja_dict_methods[]; /* each ends with a NULL name */

/* NULL when there is none of that name. */
const kt_jinja_builtin *kt_jinja_find_builtin(const kt_jinja_builtin *table, const char *name,
                                              size_t size);
const kt_jinja_builtin *kt_jinja_find_filter(const char *name, size_t size);
const kt_jinja_builtin *kt_jinja_find_test(const char *name, size_t size);

/* Sort the arguments by parameter and call; `what` ("filter 'join'") is for messages. */
kt_status kt_jinja_invoke(kt_jinja_run *r, const kt_jinja_builtin *b, const char *what,
                          const kt_jinja_value *self, const kt_jinja_args *args,
                          kt_jinja_value *out);

/* ---- one rendering ---- */

/* Variables of a block; inner ones come first. */
typedef struct kt_jinja_scope {
    struct kt_jinja_scope *outer;
    struct kt_jinja_binding *bindings;
} kt_jinja_scope;

typedef struct kt_jinja_binding {
    struct kt_jinja_binding *next;
    uint32_t symbol;
    kt_jinja_value value;
} kt_jinja_binding;

/* Text in the making, with its trusted spans. Zero-initialise; kt_jinja_builder_deinit. */
typedef struct kt_jinja_builder {
    kt_text text;
    kt_trusted_span *spans;
    size_t n_spans, span_capacity;
} kt_jinja_builder;

struct kt_jinja_run {
    const kt_template *t;
    kt_arena arena;
    char *room, *room_end; /* of its latest chunk: what is not given out */
    char *zeros;           /* what follows in the chunk is still zero */
    uint64_t n_chunks;     /* taken of the arena so far, and not given back */
    kt_arena_mark mark;    /* of the arena, behind the latest one */
    size_t used;           /* bytes given out */
    /* What refers to memory of the arena was kept so many times: in all, and where it outlives the
     * scopes of macros and loops (namespaces, lists, dictionaries, closures). */
    uint64_t stores, lasting;
    int64_t steps;
    int depth;  /* of macros, loops and values */
    int nested; /* of evaluations: bounds the C stack */
    kt_template_limits limits;
    int64_t now;
    const kt_jinja_node *at; /* what runs, for messages */
    /* By symbol: what the template has set outside of loops, macros and blocks, else of the
     * context, else global functions. */
    kt_jinja_value *variables;
    kt_jinja_scope *scope;
    uint64_t closures; /* macros made: they keep their scope */
    /* Keys of the context, by size and beginning: messages repeat them. NULL later. */
    const kt_jinja_string **keys;
    kt_jinja_binding *spare; /* of scopes that nothing keeps */
    kt_jinja_builder *out;   /* where statements write */
    kt_jinja_value body;     /* the text that a block's filters work on */
    kt_err *err;
};

/* Fail with "NAME:LINE:COLUMN: message". */
kt_status kt_jinja_fail(const kt_jinja_run *r, kt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Zeroed memory until the end of the rendering. */
kt_status kt_jinja_alloc(kt_jinja_run *r, size_t n, size_t item_bytes, void **out);
/* Memory of what was only needed meanwhile. kt_jinja_forget gives back all since `here`, unless
 * something was kept since. kt_jinja_leave says that the scopes opened since are left, so that what
 * was kept in them counts no more; false when something outlives them. */
typedef struct kt_jinja_here {
    kt_arena_mark mark;
    char *room, *room_end;
    size_t used;
    uint64_t n_chunks, stores, lasting;
    struct kt_jinja_binding *spare;
} kt_jinja_here;

static inline kt_jinja_here kt_jinja_note_here(const kt_jinja_run *r) {
    return (kt_jinja_here){.mark = r->mark,
                           .room = r->room,
                           .room_end = r->room_end,
                           .used = r->used,
                           .n_chunks = r->n_chunks,
                           .stores = r->stores,
                           .lasting = r->lasting,
                           .spare = r->spare};
}
void kt_jinja_rewind(kt_jinja_run *r, const kt_jinja_here *here);
static inline void kt_jinja_forget(kt_jinja_run *r, const kt_jinja_here *here) {
    if (r->stores == here->stores && r->used != here->used) kt_jinja_rewind(r, here);
}
kt_jinja_here kt_jinja_enter_scopes(kt_jinja_run *r);
bool kt_jinja_leave(kt_jinja_run *r, const kt_jinja_here *here);
void kt_jinja_keep(kt_jinja_run *r); /* something lasting refers to new memory */
/* Count work; fails when there was too much. */
kt_status kt_jinja_overspent(kt_jinja_run *r);
static inline kt_status kt_jinja_spend(kt_jinja_run *r, size_t steps) {
    if (steps > (size_t)(r->limits.steps - r->steps)) return kt_jinja_overspent(r);
    r->steps += (int64_t)steps;
    return KT_OK;
}
kt_status kt_jinja_enter(kt_jinja_run *r); /* one deeper; pair with depth-- after success */

/* ---- jinja_string.c: strings and where their bytes came from ---- */

#define KT_JINJA_LITERAL(s) \
    (&(const kt_jinja_string){.data = (s), .size = sizeof(s) - 1, .all_trusted = true})

void kt_jinja_builder_deinit(kt_jinja_builder *b);
kt_status kt_jinja_put(kt_jinja_run *r, kt_jinja_builder *b, const char *s, size_t n, bool trusted);
/* Bytes [begin, end) of s, with their marks. */
kt_status kt_jinja_put_part(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s,
                            size_t begin, size_t end);
kt_status kt_jinja_put_string(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s);
/* The same with & < > " ' as HTML has them. */
kt_status kt_jinja_put_escaped(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_string *s);
/* What was built as a value; empties the builder. */
kt_status kt_jinja_build(kt_jinja_run *r, kt_jinja_builder *b, bool is_markup, kt_jinja_value *out);
/* A string of bytes that live as long as the rendering. */
kt_status kt_jinja_string_of(kt_jinja_run *r, const char *s, size_t n, bool trusted,
                             kt_jinja_value *out);
kt_status kt_jinja_part(kt_jinja_run *r, const kt_jinja_string *s, size_t begin, size_t end,
                        kt_jinja_value *out);
kt_status kt_jinja_join2(kt_jinja_run *r, const kt_jinja_string *a, const kt_jinja_string *b,
                         kt_jinja_value *out);
bool kt_jinja_trusted_at(const kt_jinja_string *s, size_t at);
bool kt_jinja_same_text(const kt_jinja_string *a, const kt_jinja_string *b);
size_t kt_jinja_char_count(const char *s, size_t n);
/* Offset of character number i <= count. */
size_t kt_jinja_char_offset(const char *s, size_t n, size_t i);
/* First occurrence of what in s[from, size), or SIZE_MAX. */
/* The end of the line at `at`, as Python's splitlines sees it; *next: where the next one begins, the
 * same at the end of the text. */
size_t kt_jinja_line_end(const kt_jinja_string *s, size_t at, size_t *next);
size_t kt_jinja_find(const kt_jinja_string *s, size_t from, const char *what, size_t n);
/* Every `old` replaced, at most `count` of them (negative = all). */
kt_status kt_jinja_replace(kt_jinja_run *r, const kt_jinja_string *s, const kt_jinja_string *old,
                           const kt_jinja_string *with, int64_t count, kt_jinja_value *out);
/* Without the characters of `set` (NULL = white space) at the chosen ends. */
kt_status kt_jinja_strip(kt_jinja_run *r, const kt_jinja_string *s, const kt_jinja_string *set,
                         bool left, bool right, kt_jinja_value *out);

/* ---- jinja_value.c ---- */

kt_jinja_value kt_jinja_none(void);
kt_jinja_value kt_jinja_bool(bool truth);
kt_jinja_value kt_jinja_int(int64_t integer);
kt_jinja_value kt_jinja_undefined(void);
kt_jinja_value kt_jinja_text(const kt_jinja_string *s);
kt_status kt_jinja_missing_variable(kt_jinja_run *r, const char *name, size_t size,
                                    kt_jinja_value *out);
kt_status kt_jinja_missing_member(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                                  size_t size, int64_t index, kt_jinja_value *out);
/* Fail because v, which is undefined, is used. */
kt_status kt_jinja_fail_undefined(const kt_jinja_run *r, const kt_jinja_value *v);
const char *kt_jinja_type_name(const kt_jinja_value *v); /* as Python calls it: "str", "dict" */

kt_status kt_jinja_new_list(kt_jinja_run *r, kt_jinja_flavour flavour, size_t capacity,
                            kt_jinja_value *out);
kt_status kt_jinja_append(kt_jinja_run *r, kt_jinja_list *list, const kt_jinja_value *item);
kt_status kt_jinja_new_dict(kt_jinja_run *r, size_t capacity, kt_jinja_value *out);
kt_status kt_jinja_set(kt_jinja_run *r, kt_jinja_dict *d, const kt_jinja_value *key,
                       const kt_jinja_value *value);
/* NULL when it is not there, or when no dictionary can have such a key. */
kt_jinja_entry *kt_jinja_get(const kt_jinja_dict *d, const kt_jinja_value *key);
kt_jinja_entry *kt_jinja_get_text(const kt_jinja_dict *d, const char *key, size_t size);
/* The same with the key's hash, which is kept where a key is in the template. */
uint64_t kt_jinja_hash(const kt_jinja_string *key);
kt_jinja_entry *kt_jinja_get_hashed(const kt_jinja_dict *d, const kt_jinja_string *key,
                                    uint64_t hash);
void kt_jinja_remove(kt_jinja_dict *d, kt_jinja_entry *entry);
/* Keys, values or pairs as a list of that flavour. */
kt_status kt_jinja_view(kt_jinja_run *r, const kt_jinja_dict *d, kt_jinja_flavour flavour,
                        kt_jinja_value *out);

bool kt_jinja_is_number(const kt_jinja_value *v); /* BOOL, INT, FLOAT */
double kt_jinja_number(const kt_jinja_value *v);
bool kt_jinja_truth(const kt_jinja_value *v);
kt_status kt_jinja_equal(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                         bool *out);
/* -1, 0 or 1; 2 when a number is NaN. `op` is for the message where the types have no order. */
kt_status kt_jinja_compare(kt_jinja_run *r, const kt_jinja_value *a, const kt_jinja_value *b,
                           const char *op, int *out);
kt_status kt_jinja_contains(kt_jinja_run *r, const kt_jinja_value *in, const kt_jinja_value *item,
                            bool *out);
kt_status kt_jinja_length(kt_jinja_run *r, const kt_jinja_value *v, int64_t *out);
/* The items that a loop over v visits, as a list (v's own where it is one). */
kt_status kt_jinja_iterate(kt_jinja_run *r, const kt_jinja_value *v, kt_jinja_list *out);
kt_status kt_jinja_sort(kt_jinja_run *r, kt_jinja_value *keys, kt_jinja_value *items, size_t n,
                        bool reverse);
/* A value of JSON; `depth_key` is the member's name, for what is trusted. */
kt_status kt_jinja_from_json(kt_jinja_run *r, const kt_json *json, bool trusted,
                             kt_jinja_value *out);
enum { KT_JINJA_KEYS_KEPT = 64 };

/* ---- jinja_print.c ---- */

/* What Python's str, repr and json.dumps give. */
kt_status kt_jinja_put_str(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_value *v);
kt_status kt_jinja_put_repr(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_value *v);
kt_status kt_jinja_to_str(kt_jinja_run *r, const kt_jinja_value *v, const kt_jinja_string **out);

typedef struct kt_jinja_json_form {
    bool ensure_ascii, sort_keys;
    const kt_jinja_string *indent;     /* of one level; NULL = one line */
    const kt_jinja_string *item, *key; /* separators */
} kt_jinja_json_form;

kt_status kt_jinja_put_json(kt_jinja_run *r, kt_jinja_builder *b, const kt_jinja_json_form *form,
                            const kt_jinja_value *v);

/* ---- jinja_eval.c, jinja_ops.c, jinja_exec.c ---- */

kt_status kt_jinja_eval(kt_jinja_run *r, const kt_jinja_node *node, kt_jinja_value *out);
/* The value as text into r->out: sums, the text of macros and the like are not made first. */
kt_status kt_jinja_put_value(kt_jinja_run *r, const kt_jinja_node *node);
kt_status kt_jinja_binary(kt_jinja_run *r, int op, const kt_jinja_value *a, const kt_jinja_value *b,
                          kt_jinja_value *out);
kt_status kt_jinja_attribute(kt_jinja_run *r, const kt_jinja_value *of, const char *name,
                             size_t size, kt_jinja_value *out);
kt_status kt_jinja_item(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_value *key,
                        kt_jinja_value *out);
kt_status kt_jinja_slice(kt_jinja_run *r, const kt_jinja_value *of, const kt_jinja_value *from,
                         const kt_jinja_value *to, const kt_jinja_value *step, kt_jinja_value *out);
const kt_jinja_builtin *kt_jinja_method(const kt_jinja_value *of, const char *name, size_t size);
bool kt_jinja_is_dict_method(const char *name, size_t size);
kt_status kt_jinja_call(kt_jinja_run *r, const kt_jinja_value *callee, const kt_jinja_args *args,
                        kt_jinja_value *out);
kt_status kt_jinja_format(kt_jinja_run *r, const kt_jinja_string *format,
                          const kt_jinja_value *values, kt_jinja_value *out);
kt_status kt_jinja_call_macro(kt_jinja_run *r, const kt_jinja_macro *m, const kt_jinja_args *args,
                              kt_jinja_value *out);
/* The same, its text into r->out. */
kt_status kt_jinja_put_macro(kt_jinja_run *r, const kt_jinja_macro *m, const kt_jinja_args *args);
kt_status kt_jinja_call_loop(kt_jinja_run *r, const kt_jinja_loop *loop, const kt_jinja_value *over,
                             kt_jinja_value *out);
kt_status kt_jinja_exec(kt_jinja_run *r, const kt_jinja_node *first); /* a list of statements */
kt_status kt_jinja_define(kt_jinja_run *r, uint32_t symbol, const kt_jinja_value *value);

#endif
