/* Plan cells of the table as what the runtime obeys. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/planner.h"

enum { MAX_TASK_KIB = 1 << 20, MAX_TASKS = 1024, MAX_THREADS = 1024, MAX_SPIN_US = 1000000 };

/* --- choices as text --- */

char *kt_moe_cut_format(const kt_moe_cut *cut, char *out, size_t out_bytes) {
    snprintf(out, out_bytes, "task_kib=%lld,tasks=%d,first=%s", (long long)(cut->task_bytes >> 10),
             cut->tasks_per_thread, cut->is_largest_first ? "rows" : "number");
    return out;
}

/* "name=123" at *text, which moves behind it and a comma. */
static kt_status take_number(const char **text, const char *name, int64_t min, int64_t max,
                             int64_t *out, kt_err *err) {
    const char *all = *text;
    size_t size = strlen(name);
    char *end;

    *out = 0;
    if (strncmp(all, name, size) == 0 && all[size] == '=' && all[size + 1] >= '0' &&
        all[size + 1] <= '9') {
        *out = strtoll(all + size + 1, &end, 10);
        if (*out >= min && *out <= max && (*end == ',' || *end == '\0')) {
            *text = *end ? end + 1 : end;
            return KT_OK;
        }
    }
    return kt_fail(err, KT_E_FORMAT, "'%.60s': expected %s= and a number from %lld to %lld", all,
                   name, (long long)min, (long long)max);
}

kt_status kt_plan_number_parse(const char *text, const char *name, int64_t min, int64_t max,
                               int64_t *out, kt_err *err) {
    const char *rest = text;
    KT_TRY(take_number(&rest, name, min, max, out, err));
    return *rest ? kt_fail(err, KT_E_FORMAT, "'%.60s': '%.40s' is too much", text, rest) : KT_OK;
}

kt_status kt_moe_cut_parse(const char *text, kt_moe_cut *out, kt_err *err) {
    const char *rest = text;
    int64_t kib = 0, tasks = 0;

    KT_TRY(take_number(&rest, "task_kib", 1, MAX_TASK_KIB, &kib, err));
    KT_TRY(take_number(&rest, "tasks", 1, MAX_TASKS, &tasks, err));
    if (strcmp(rest, "first=number") != 0 && strcmp(rest, "first=rows") != 0)
        return kt_fail(err, KT_E_FORMAT, "'%.60s': expected first=number or first=rows", rest);
    *out = (kt_moe_cut){.task_bytes = kib << 10,
                        .tasks_per_thread = (int)tasks,
                        .is_largest_first = strcmp(rest, "first=rows") == 0};
    return KT_OK;
}

/* --- cells --- */

static int is_of(const kt_table_plan *cell, const kt_problem *q, int threads) {
    return cell->row.threads == threads && kt_same_weights(&cell->row.problem, q);
}

/* A gain below 1 % is none; of one that is promised this part must be there. */
static const double least_gain = 0.01, least_realised = 0.8;

double kt_layer_realised(const kt_table_plan *g, double noise) {
    double least = 2 * noise > least_gain ? 2 * noise : least_gain;
    if (g->predicted <= 1 + least) return NAN;
    return log(g->row.default_ns / g->row.time_ns) / log(g->predicted);
}

/* Rows that an expert of such a layer has on average. */
static double rows_of(const kt_table_plan *cell) {
    const kt_problem *q = &cell->row.problem;
    double rows = q->experts > 0 ? (double)(cell->tokens * q->topk) / (double)q->experts : 1;
    return rows > 1 ? rows : 1;
}

int kt_layer_denies(const kt_table *t, const kt_table_row *row) {
    double noise = t->fingerprint.ceilings.aa_noise_p95, nearest = INFINITY;
    int denied = 0, confirmed = 0;

    if (row->problem.op != KT_OP_MOE_FFN || strcmp(row->status, "tuned") != 0) return 0;
    for (size_t i = 0; i < t->n_plans; i++) {
        const kt_table_plan *cell = &t->plans[i];
        double realised = kt_layer_realised(cell, noise), far;
        if (strcmp(cell->cell, "layer_gain") != 0 || !is_of(cell, &row->problem, row->threads) ||
            kt_row_is_undecided(&cell->row))
            continue;
        far = fabs(log(rows_of(cell) / (double)row->problem.m));
        if (far > nearest + 1e-9) continue;
        if (far < nearest - 1e-9) denied = confirmed = 0;
        nearest = far;
        if (isnan(realised)) continue;
        if (realised >= least_realised || strcmp(cell->row.status, "tuned") == 0)
            confirmed++;
        else
            denied++;
    }
    return denied > 0 && confirmed == 0;
}

