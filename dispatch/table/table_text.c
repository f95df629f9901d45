/* The table as text: one row a line, a checksum over everything before it.
 *
 * checksum = "kt64:" and 16 hexadecimal digits. h starts at 0xcbf29ce484222325; the text from its
 * first byte up to the quote that opens "checksum" is taken as little-endian 64-bit words (the last
 * one filled with zero bytes), then its length as one more word:
 *     h = (h ^ word) * 0x100000001b3;  h ^= h >> 32
 * Each step is one to one in h and in the word, so a change within one word always shows. It guards
 * against damage and careless edits, not against forgery.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buffer.h"
#include "base/err.h"
#include "dispatch/table/table.h"
#include "dispatch/table/table_rows.h"

static const size_t max_file_bytes = (size_t)64 << 20;
static const char checksum_key[] = "\"checksum\"";

static uint64_t step(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x100000001b3u;
    return h ^ h >> 32;
}

static uint64_t checksum(const char *text, size_t size) {
    uint64_t h = 0xcbf29ce484222325u;
    for (size_t i = 0; i < size; i += 8) {
        unsigned char bytes[8] = {0};
        uint64_t word = 0;
        memcpy(bytes, text + i, size - i < 8 ? size - i : 8);
        for (int j = 7; j >= 0; j--) word = word << 8 | bytes[j];
        h = step(h, word);
    }
    return step(h, size);
}

/* --- writing --- */

/* Fields an operation does not use are zero and left out. */
static void put_optional(kt_json_writer *w, const char *key, int64_t value) {
    if (value) kt_json_add_int(w, key, value);
}

/* [variant, config, ns] */
static void put_timed(kt_json_writer *w, const char *variant, const char *config, double ns) {
    kt_json_begin_array(w);
    kt_json_put_string(w, variant);
    kt_json_put_string(w, config);
    kt_json_put_fixed(w, ns, 1);
    kt_json_end_array(w);
}

/* [bits, variant, version, config, ns] */
static void put_others(kt_json_writer *w, const kt_table_row *row) {
    if (row->n_others == 0) return;
    kt_json_key(w, "others");
    kt_json_begin_array(w);
    for (int i = 0; i < row->n_others; i++) {
        kt_json_begin_array(w);
        kt_json_put_string(w, row->other[i].bits);
        kt_json_put_string(w, row->other[i].variant);
        kt_json_put_int(w, row->other[i].version);
        kt_json_put_string(w, row->other[i].config);
        kt_json_put_fixed(w, row->other[i].time_ns, 1);
        kt_json_end_array(w);
    }
    kt_json_end_array(w);
}

void kt_table_put_row_members(kt_json_writer *w, const kt_table_row *row) {
    const kt_problem *p = &row->problem;

    kt_json_add_string(w, "op", kt_op_name(p->op));
    kt_json_add_string(w, "weights", kt_weight_format_name(p->weights));
    kt_json_add_string(w, "acts", kt_act_format_name(p->acts));
    kt_json_add_int(w, "n", p->n);
    kt_json_add_int(w, "k", p->k);
    put_optional(w, "experts", p->experts);
    put_optional(w, "topk", p->topk);
    put_optional(w, "kv_heads", p->kv_heads);
    put_optional(w, "context", p->context);
    if (p->down != KT_W_NONE) kt_json_add_string(w, "down", kt_weight_format_name(p->down));
    if (p->act != KT_FFN_SWIGLU) kt_json_add_string(w, "act", kt_ffn_act_name(p->act));
    put_optional(w, "v", p->v);
    put_optional(w, "window", p->window);
    kt_json_add_int(w, "threads", row->threads);
    kt_json_add_int(w, "m", p->m);
    kt_json_add_string(w, "variant", row->variant);
    kt_json_add_string(w, "config", row->config);
    kt_json_add_int(w, "version", row->version);
    if (*row->bits) kt_json_add_string(w, "bits", row->bits);
    kt_json_add_fixed(w, "time_ns", row->time_ns, 1);
    kt_json_key(w, "ci");
    kt_json_begin_array(w);
    kt_json_put_fixed(w, row->ci_low, 4);
    kt_json_put_fixed(w, row->ci_high, 4);
    kt_json_end_array(w);
    kt_json_add_int(w, "rounds", row->rounds);
    kt_json_key(w, "default");
    put_timed(w, row->default_variant, row->default_config, row->default_ns);
    kt_json_add_string(w, "status", row->status);
    kt_json_key(w, "runners");
    kt_json_begin_array(w);
    for (int i = 0; i < row->n_runners; i++)
        put_timed(w, row->runner[i].variant, row->runner[i].config, row->runner[i].time_ns);
    kt_json_end_array(w);
    put_others(w, row);
    kt_json_add_double(w, "error", row->error);
}

