/* The planner: which rows of the table count, and the answers.
 * SPDX-License-Identifier: Apache-2.0 */
#include "dispatch/plan/plan.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/model/resolve.h"
#include "dispatch/plan/planner.h"

/* Append to a text of fixed size; what does not fit is cut. */
static void append(char *text, size_t bytes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void append(char *text, size_t bytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

/* --- creation --- */

/* The workload's name is put in a command that people copy: only if it is a model's. */
static void make_command(const kt_table *table, char *out, size_t bytes) {
    const unsigned kinds = 1u << KT_MODEL_FOLDER | 1u << KT_MODEL_WORKLOAD;
    const char *name = "NAME";
    kt_model_ref ref;

    if (table && table->workload[0] && !strchr(table->workload, '/') &&
        kt_model_resolve(table->workload, kinds, &ref, NULL) == KT_OK &&
        strcmp(ref.name, table->workload) == 0)
        name = ref.name;
    snprintf(out, bytes, "kttune run --model %s", name);
}

static const char *why_absent(const kt_registry *registry, const char *name) {
    const char *reason = NULL;

    for (size_t i = 0; i < kt_registry_refused_count(registry); i++)
        if (strcmp(kt_registry_refused_at(registry, i, &reason)->name, name) == 0) return reason;
    for (size_t i = 0; i < kt_builtin_absent_count; i++)
        if (strcmp(kt_builtin_absent[i].name, name) == 0) return kt_builtin_absent[i].reason;
    return "unknown to this build";
}

/* The choice a row stands for, or the reason why it cannot be used. */
static kt_status resolve_row(const kt_registry *registry, const kt_table_row *row, kt_choice *out,
                             kt_err *why) {
    const kt_variant *v = kt_registry_find(registry, row->variant);
    kt_choice c = {v, {{0}}};

    if (!v)
        return kt_fail(why, KT_E_NOT_FOUND, "variant '%s': %s", row->variant,
                       why_absent(registry, row->variant));
    if (v->version != row->version)
        return kt_fail(why, KT_E_MISMATCH,
                       "variant '%s' was tuned at version %d, this build has %d", row->variant,
                       (int)row->version, (int)v->version);
    if (*row->bits && strcmp(row->bits, v->bits ? v->bits : KT_BITS_UNSTABLE) != 0)
        return kt_fail(why, KT_E_MISMATCH,
                       "variant '%s' had bits '%s' when it was tuned, this build has '%s'",
                       row->variant, row->bits, v->bits ? v->bits : KT_BITS_UNSTABLE);
    KT_TRY(kt_config_parse(v, row->config, &c.config, why));
    KT_TRY(kt_variant_accepts(v, &row->problem, &c.config, why));
    *out = c;
    return KT_OK;
}

static void resolve_rows(kt_planner *p) {
    size_t ignored = 0;
    char first[KT_ERR_SIZE] = "";

    for (size_t i = 0; i < p->table->n_rows; i++) {
        const kt_table_row *row = &p->table->rows[i];
        kt_err why = {KT_OK, ""};
        if (resolve_row(p->registry, row, &p->row_choice[i], &why) == KT_OK) continue;
        if (ignored++ == 0)
            append(first, sizeof first, "row %s %s %s n=%lld k=%lld m=%lld threads=%d: %.200s",
                   kt_op_name(row->problem.op), kt_weight_format_name(row->problem.weights),
                   kt_act_format_name(row->problem.acts), (long long)row->problem.n,
                   (long long)row->problem.k, (long long)row->problem.m, row->threads, why.message);
    }
    if (ignored)
        append(p->trouble, sizeof p->trouble, "%s%zu of %zu rows are ignored (%s)",
               p->trouble[0] ? "; " : "", ignored, p->table->n_rows, first);
}

/* Decide what the table is worth here; the rest of the planner reads p->table. */
static kt_status judge_table(kt_planner *p, const kt_table *table, const kt_fingerprint *machine,
                             kt_err *err) {
    kt_err why = {KT_OK, ""};
    kt_match match;

    if (!table) {
        append(p->trouble, sizeof p->trouble,
               "no dispatch table: every kernel is chosen by an estimate");
        return KT_OK;
    }
    match = kt_fingerprint_compare(&table->fingerprint, machine, &why);
    if (match == KT_MATCH_OTHER) {
        append(p->trouble, sizeof p->trouble,
               "the dispatch table is another machine's (%.300s): its %zu rows are not used",
               why.message, table->n_rows);
        return KT_OK;
    }
    if (match == KT_MATCH_SOFT)
        append(p->trouble, sizeof p->trouble, "the dispatch table may be stale (%.200s)",
               why.message);
    p->row_choice = calloc(table->n_rows + 1, sizeof *p->row_choice);
    if (!p->row_choice) return kt_fail(err, KT_E_NOMEM, "plan: no memory for the rows");
    p->table = table;
    if (table->fingerprint.usable_cores > 0) p->usual_threads = table->fingerprint.usable_cores;
    /* A machine that was not probed now has the table's ceilings: it is the same machine. */
    if (p->ceilings.stream_gbs_1t <= 0) p->ceilings = table->fingerprint.ceilings;
    resolve_rows(p);
    return KT_OK;
}

kt_status kt_planner_create(const kt_registry *registry, const kt_table *table,
                            const kt_fingerprint *machine, const kt_log *log, kt_planner **out,
                            kt_err *err) {
    return kt_planner_create_for(registry, table, machine, NULL, log, out, err);
}

kt_status kt_planner_create_for(const kt_registry *registry, const kt_table *table,
                                const kt_fingerprint *machine, const char *tune_command,
                                const kt_log *log, kt_planner **out, kt_err *err) {
    kt_planner *p = calloc(1, sizeof *p);
    kt_status st;

    *out = NULL;
    if (!p) return kt_fail(err, KT_E_NOMEM, "plan: no memory");
    p->registry = registry;
    p->ceilings = machine->ceilings;
    p->usual_threads = machine->usable_cores > 0 ? machine->usable_cores : 1;
    memcpy(p->microarch, machine->microarch, sizeof p->microarch);
    if (log) p->log = *log;
    if (tune_command)
        snprintf(p->command, sizeof p->command, "%s", tune_command);
    else
        make_command(table, p->command, sizeof p->command);
    st = judge_table(p, table, machine, err);
    kt_ceilings_default(&p->ceilings, p->microarch);
    if (st != KT_OK) {
        kt_planner_destroy(p);
        return st;
    }
    if (p->trouble[0]) {
        kt_log_write(&p->log, KT_LOG_WARN, "plan", "%s; to tune: %s", p->trouble, p->command);
        p->has_warned = 1;
    }
    *out = p;
    return KT_OK;
}

void kt_planner_destroy(kt_planner *p) {
    if (!p) return;
    free(p->row_choice);
    free(p);
}

kt_plan_totals kt_planner_totals(const kt_planner *p) {
    return p->totals;
}

/* --- answers --- */

static void explain(kt_planner *p, const kt_problem *problem, int threads, const kt_cells *cells,
                    kt_plan_source *source) {
    size_t bytes = sizeof source->note;
    const kt_table_row *near = cells->nearest;

    if (cells->untuned == 0) return;
    append(source->note, bytes,
           "%s %s %s n=%lld k=%lld threads=%d: %d of %d m buckets have no row, ",
           kt_op_name(problem->op), kt_weight_format_name(problem->weights),
           kt_act_format_name(problem->acts), (long long)problem->n, (long long)problem->k, threads,
           cells->untuned, cells->untuned + cells->tuned);
    if (near)
        append(source->note, bytes, "answered by n=%lld k=%lld threads=%d",
               (long long)near->problem.n, (long long)near->problem.k, near->threads);
    else
        append(source->note, bytes, "%s",
               cells->tuned ? "answered by their neighbours" : "answered by the roofline");
    if (p->trouble[0]) append(source->note, bytes, "; %s", p->trouble);
    append(source->note, bytes, "; to tune: %s", p->command); /* last: people copy it */
    if (cells->guessed && !p->has_warned) {
        kt_log_write(&p->log, KT_LOG_WARN, "plan", "%s", source->note);
        p->has_warned = 1;
    } else {
        kt_log_write(&p->log, KT_LOG_DEBUG, "plan", "%s", source->note);
    }
}

/* Cells, layout and map of one class of bits; without one, of all variants. */
static kt_status resolve_with(kt_planner *p, const char *bits, const kt_problem *problem,
                              int threads, int64_t max_m, double decode_share, kt_cells *cells,
                              kt_choice_map *map, const char **layout, kt_err *err) {
    kt_status st;

    p->bits = bits;
    st = kt_cells_gather(p, problem, threads, max_m, cells, err);
    if (st == KT_OK)
        st = kt_map_build(p, problem, threads, max_m, decode_share, cells, map, layout, err);
    p->bits = NULL;
    return st;
}

static void tell_times(const kt_planner *p, const kt_problem *problem, int threads,
                       const kt_cells *cells, const char *bits, kt_plan_source *source) {
    for (int i = 0; i < KT_PLAN_TIMES; i++) {
        const double ns =
            kt_map_time(p, problem, threads, cells, source->layout, bits, (int64_t)1 << i);
        source->time_ns[i] = isfinite(ns) ? ns : 0;
    }
}

kt_status kt_plan_resolve(kt_planner *p, const kt_problem *problem, int threads, int64_t max_m,
                          double decode_share, kt_choice_map *out, kt_plan_source *source,
                          kt_err *err) {
    kt_cells cells;
    kt_choice_map map;
    const char *layout, *bits = NULL;

    if (threads < 1) threads = 1;
    if (max_m < 1) max_m = 1;
    if (!(decode_share >= 0)) decode_share = 0; /* NaN too */
    if (decode_share > 1) decode_share = 1;
    if (p->keeps_bits) KT_TRY(kt_bits_choose(p, problem, decode_share, &bits, err));
    KT_TRY(
        resolve_with(p, bits, problem, threads, max_m, decode_share, &cells, &map, &layout, err));
    *out = map;
    p->totals.tuned += cells.tuned;
    p->totals.between += cells.between;
    p->totals.estimated += cells.untuned - cells.between;
    if (source) {
        memset(source, 0, sizeof *source);
        source->tuned_cells = cells.tuned;
        source->untuned_cells = cells.untuned;
        snprintf(source->layout, sizeof source->layout, "%s", layout);
        snprintf(source->bits, sizeof source->bits, "%s", bits ? bits : "");
        tell_times(p, problem, threads, &cells, bits, source);
        explain(p, problem, threads, &cells, source);
    } else {
        kt_plan_source unread = {0};
        explain(p, problem, threads, &cells, &unread);
    }
    return KT_OK;
}

/* A usable row of the same op and formats. */
static bool is_like(const kt_planner *p, size_t row, const kt_problem *q) {
    const kt_problem *have = &p->table->rows[row].problem;
    const kt_variant *v = p->row_choice[row].variant;

    return v && have->op == q->op && have->weights == q->weights && have->acts == q->acts &&
           !kt_planner_refuses(p, v);
}

bool kt_planner_has_rows(const kt_planner *p, const kt_problem *problem) {
    for (size_t i = 0; p->table && i < p->table->n_rows; i++)
        if (is_like(p, i, problem)) return true;
    return false;
}

kt_status kt_plan_resolve_simple(kt_planner *p, const kt_problem *problem, int threads,
                                 kt_choice *out, kt_err *err) {
    kt_problem q = *problem;
    double best = INFINITY;
    kt_choice found = {NULL, {{0}}};
    kt_cell cell;

    threads = kt_planner_threads(p, threads);
    if (q.m < 1 || p->keeps_bits) q.m = 1; /* one answer for any number of rows */
    for (size_t i = 0; p->table && i < p->table->n_rows; i++) {
        const kt_problem *have = &p->table->rows[i].problem;
        const kt_choice *c = &p->row_choice[i];
        double d;
        if (!is_like(p, i, &q)) continue;
        d = kt_log_ratio(have->m, q.m) + kt_log_ratio(have->n, q.n) + kt_log_ratio(have->k, q.k) +
            kt_log_ratio(have->kv_heads, q.kv_heads) + kt_log_ratio(have->v, q.v) +
            (p->keeps_bits ? 0 : kt_log_ratio(have->context, q.context)) +
            kt_log_ratio(p->table->rows[i].threads, threads);
        if (d >= best || kt_variant_accepts(c->variant, &q, &c->config, NULL) != KT_OK) continue;
        best = d;
        found = *c;
    }
    if (!found.variant) {
        kt_cell_by_roofline(p, &q, threads, NULL, &cell);
        if (cell.n == 0)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "no usable variant runs %s with n=%lld k=%lld; 'kttune list variants' "
                           "says what each one needs",
                           kt_op_name(q.op), (long long)q.n, (long long)q.k);
        found = cell.candidate[0].choice;
    }
    *out = found;
    return KT_OK;
}
