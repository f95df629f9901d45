/* The dispatch table: what `kttune` decided for a machine, row by row.
 *
 * Threads: a table is immutable once it is loaded; any number of threads may read it at once.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TABLE_H
#define KT_TABLE_H

#include "kt/api.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct kt_table kt_table;

/* Load and check a table. Errors name the file, the row and the field. */
KT_API kt_status kt_table_load(const char *path, kt_table **out, kt_err *err);
KT_API void kt_table_destroy(kt_table *table);

/* One decision: the problem (words as in `kttune list` and the table's file), and what runs it. As
 * a key the members down to `threads` are set; sizes that an operation does not have are 0. */
typedef struct kt_table_entry {
    size_t size; /* sizeof(kt_table_entry), set by the caller */
    const char *op, *weights, *acts;
    const char *down;    /* format of the down projection; NULL = weights */
    const char *ffn_act; /* NULL = "swiglu" */
    int64_t m, n, k;     /* rows, outputs, inputs */
    int64_t experts, topk, kv_heads, context, value_size, window;
    int32_t threads;
    int32_t rounds;         /* of the race */
    const char *variant;    /* text is the table's */
    const char *config;     /* of the variant: "rows=4,..." */
    const char *status;     /* "tuned", "default", "imported", "undecided" */
    double time_ns;         /* of one call; 0 = not measured */
    double ci_low, ci_high; /* interval of the time, relative to it */
    const char *default_variant;
    double default_ns; /* what would run without the table */
    double error;      /* relative root mean square against the double reference */
} kt_table_entry;

KT_API size_t kt_table_count(const kt_table *table);
/* Row i. KT_E_INVALID past the last one, or when out->size is not set. */
KT_API kt_status kt_table_at(const kt_table *table, size_t i, kt_table_entry *out, kt_err *err);

/* The row that decides for a problem on so many threads: that of key->m, else of the nearest fewer
 * rows, else of the fewest; out->m says which. KT_E_NOT_FOUND when the table knows nothing of this
 * problem, KT_E_INVALID for a word that names nothing. */
KT_API kt_status kt_table_lookup(const kt_table *table, const kt_table_entry *key,
                                 kt_table_entry *out, kt_err *err);

/* Where the table lies that kt_engine_load would take for a model on this machine: its path into
 * out, "" when there is none. KT_E_INVALID when the path is longer than out_bytes - 1. */
KT_API kt_status kt_table_path(const char *model, char *out, size_t out_bytes, kt_err *err);

#ifdef __cplusplus
}
#endif
#endif