/* One JSON value on a line of its own: `prefix` value `suffix`. */
typedef void put_fn(kt_json_writer *w, const void *value);

static kt_status print_value(FILE *f, const char *prefix, put_fn *put, const void *value,
                             const char *suffix, kt_err *err) {
    kt_json_writer w = {0};
    const char *text;
    kt_status st = KT_OK;

    put(&w, value);
    text = kt_json_writer_text(&w, NULL);
    if (text)
        fprintf(f, "%s%s%s\n", prefix, text, suffix);
    else
        st = kt_fail(err, KT_E_NOMEM, "table: cannot write %s as JSON (memory, or bad UTF-8)",
                     prefix);
    kt_json_writer_deinit(&w);
    return st;
}

static void put_text_value(kt_json_writer *w, const void *value) {
    kt_json_put_string(w, value);
}
static void put_fingerprint_value(kt_json_writer *w, const void *value) {
    kt_fingerprint_write(value, w);
}
static void put_row_value(kt_json_writer *w, const void *value) {
    kt_json_begin_object(w);
    kt_table_put_row_members(w, value);
    kt_json_end_object(w);
}

static kt_status print_table(FILE *f, const kt_table *t, kt_err *err) {
    fputs("{\n", f);
    KT_TRY(print_value(f, "\"schema\":", put_text_value, KT_TABLE_SCHEMA, ",", err));
    KT_TRY(print_value(f, "\"build\":", put_text_value, t->build, ",", err));
    KT_TRY(print_value(f, "\"workload\":", put_text_value, t->workload, ",", err));
    KT_TRY(print_value(f, "\"created\":", put_text_value, t->created, ",", err));
    if (t->shape_id) fprintf(f, "\"shape\":\"%016" PRIx64 "\",\n", t->shape_id);
    KT_TRY(print_value(f, "\"fingerprint\":", put_fingerprint_value, &t->fingerprint, ",", err));
    fputs("\"rows\":[\n", f);
    for (size_t i = 0; i < t->n_rows; i++)
        KT_TRY(print_value(f, "", put_row_value, &t->rows[i], i + 1 < t->n_rows ? "," : "", err));
    fputs("],\n", f);
    if (t->n_plans) fputs("\"plans\":[\n", f);
    for (size_t i = 0; i < t->n_plans; i++)
        KT_TRY(print_value(f, "", kt_table_put_plan_value, &t->plans[i],
                           i + 1 < t->n_plans ? "," : "\n],", err));
    if (t->n_device_rows) fputs("\"devices\":[\n", f);
    for (size_t i = 0; i < t->n_device_rows; i++)
        KT_TRY(print_value(f, "", kt_table_put_device_value, &t->device_rows[i],
                           i + 1 < t->n_device_rows ? "," : "\n],", err));
    return KT_OK;
}

kt_status kt_table_save(const kt_table *table, const char *path, kt_err *err) {
    char *text = NULL;
    size_t size = 0;
    kt_status st;
    FILE *f = open_memstream(&text, &size);

    if (!f) return kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    st = print_table(f, table, err);
    if (st == KT_OK) {
        fflush(f);
        fprintf(f, "%s:\"kt64:%016" PRIx64 "\"\n}\n", checksum_key, checksum(text, size));
    }
    if (fclose(f) != 0 && st == KT_OK)
        st = kt_fail(err, KT_E_NOMEM, "%s: no memory for the text", path);
    if (st == KT_OK) st = kt_file_write(path, text, size, err);
    free(text);
    return st;
}

