/* Rows in key order: put, find, check. SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/table/table.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/table/table_rows.h"

/* No two neighbours are further apart than a factor of 1.5 up to 1024, so that no tile height of a
 * kernel is skipped; 1, 2, 3 and 4 are what decoding meets. */
const int32_t kt_m_buckets[] = {1,  2,   3,   4,   6,   8,   12,  16,   24,   32,   48,  64,
                                96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096};
const int kt_m_bucket_count = sizeof kt_m_buckets / sizeof *kt_m_buckets;

/* A year. Anything longer, or shorter than the file's resolution, was not measured. */
static const double max_time_ns = 3.2e16, min_time_ns = 0.1;
/* Larger than any model, small enough that products of two, in bytes, stay far from 2^63. */
static const int64_t max_dimension = (int64_t)1 << 28;

kt_status kt_table_create(kt_table **out, kt_err *err) {
    *out = calloc(1, sizeof **out);
    if (!*out) return kt_fail(err, KT_E_NOMEM, "table: no memory");
    return KT_OK;
}

void kt_table_destroy(kt_table *table) {
    if (!table) return;
    free(table->rows);
    free(table->plans);
    free(table->device_rows);
    free(table);
}

kt_weight_format kt_problem_down(const kt_problem *p) {
    return p->down != KT_W_NONE ? p->down : p->weights;
}

/* Only what is not implied has a place of its own in the order: rows of older files keep theirs. */
static int64_t own_down(const kt_problem *p) {
    return p->down == p->weights ? KT_W_NONE : p->down;
}

static int64_t own_v(const kt_problem *p) {
    return p->v == p->k ? 0 : p->v;
}

int kt_table_key_order(const kt_problem *a, int a_threads, const kt_problem *b, int b_threads) {
    const int64_t left[] = {a->op,      a->weights, a->acts,     a->n,       a->k,
                            a->experts, a->topk,    a->kv_heads, a->context, own_down(a),
                            a->act,     own_v(a),   a->window,   a_threads,  a->m};
    const int64_t right[] = {b->op,      b->weights, b->acts,     b->n,       b->k,
                             b->experts, b->topk,    b->kv_heads, b->context, own_down(b),
                             b->act,     own_v(b),   b->window,   b_threads,  b->m};
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i]) return left[i] < right[i] ? -1 : 1;
    return 0;
}

bool kt_same_weights(const kt_problem *a, const kt_problem *b) {
    kt_problem x = *a;
    x.m = b->m;
    return kt_table_key_order(&x, 1, b, 1) == 0;
}

