/* Inside of the translation of JSON Schema. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_SCHEMA_IMPL_H
#define KT_RUNTIME_SCHEMA_IMPL_H

#include "runtime/serve/grammar/json_rules.h"
#include "runtime/serve/grammar/schema_rules.h"

/* A schema is handled as a conjunction: the schemas that a value has to obey at once, gathered from
 * $ref, allOf and the branch taken of each anyOf. What a keyword asks for is worked out over all of
 * them. */
enum { KT_SCHEMA_PARTS = 48, KT_SCHEMA_PATH = 200 };

enum { KT_SPLIT_ANY_OF = 1, KT_SPLIT_ONE_OF = 2 }; /* whose branch is another part already */

typedef struct kt_schema_part {
    const kt_json *schema;
    int split;
} kt_schema_part;

typedef struct kt_conjunction {
    kt_schema_part part[KT_SCHEMA_PARTS];
    int n;
} kt_conjunction;

enum {
    KT_TYPE_NULL = 1,
    KT_TYPE_BOOLEAN = 2,
    KT_TYPE_OBJECT = 4,
    KT_TYPE_ARRAY = 8,
    KT_TYPE_FRACTION = 16, /* numbers that are no integers */
    KT_TYPE_INTEGER = 32,
    KT_TYPE_STRING = 64,
    KT_TYPE_NUMBER = KT_TYPE_FRACTION | KT_TYPE_INTEGER,
    KT_TYPE_ANY = 127
};

typedef struct kt_schema_job kt_schema_job; /* a conjunction whose rule has its number */

typedef struct kt_schema {
    kt_json_rules json;
    const kt_json *root;
    kt_schema_job *job;
    size_t n_jobs, job_room;
    uint32_t *table; /* hash of jobs: index + 1 */
    size_t table_size;
    size_t spent;              /* comparisons of values and schemas */
    char path[KT_SCHEMA_PATH]; /* JSON pointer of what is translated, for messages */
    kt_err *err;
} kt_schema;

/* "schema: <path>: ..."; the status is INVALID or UNSUPPORTED. */
kt_status kt_schema_refuse(const kt_schema *s, kt_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Count work that grows with the square of the schema; refused beyond a million. */
kt_status kt_schema_spend(kt_schema *s, size_t comparisons);

/* Add a schema and all that it refers to and joins; what is not supported is refused. */
kt_status kt_schema_add(kt_schema *s, kt_conjunction *c, const kt_json *schema);

/* A call of the rule for c, whose body is written later; path is c's from here ("/items"). */
kt_status kt_schema_call(kt_schema *s, const kt_conjunction *c, const char *path, kt_expr *out);

/* Types that are allowed, as KT_TYPE_*. */
kt_status kt_schema_type_mask(kt_schema *s, const kt_conjunction *c, int *types);
int kt_schema_part_types(
    const kt_json *schema); /* of one part; well-formed, without what it refers to */

/* The text of an object or array that obeys c. */
kt_status kt_schema_object(kt_schema *s, const kt_conjunction *c, kt_expr *out);
kt_status kt_schema_array(kt_schema *s, const kt_conjunction *c, kt_expr *out);

/* A count such as maxItems over all parts: the most of the least, or the least of the most. *out
 * keeps its value where no part has the keyword. */
kt_status kt_schema_count(kt_schema *s, const kt_conjunction *c, const char *keyword, bool is_most,
                          int32_t *out);

/* Can no value obey both? `false` where it is not plain. */
kt_status kt_schema_disjoint(kt_schema *s, const kt_json *a, const kt_json *b, bool *out);

/* Are two values equal, as JSON Schema has it (1 and 1.0 are)? */
bool kt_schema_equal(const kt_json *a, const kt_json *b);

#endif