/* --- reading --- */

static kt_status copy_text(const char *s, const char *key, const char *where, char *out,
                           size_t out_bytes, kt_err *err) {
    size_t size = strlen(s);
    if (size >= out_bytes)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' has %zu characters, at most %zu are possible",
                       where, key, size, out_bytes - 1);
    memcpy(out, s, size + 1);
    return KT_OK;
}

static kt_status read_text(const kt_json *object, const char *key, const char *where, char *out,
                           size_t out_bytes, kt_err *err) {
    const char *s;
    KT_TRY(kt_json_need_string(object, key, where, &s, err));
    return copy_text(s, key, where, out, out_bytes, err);
}

static kt_status read_name(const kt_json *object, const char *key, int (*parse)(const char *),
                           const char *where, int *out, kt_err *err) {
    const char *s;
    KT_TRY(kt_json_need_string(object, key, where, &s, err));
    *out = parse(s);
    if (*out >= 0) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: '%s' is '%s', which this build does not know", where, key,
                   s);
}

/* The number of a word that may be missing: then 0. */
static kt_status read_optional_name(const kt_json *object, const char *key,
                                    int (*parse)(const char *), const char *where, int *out,
                                    kt_err *err) {
    *out = 0;
    return kt_json_get(object, key) ? read_name(object, key, parse, where, out, err) : KT_OK;
}

static kt_status read_int(const kt_json *object, const char *key, int64_t min, const char *where,
                          int *out, kt_err *err) {
    int64_t v;
    KT_TRY(kt_json_need_int(object, key, min, INT32_MAX, where, &v, err));
    *out = (int)v;
    return KT_OK;
}

static kt_status read_optional(const kt_json *object, const char *key, const char *where,
                               int64_t *out, kt_err *err) {
    *out = 0;
    if (!kt_json_get(object, key)) return KT_OK;
    return kt_json_need_int(object, key, 0, INT64_MAX, where, out, err);
}

static kt_status read_problem(const kt_json *row, const char *where, kt_problem *p, kt_err *err) {
    int op, weights, acts, down, act;

    KT_TRY(read_name(row, "op", kt_op_parse, where, &op, err));
    KT_TRY(read_name(row, "weights", kt_weight_format_parse, where, &weights, err));
    KT_TRY(read_name(row, "acts", kt_act_format_parse, where, &acts, err));
    p->op = (kt_op)op;
    p->weights = (kt_weight_format)weights;
    p->acts = (kt_act_format)acts;
    KT_TRY(kt_json_need_int(row, "m", 1, INT64_MAX, where, &p->m, err));
    KT_TRY(kt_json_need_int(row, "n", 1, INT64_MAX, where, &p->n, err));
    KT_TRY(kt_json_need_int(row, "k", 1, INT64_MAX, where, &p->k, err));
    KT_TRY(read_optional(row, "experts", where, &p->experts, err));
    KT_TRY(read_optional(row, "topk", where, &p->topk, err));
    KT_TRY(read_optional(row, "kv_heads", where, &p->kv_heads, err));
    KT_TRY(read_optional(row, "context", where, &p->context, err));
    KT_TRY(read_optional_name(row, "down", kt_weight_format_parse, where, &down, err));
    KT_TRY(read_optional_name(row, "act", kt_ffn_act_parse, where, &act, err));
    p->down = (kt_weight_format)down;
    p->act = (kt_ffn_act)act;
    KT_TRY(read_optional(row, "v", where, &p->v, err));
    return read_optional(row, "window", where, &p->window, err);
}

static const char *kind_of(const kt_json *v) {
    return v ? kt_json_type_name(kt_json_type_of(v)) : "missing";
}