/* Index of the first row that is not before the key. */
static size_t lower_bound(const kt_table *t, const kt_problem *p, int threads) {
    size_t low = 0, high = t->n_rows;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const kt_table_row *row = &t->rows[middle];
        if (kt_table_key_order(&row->problem, row->threads, p, threads) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static int has_key(const kt_table *t, size_t i, const kt_problem *p, int threads) {
    return i < t->n_rows &&
           kt_table_key_order(&t->rows[i].problem, t->rows[i].threads, p, threads) == 0;
}

const kt_table_row *kt_table_find(const kt_table *table, const kt_problem *problem, int threads) {
    size_t i = lower_bound(table, problem, threads);
    return has_key(table, i, problem, threads) ? &table->rows[i] : NULL;
}

/* --- checks --- */

static kt_status check_text(const char *s, size_t size, int may_be_empty, const char *what,
                            kt_err *err) {
    if (!memchr(s, '\0', size))
        return kt_fail(err, KT_E_INVALID, "'%s' has no end within %zu characters", what, size);
    if (!s[0] && !may_be_empty) return kt_fail(err, KT_E_INVALID, "'%s' is empty", what);
    for (; *s; s++)
        if ((unsigned char)*s < ' ' || (unsigned char)*s > '~')
            return kt_fail(err, KT_E_INVALID, "'%s' holds byte 0x%02x, expected printable ASCII",
                           what, (unsigned)(unsigned char)*s);
    return KT_OK;
}

static kt_status check_time(double ns, const char *what, kt_err *err) {
    if (ns >= min_time_ns && ns <= max_time_ns) return KT_OK; /* false for NaN */
    return kt_fail(err, KT_E_INVALID, "'%s' is %g ns, expected %g to %g", what, ns, min_time_ns,
                   max_time_ns);
}

static kt_status check_dimension(int64_t v, int64_t min, const char *what, kt_err *err) {
    if (v >= min && v <= max_dimension) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "'%s' is %lld, expected %lld to %lld", what, (long long)v,
                   (long long)min, (long long)max_dimension);
}

static kt_status check_problem(const kt_problem *p, kt_err *err) {
    if ((unsigned)p->op >= KT_OP_COUNT)
        return kt_fail(err, KT_E_INVALID, "'op' is number %d, which is unknown", (int)p->op);
    if ((unsigned)p->weights >= KT_W_COUNT)
        return kt_fail(err, KT_E_INVALID, "'weights' is number %d, which is unknown",
                       (int)p->weights);
    if ((unsigned)p->acts >= KT_A_COUNT)
        return kt_fail(err, KT_E_INVALID, "'acts' is number %d, which is unknown", (int)p->acts);
    if ((unsigned)p->down >= KT_W_COUNT)
        return kt_fail(err, KT_E_INVALID, "'down' is number %d, which is unknown", (int)p->down);
    if ((unsigned)p->act >= KT_FFN_ACT_COUNT)
        return kt_fail(err, KT_E_INVALID, "'act' is number %d, which is unknown", (int)p->act);
    KT_TRY(check_dimension(p->m, 1, "m", err));
    KT_TRY(check_dimension(p->n, 1, "n", err));
    KT_TRY(check_dimension(p->k, 1, "k", err));
    KT_TRY(check_dimension(p->experts, 0, "experts", err));
    KT_TRY(check_dimension(p->topk, 0, "topk", err));
    KT_TRY(check_dimension(p->kv_heads, 0, "kv_heads", err));
    KT_TRY(check_dimension(p->context, 0, "context", err));
    KT_TRY(check_dimension(p->v, 0, "v", err));
    return check_dimension(p->window, 0, "window", err);
}

static kt_status check_status(const char *status, kt_err *err) {
    static const char *const known[] = {"tuned", "default", "imported"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(status, known[i]) == 0) return KT_OK;
    return kt_fail(err, KT_E_INVALID, "'status' is '%s', expected tuned, default or imported",
                   status);
}

static kt_status check_runners(const kt_table_row *row, kt_err *err) {
    if (row->n_runners < 0 || row->n_runners > KT_TABLE_RUNNERS)
        return kt_fail(err, KT_E_INVALID, "'runners' has %d entries, expected at most %d",
                       row->n_runners, KT_TABLE_RUNNERS);
    for (int i = 0; i < row->n_runners; i++) {
        KT_TRY(
            check_text(row->runner[i].variant, sizeof row->runner[i].variant, 0, "runners", err));
        KT_TRY(check_text(row->runner[i].config, sizeof row->runner[i].config, 1, "runners", err));
        KT_TRY(check_time(row->runner[i].time_ns, "runners", err));
    }
    return KT_OK;
}

/* Of each class one, and none of the row's own. */
static kt_status check_others(const kt_table_row *row, kt_err *err) {
    KT_TRY(check_text(row->bits, sizeof row->bits, 1, "bits", err));
    if (row->n_others < 0 || row->n_others > KT_TABLE_OTHERS)
        return kt_fail(err, KT_E_INVALID, "'others' has %d entries, expected at most %d",
                       row->n_others, KT_TABLE_OTHERS);
    if (row->n_others > 0 && !row->bits[0])
        return kt_fail(err, KT_E_INVALID, "'others' without 'bits', whose others they are");
    for (int i = 0; i < row->n_others; i++) {
        const char *bits = row->other[i].bits;
        KT_TRY(check_text(bits, sizeof row->other[i].bits, 0, "others", err));
        KT_TRY(check_text(row->other[i].variant, sizeof row->other[i].variant, 0, "others", err));
        KT_TRY(check_text(row->other[i].config, sizeof row->other[i].config, 1, "others", err));
        KT_TRY(check_time(row->other[i].time_ns, "others", err));
        if (row->other[i].version < 0)
            return kt_fail(err, KT_E_INVALID, "'others' has version %d, expected at least 0",
                           (int)row->other[i].version);
        for (int j = -1; j < i; j++)
            if (strcmp(bits, j < 0 ? row->bits : row->other[j].bits) == 0)
                return kt_fail(err, KT_E_INVALID, "'others' has bits '%s', which are there already",
                               bits);
    }
    return KT_OK;
}

kt_status kt_table_check_row(const kt_table_row *row, kt_err *err) {
    KT_TRY(check_problem(&row->problem, err));
    if (row->threads < 1 || row->threads > 1 << 16)
        return kt_fail(err, KT_E_INVALID, "'threads' is %d, expected 1 to 65536", row->threads);
    KT_TRY(check_text(row->variant, sizeof row->variant, 0, "variant", err));
    KT_TRY(check_text(row->config, sizeof row->config, 1, "config", err));
    if (row->version < 0 || row->rounds < 0)
        return kt_fail(err, KT_E_INVALID, "'version' is %d and 'rounds' %d, expected at least 0",
                       (int)row->version, row->rounds);
    KT_TRY(check_time(row->time_ns, "time_ns", err));
    if (!isfinite(row->ci_low) || !isfinite(row->ci_high) || row->ci_low > row->ci_high)
        return kt_fail(err, KT_E_INVALID, "'ci' is [%g, %g], expected two ascending numbers",
                       row->ci_low, row->ci_high);
    KT_TRY(check_text(row->default_variant, sizeof row->default_variant, 0, "default", err));
    KT_TRY(check_text(row->default_config, sizeof row->default_config, 1, "default", err));
    KT_TRY(check_time(row->default_ns, "default", err));
    KT_TRY(check_text(row->status, sizeof row->status, 0, "status", err));
    KT_TRY(check_status(row->status, err));
    KT_TRY(check_runners(row, err));
    KT_TRY(check_others(row, err));
    if (!(row->error >= 0) || !isfinite(row->error))
        return kt_fail(err, KT_E_INVALID, "'error' is %g, expected a number >= 0", row->error);
    return KT_OK;
}

/* --- what a row says --- */

double kt_row_half_interval(const kt_table_row *row) {
    return (row->ci_high - row->ci_low) / 2;
}

bool kt_row_is_undecided(const kt_table_row *row) {
    return kt_row_half_interval(row) > KT_ROW_WIDE;
}

const char *kt_row_status(const kt_table_row *row) {
    return kt_row_is_undecided(row) ? "undecided" : row->status;
}

bool kt_row_is_doubtful(const kt_table_row *row) {
    return kt_row_is_undecided(row) && strcmp(row->status, "tuned") == 0 &&
           row->default_ns <= row->time_ns * row->ci_high;
}

/* --- put --- */

static double round_to(double v, double steps_per_unit) {
    return round(v * steps_per_unit) / steps_per_unit;
}

static double round_digits(double v) {
    char text[32];
    snprintf(text, sizeof text, "%.4g", v);
    return strtod(text, NULL);
}

void kt_table_round_row(kt_table_row *row) {
    row->time_ns = round_to(row->time_ns, 10);
    row->default_ns = round_to(row->default_ns, 10);
    row->ci_low = round_to(row->ci_low, 1e4);
    row->ci_high = round_to(row->ci_high, 1e4);
    row->error = round_digits(row->error);
    for (int i = 0; i < row->n_runners; i++)
        row->runner[i].time_ns = round_to(row->runner[i].time_ns, 10);
    for (int i = 0; i < row->n_others; i++)
        row->other[i].time_ns = round_to(row->other[i].time_ns, 10);
}

kt_status kt_table_reserve(kt_table *table, size_t n_rows, kt_err *err) {
    size_t wanted = table->capacity ? table->capacity : 32;
    kt_table_row *rows;

    if (n_rows <= table->capacity) return KT_OK;
    if (n_rows > SIZE_MAX / sizeof *rows / 2)
        return kt_fail(err, KT_E_NOMEM, "table: %zu rows are too many", n_rows);
    while (wanted < n_rows) wanted *= 2;
    rows = realloc(table->rows, wanted * sizeof *rows);
    if (!rows) return kt_fail(err, KT_E_NOMEM, "table: no memory for %zu rows", n_rows);
    table->rows = rows;
    table->capacity = wanted;
    return KT_OK;
}

kt_status kt_table_put(kt_table *table, const kt_table_row *row, kt_err *err) {
    kt_table_row copy = *row;
    size_t at;

    KT_TRY(kt_table_check_row(row, err));
    kt_table_round_row(&copy);
    at = lower_bound(table, &row->problem, row->threads);
    if (!has_key(table, at, &row->problem, row->threads)) {
        KT_TRY(kt_table_reserve(table, table->n_rows + 1, err));
        memmove(&table->rows[at + 1], &table->rows[at], (table->n_rows - at) * sizeof copy);
        table->n_rows++;
    }
    table->rows[at] = copy;
    return KT_OK;
}