void kt_planner_trust_rows(kt_planner *p) {
    p->trusts_rows = 1;
}

static kt_status obey_cut(const kt_table_plan *cell, kt_layer_plan *out, kt_err *why) {
    int i = out->cuts.n;

    if (i == KT_MOE_CUTS) return kt_fail(why, KT_E_UNSUPPORTED, "more than %d cuts", KT_MOE_CUTS);
    KT_TRY(kt_moe_cut_parse(cell->row.config, &out->cuts.at[i].cut, why));
    out->cuts.at[i].tokens = cell->tokens;
    out->cuts.at[i].imbalance = cell->imbalance > 0 ? cell->imbalance : 1;
    out->cuts.n++;
    return KT_OK;
}

static kt_status obey_threads(const kt_table_plan *cell, kt_layer_plan *out, kt_err *why) {
    int i = out->n_threads;
    int64_t n = 0;

    if (i == KT_LAYER_TOKENS)
        return kt_fail(why, KT_E_UNSUPPORTED, "more than %d token counts", KT_LAYER_TOKENS);
    KT_TRY(kt_plan_number_parse(cell->row.config, "threads", 1, MAX_THREADS, &n, why));
    out->threads[i].tokens = cell->tokens;
    out->threads[i].threads = (int)n;
    out->n_threads++;
    return KT_OK;
}

static kt_status obey_spin(const kt_table_plan *cell, kt_layer_plan *out, kt_err *why) {
    int64_t us = 0;

    KT_TRY(kt_plan_number_parse(cell->row.config, "spin_us", 0, MAX_SPIN_US, &us, why));
    out->spin_ns = us > 0 ? us * 1000 : -1;
    return KT_OK;
}

void kt_plan_layer(const kt_planner *p, const kt_problem *experts, int threads,
                   kt_layer_plan *out) {
    static const struct {
        const char *cell;
        kt_status (*obey)(const kt_table_plan *cell, kt_layer_plan *out, kt_err *why);
    } kinds[] = {{"moe_layer", obey_cut}, {"threads", obey_threads}, {"spin", obey_spin}};

    memset(out, 0, sizeof *out);
    for (size_t i = 0; p->table && i < p->table->n_plans; i++) {
        const kt_table_plan *cell = &p->table->plans[i];
        if (!is_of(cell, experts, threads)) continue;
        if (kt_row_is_doubtful(&cell->row)) {
            if (out->n_ignored++ == 0)
                snprintf(out->note, sizeof out->note,
                         "%s of %lld tokens is ignored: undecided, its time is known to ±%.0f %%",
                         cell->cell, (long long)cell->tokens,
                         100 * kt_row_half_interval(&cell->row));
            continue;
        }
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            kt_err why = {KT_OK, ""};
            if (strcmp(kinds[k].cell, cell->cell) != 0) continue;
            if (kinds[k].obey(cell, out, &why) == KT_OK) {
                out->n_cells++;
            } else if (out->n_ignored++ == 0) {
                snprintf(out->note, sizeof out->note, "%s of %lld tokens is ignored: %.300s",
                         cell->cell, (long long)cell->tokens, why.message);
            }
        }
    }
}

int kt_layer_plan_threads(const kt_layer_plan *plan, int64_t tokens, int all) {
    double nearest = 0;
    int best = all;

    for (int i = 0; i < plan->n_threads && tokens > 0; i++) {
        double ratio = (double)plan->threads[i].tokens / (double)tokens;
        if (ratio > 1) ratio = 1 / ratio;
        if (ratio <= nearest) continue;
        nearest = ratio;
        best = plan->threads[i].threads;
    }
    return best < all ? best : all;
}