/* [variant, config, ns] */
static kt_status read_timed(const kt_json *v, const char *key, const char *where, char *variant,
                            size_t variant_bytes, char *config, size_t config_bytes, double *ns,
                            kt_err *err) {
    const char *name = kt_json_string(kt_json_at(v, 0), NULL);
    const char *values = kt_json_string(kt_json_at(v, 1), NULL);

    if (!name || !values || kt_json_type_of(kt_json_at(v, 2)) != KT_JSON_NUMBER)
        return kt_fail(err, KT_E_FORMAT, "%s: '%s' is not [variant, config, ns]", where, key);
    *ns = kt_json_double(kt_json_at(v, 2), 0);
    KT_TRY(copy_text(name, key, where, variant, variant_bytes, err));
    return copy_text(values, key, where, config, config_bytes, err);
}

static kt_status read_runners(const kt_json *runners, const char *where, kt_table_row *row,
                              kt_err *err) {
    size_t n = kt_json_length(runners);

    if (kt_json_type_of(runners) != KT_JSON_ARRAY || n > KT_TABLE_RUNNERS)
        return kt_fail(err, KT_E_FORMAT, "%s: 'runners' is %s of %zu, expected an array of 0 to %d",
                       where, kind_of(runners), n, KT_TABLE_RUNNERS);
    for (size_t i = 0; i < n; i++)
        KT_TRY(read_timed(kt_json_at(runners, i), "runners", where, row->runner[i].variant,
                          sizeof row->runner[i].variant, row->runner[i].config,
                          sizeof row->runner[i].config, &row->runner[i].time_ns, err));
    row->n_runners = (int)n;
    return KT_OK;
}

/* [bits, variant, version, config, ns] each; files of schema 1 have none. */
static kt_status read_others(const kt_json *others, const char *where, kt_table_row *row,
                             kt_err *err) {
    size_t n = kt_json_length(others);

    if (!others) return KT_OK;
    if (kt_json_type_of(others) != KT_JSON_ARRAY || n > KT_TABLE_OTHERS)
        return kt_fail(err, KT_E_FORMAT, "%s: 'others' is %s of %zu, expected an array of 0 to %d",
                       where, kind_of(others), n, KT_TABLE_OTHERS);
    for (size_t i = 0; i < n; i++) {
        const kt_json *o = kt_json_at(others, i);
        const int64_t version = kt_json_int(kt_json_at(o, 2), -1);
        const char *text[3];
        for (size_t k = 0; k < 3; k++) text[k] = kt_json_string(kt_json_at(o, k < 2 ? k : 3), NULL);
        if (kt_json_length(o) != 5 || !text[0] || !text[1] || !text[2] || version < 0 ||
            version > INT32_MAX || kt_json_type_of(kt_json_at(o, 4)) != KT_JSON_NUMBER)
            return kt_fail(err, KT_E_FORMAT,
                           "%s: 'others' is not of [bits, variant, version, config, ns]", where);
        KT_TRY(copy_text(text[0], "others", where, row->other[i].bits, sizeof row->other[i].bits,
                         err));
        KT_TRY(copy_text(text[1], "others", where, row->other[i].variant,
                         sizeof row->other[i].variant, err));
        KT_TRY(copy_text(text[2], "others", where, row->other[i].config,
                         sizeof row->other[i].config, err));
        row->other[i].version = (int32_t)version;
        row->other[i].time_ns = kt_json_double(kt_json_at(o, 4), 0);
    }
    row->n_others = (int)n;
    return KT_OK;
}

static kt_status read_interval(const kt_json *ci, const char *where, kt_table_row *row,
                               kt_err *err) {
    if (kt_json_length(ci) != 2 || kt_json_type_of(kt_json_at(ci, 0)) != KT_JSON_NUMBER ||
        kt_json_type_of(kt_json_at(ci, 1)) != KT_JSON_NUMBER)
        return kt_fail(err, KT_E_FORMAT, "%s: 'ci' is not an array of two numbers", where);
    row->ci_low = kt_json_double(kt_json_at(ci, 0), 0);
    row->ci_high = kt_json_double(kt_json_at(ci, 1), 0);
    return KT_OK;
}

kt_status kt_table_read_row(const kt_json *object, const char *where, kt_table_row *row,
                            kt_err *err) {
    int version;

    memset(row, 0, sizeof *row);
    if (kt_json_type_of(object) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "%s is %s, expected an object", where, kind_of(object));
    KT_TRY(read_problem(object, where, &row->problem, err));
    KT_TRY(read_int(object, "threads", 1, where, &row->threads, err));
    KT_TRY(read_text(object, "variant", where, row->variant, sizeof row->variant, err));
    KT_TRY(read_text(object, "config", where, row->config, sizeof row->config, err));
    KT_TRY(read_int(object, "version", 0, where, &version, err));
    row->version = version;
    if (kt_json_get(object, "bits"))
        KT_TRY(read_text(object, "bits", where, row->bits, sizeof row->bits, err));
    KT_TRY(kt_json_need_double(object, "time_ns", where, &row->time_ns, err));
    KT_TRY(read_interval(kt_json_get(object, "ci"), where, row, err));
    KT_TRY(read_int(object, "rounds", 0, where, &row->rounds, err));
    KT_TRY(read_timed(kt_json_get(object, "default"), "default", where, row->default_variant,
                      sizeof row->default_variant, row->default_config, sizeof row->default_config,
                      &row->default_ns, err));
    KT_TRY(read_text(object, "status", where, row->status, sizeof row->status, err));
    KT_TRY(read_runners(kt_json_get(object, "runners"), where, row, err));
    KT_TRY(read_others(kt_json_get(object, "others"), where, row, err));
    KT_TRY(kt_json_need_double(object, "error", where, &row->error, err));
    if (kt_table_check_row(row, err) == KT_OK) return KT_OK;
    kt_fail_prefix(err, KT_E_FORMAT, "%s", where);
    if (err) err->status = KT_E_FORMAT; /* here it is the file that is wrong, not a caller */
    return KT_E_FORMAT;
}

static int row_order(const void *a, const void *b) {
    const kt_table_row *left = a, *right = b;
    return kt_table_key_order(&left->problem, left->threads, &right->problem, right->threads);
}

/* Files of ours are in order already; one that was merged by hand is put in order here. */
static kt_status sort_rows(kt_table *t, const char *path, kt_err *err) {
    int sorted = 1;

    for (size_t i = 1; i < t->n_rows && sorted; i++)
        sorted = row_order(&t->rows[i - 1], &t->rows[i]) <= 0;
    if (!sorted) qsort(t->rows, t->n_rows, sizeof *t->rows, row_order);
    for (size_t i = 1; i < t->n_rows; i++) {
        const kt_table_row *row = &t->rows[i];
        if (row_order(&t->rows[i - 1], row) == 0)
            return kt_fail(err, KT_E_FORMAT,
                           "%s: two rows for %s %s m=%lld n=%lld k=%lld on %d threads", path,
                           kt_op_name(row->problem.op), kt_weight_format_name(row->problem.weights),
                           (long long)row->problem.m, (long long)row->problem.n,
                           (long long)row->problem.k, row->threads);
    }
    return KT_OK;
}

/* The rows' lines, from the first row to the newline before "],". They are read one by one,
 * those of ours without a document: a fifth of the time of one large one, whose values would be
 * touched once and thrown away. A file that was laid out anew has lost its checksum anyway. */
typedef struct row_lines {
    const char *begin, *end;
    size_t n;
} row_lines;

static const char rows_open[] = "\n\"rows\":[\n", rows_close[] = "],\n";

/* False when the text has no such lines. */
static bool find_rows(const char *text, size_t size, row_lines *out) {
    const char *end = text + size;
    const char *line = memmem(text, size, rows_open, sizeof rows_open - 1);

    if (!line) return false;
    line += sizeof rows_open - 1;
    *out = (row_lines){line, line, 0};
    while ((size_t)(end - line) >= sizeof rows_close - 1) {
        const char *newline = memchr(line, '\n', (size_t)(end - line));
        if (memcmp(line, rows_close, sizeof rows_close - 1) == 0) return true;
        if (!newline) return false;
        out->end = line = newline + 1;
        out->n++;
    }
    return false;
}

static kt_status read_line(const char *line, size_t size, const char *where, kt_table_row *row,
                           kt_err *err) {
    static const kt_json_limits limits = {.max_bytes = 0, .max_depth = 16};
    kt_json_doc *doc = NULL;
    kt_status st = kt_json_parse(line, size, &limits, &doc, err);

    if (st != KT_OK) return kt_fail_prefix(err, st, "%s", where);
    st = kt_table_read_row(kt_json_root(doc), where, row, err);
    kt_json_destroy(doc);
    return st;
}

static kt_status read_rows(const row_lines *lines, const char *path, kt_table *t, kt_err *err) {
    const char *line = lines->begin;
    char where[256];

    KT_TRY(kt_table_reserve(t, lines->n, err));
    for (size_t i = 0; i < lines->n; i++) {
        const char *newline = memchr(line, '\n', (size_t)(lines->end - line));
        size_t size = (size_t)(newline - line);
        bool is_last = i + 1 == lines->n;
        bool has_comma = is_last || (size > 0 && line[--size] == ',');
        if (!has_comma || !kt_table_scan_row(line, size, &t->rows[i])) {
            snprintf(where, sizeof where, "%.200s: row %zu of %zu", path, i + 1, lines->n);
            if (!has_comma) return kt_fail(err, KT_E_FORMAT, "%s does not end with a comma", where);
            KT_TRY(read_line(line, size, where, &t->rows[i], err));
        }
        t->n_rows = i + 1;
        line = newline + 1;
    }
    return sort_rows(t, path, err);
}

/* Files of the first schema lack what came with the second, and mean what they meant. */
static const char first_schema[] = "1.";

/* "major.minor": another major means other meanings, a later minor only more fields. */
static kt_status check_schema(const kt_json *root, const char *path, kt_err *err) {
    const char *schema;
    size_t major = strcspn(KT_TABLE_SCHEMA, ".") + 1;

    KT_TRY(kt_json_need_string(root, "schema", path, &schema, err));
    if (strncmp(schema, KT_TABLE_SCHEMA, major) == 0) return KT_OK;
    if (strncmp(schema, first_schema, strlen(first_schema)) == 0) return KT_OK;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "%s: table schema is %s, this build reads %s; its model has to be tuned anew",
                   path, schema, KT_TABLE_SCHEMA);
}

/* Last occurrence: the key closes the file, and rows cannot hold an unescaped quote. */
static const char *find_checksum(const char *text, size_t size) {
    size_t key = sizeof checksum_key - 1;
    for (const char *at = text + size; at - text >= (ptrdiff_t)key;) {
        at = memrchr(text, checksum_key[0], (size_t)(at - text));
        if (!at) return NULL;
        if ((size_t)(text + size - at) >= key && memcmp(at, checksum_key, key) == 0) return at;
    }
    return NULL;
}

static kt_status check_checksum(const kt_json *root, const char *text, size_t size,
                                const char *path, kt_err *err) {
    const char *stored, *end = find_checksum(text, size);
    char found[32];

    KT_TRY(kt_json_need_string(root, "checksum", path, &stored, err));
    if (!end) return kt_fail(err, KT_E_FORMAT, "%s: 'checksum' is not written plainly", path);
    snprintf(found, sizeof found, "kt64:%016" PRIx64, checksum(text, (size_t)(end - text)));
    if (strcmp(stored, found) == 0) return KT_OK;
    return kt_fail(err, KT_E_MISMATCH,
                   "%s: checksum is %.40s, but the text gives %s: the file was damaged or edited",
                   path, stored, found);
}

/* Tables written before there was one have none. */
static kt_status read_shape(const kt_json *root, const char *path, uint64_t *out, kt_err *err) {
    const char *text;
    char *end;

    if (!kt_json_get(root, "shape")) return KT_OK;
    KT_TRY(kt_json_need_string(root, "shape", path, &text, err));
    *out = strtoull(text, &end, 16);
    if (strlen(text) == 16 && !*end && *out) return KT_OK;
    return kt_fail(err, KT_E_FORMAT, "%s: 'shape' is '%.40s', expected 16 hexadecimal digits", path,
                   text);
}

/* Everything but the rows, which are not in root any more. */
static kt_status read_head(const kt_json *root, const char *text, size_t size, const char *path,
                           kt_table *t, kt_err *err) {
    if (kt_json_type_of(root) != KT_JSON_OBJECT)
        return kt_fail(err, KT_E_FORMAT, "%s: not a table: %s, expected an object", path,
                       kind_of(root));
    KT_TRY(check_schema(root, path, err));
    KT_TRY(check_checksum(root, text, size, path, err));
    KT_TRY(read_text(root, "build", path, t->build, sizeof t->build, err));
    KT_TRY(read_text(root, "workload", path, t->workload, sizeof t->workload, err));
    KT_TRY(read_text(root, "created", path, t->created, sizeof t->created, err));
    KT_TRY(read_shape(root, path, &t->shape_id, err));
    KT_TRY(kt_fingerprint_read(kt_json_get(root, "fingerprint"), path, &t->fingerprint, err));
    if (kt_json_type_of(kt_json_get(root, "rows")) != KT_JSON_ARRAY)
        return kt_fail(err, KT_E_FORMAT, "%s: 'rows' is %s, expected an array", path,
                       kind_of(kt_json_get(root, "rows")));
    if (kt_json_length(kt_json_get(root, "rows")) > 0)
        return kt_fail(err, KT_E_FORMAT, "%s: 'rows' does not hold one row a line", path);
    return KT_OK;
}

static kt_status read_table(const char *text, size_t size, const char *path, kt_table *t,
                            kt_err *err) {
    static const kt_json_limits limits = {.max_bytes = 0, .max_depth = 16};
    row_lines lines = {text, text, 0};
    kt_json_doc *doc = NULL;
    size_t before, after;
    char *head = malloc(size + 1); /* the text without its rows */
    kt_status st;

    if (!head) return kt_fail(err, KT_E_NOMEM, "%s: no memory for %zu bytes", path, size);
    if (!find_rows(text, size, &lines)) lines = (row_lines){text, text, 0};
    before = (size_t)(lines.begin - text);
    after = (size_t)(text + size - lines.end);
    memcpy(head, text, before);
    memcpy(head + before, lines.end, after);
    st = kt_json_parse(head, before + after, &limits, &doc, err);
    if (st != KT_OK) {
        st = kt_fail_prefix(err, st, "%s: not a table", path);
        goto done;
    }
    st = read_head(kt_json_root(doc), text, size, path, t, err);
    if (st == KT_OK) st = read_rows(&lines, path, t, err);
    if (st == KT_OK) st = kt_table_read_plans(kt_json_root(doc), path, t, err);
    if (st == KT_OK) st = kt_table_read_devices(kt_json_root(doc), path, t, err);
done:
    kt_json_destroy(doc);
    free(head);
    return st;
}

kt_status kt_table_load(const char *path, kt_table **out, kt_err *err) {
    kt_table *t = NULL;
    char *text = NULL;
    size_t size = 0;
    kt_status st;

    *out = NULL;
    st = kt_file_read(path, max_file_bytes, &text, &size, err);
    if (st != KT_OK) goto done;
    st = kt_table_create(&t, err);
    if (st != KT_OK) goto done;
    st = read_table(text, size, path, t, err);
    if (st != KT_OK) goto done;
    *out = t;
    t = NULL; /* now the caller's */
done:
    kt_table_destroy(t);
    free(text);
    return st;
}
