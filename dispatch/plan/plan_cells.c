/* What is known about each m bucket: rows of the table, else the nearest shape, else the roofline.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/planner.h"

/* A winner found with this many rows per call runs full tiles and is kept for every larger m. A
 * table that ends earlier says nothing about large m: there the fallback chain answers. */
static const int64_t full_tile_rows = 16;

/* From here on kernels are bound by compute and times grow evenly: buckets between rows lose
 * nothing by interpolation, and the tuner's quick profile leaves them out on purpose. */
static const int64_t even_rows = 64;

/* Times closer than this are equal to an estimate. */
static const double same_time = 1e-6;

/* What a bound by bytes and operations does not see: scales. From about this many rows on, weights
 * that are rounded once more to share their scales gain what they cost (Zen 4: INT4 3 % at 64 rows,
 * 8 % at 128; Q4_K 12 % at 32, 19 % at 64); with fewer, and where times are known, nothing is
 * assumed. What rounds once more then goes before what is exact and expected to take as long; how
 * vectors compare with tiles is not for this to say. */
static const int64_t requant_rows = 64;
static const double requant_time = 0.999;

static int is_library(const kt_variant *v) {
    size_t size = strlen(v->name);
    return size >= 5 && strcmp(v->name + size - 5, "__lib") == 0;
}

static int rounds_once_more(const kt_variant *v) {
    return v->numerics == KT_NUM_REQUANT || v->numerics == KT_NUM_ACTS8 ||
           v->numerics == KT_NUM_OPENED;
}

int kt_variant_preferred(const kt_variant *a, const kt_variant *b) {
    int a_rounds = rounds_once_more(a), b_rounds = rounds_once_more(b);

    if (a_rounds != b_rounds) return b_rounds;
    if (is_library(a) != is_library(b)) return is_library(b);
    if (a->isa != b->isa) return a->isa > b->isa; /* steps are numbered by width */
    return a->rank > b->rank;
}

static int comes_before(const kt_candidate *a, const kt_candidate *b) {
    double larger = a->time_ns > b->time_ns ? a->time_ns : b->time_ns;
    if (fabs(a->time_ns - b->time_ns) > same_time * larger) return a->time_ns < b->time_ns;
    return kt_variant_preferred(a->choice.variant, b->choice.variant);
}

/* Insert in order; the slowest falls out of a full cell. */
static void cell_add(kt_cell *cell, const kt_candidate *c) {
    int at = cell->n;

    while (at > 0 && comes_before(c, &cell->candidate[at - 1])) at--;
    if (at == KT_CELL_CANDIDATES) return;
    if (cell->n < KT_CELL_CANDIDATES) cell->n++;
    memmove(&cell->candidate[at + 1], &cell->candidate[at], (size_t)(cell->n - at - 1) * sizeof *c);
    cell->candidate[at] = *c;
}

static int cell_has(const kt_cell *cell, const kt_choice *c) {
    for (int i = 0; i < cell->n; i++) {
        const kt_choice *have = &cell->candidate[i].choice;
        if (have->variant == c->variant && memcmp(&have->config, &c->config, sizeof c->config) == 0)
            return 1;
    }
    return 0;
}

/* --- roofline --- */

/* The candidate that v competes with: of its layout and, where bits are kept, of its class. */
static int slot_of(const kt_planner *p, const kt_cell *cell, const kt_variant *v) {
    int i = 0;

    for (; i < cell->n; i++) {
        const kt_variant *u = cell->candidate[i].choice.variant;
        if (strcmp(kt_layout_of(u), kt_layout_of(v)) == 0 &&
            (!p->keeps_bits || kt_variant_same_bits(u, v)))
            break;
    }
    return i;
}

/* The variants with a rank, or those without one. */
static void add_by_roofline(const kt_planner *p, const kt_problem *problem, int threads,
                            const char *layout, bool is_proven, kt_cell *out) {
    for (size_t i = 0; i < kt_registry_count(p->registry); i++) {
        const kt_variant *v = kt_registry_at(p->registry, i);
        kt_candidate c = {{v, {{0}}}, 0};
        int slot;

        if (v->op != problem->op || (v->rank > 0) != is_proven) continue;
        if (layout && strcmp(layout, kt_layout_of(v)) != 0) continue;
        if (kt_planner_refuses(p, v)) continue;
        c.choice.config = kt_config_default(v, p->microarch, problem->m);
        if (kt_variant_accepts(v, problem, &c.choice.config, NULL) != KT_OK) continue;
        c.time_ns = kt_cost_expected_ns(problem, v, &p->ceilings, threads);
        if (v->numerics == KT_NUM_REQUANT && problem->m >= requant_rows) c.time_ns *= requant_time;
        slot = slot_of(p, out, v);
        if (slot < out->n) {
            if (!comes_before(&c, &out->candidate[slot])) continue;
            memmove(&out->candidate[slot], &out->candidate[slot + 1],
                    (size_t)(out->n - slot - 1) * sizeof c);
            out->n--;
        }
        cell_add(out, &c);
    }
}

void kt_cell_by_roofline(const kt_planner *p, const kt_problem *problem, int threads,
                         const char *layout, kt_cell *out) {
    out->m = problem->m;
    out->source = KT_CELL_ROOFLINE;
    out->n = 0;
    add_by_roofline(p, problem, threads, layout, true, out);
    if (out->n == 0) add_by_roofline(p, problem, threads, layout, false, out);
}

/* --- rows --- */

/* What a row knows beside its winner. */
typedef struct entry {
    const char *variant, *config;
    double time_ns;
} entry;

static void add_entry(const kt_planner *p, const kt_problem *problem, entry e, double least_ns,
                      double scale, kt_cell *out) {
    kt_candidate c = {{kt_registry_find(p->registry, e.variant), {{0}}}, 0};

    /* The winner was decided by a holdout race: no other entry of its row overtakes it. */
    c.time_ns = (e.time_ns > least_ns ? e.time_ns : least_ns * (1 + 2 * same_time)) * scale;
    if (!c.choice.variant || kt_planner_refuses(p, c.choice.variant) ||
        kt_config_parse(c.choice.variant, e.config, &c.choice.config, NULL) != KT_OK ||
        kt_variant_accepts(c.choice.variant, problem, &c.choice.config, NULL) != KT_OK ||
        cell_has(out, &c.choice))
        return;
    cell_add(out, &c);
}

/* Is the best of another class still what was measured, in version and class? */
static bool is_current(const kt_planner *p, const kt_table_row *row, int i) {
    const kt_variant *v = kt_registry_find(p->registry, row->other[i].variant);
    return v && v->version == row->other[i].version && v->bits &&
           strcmp(v->bits, row->other[i].bits) == 0;
}

/* Fill the cell from a row, times multiplied by `scale`. Empty when the row's winner cannot run
 * this problem here: runners-up alone would not be what the row stands for. Where bits are kept the
 * best of the other classes count too; without, they would only lose to the winner. */
static void cell_from_row(const kt_planner *p, size_t row_id, const kt_problem *problem,
                          double scale, kt_cell *out) {
    const kt_table_row *row = &p->table->rows[row_id];
    kt_candidate c = {p->row_choice[row_id], row->time_ns * scale};
    double least_ns = row->time_ns;
    kt_choice standard = {0};

    if (((!p->trusts_rows && kt_layer_denies(p->table, row)) || kt_row_is_doubtful(row)) &&
        (standard.variant = kt_registry_find(p->registry, row->default_variant)) &&
        kt_config_parse(standard.variant, row->default_config, &standard.config, NULL) == KT_OK) {
        least_ns = row->default_ns;
        c = (kt_candidate){standard, least_ns * scale};
    }
    out->m = problem->m;
    out->n = 0;
    if (!c.choice.variant ||
        kt_variant_accepts(c.choice.variant, problem, &c.choice.config, NULL) != KT_OK)
        return;
    if (!kt_planner_refuses(p, c.choice.variant)) cell_add(out, &c);
    for (int i = 0; i < row->n_runners; i++)
        add_entry(p, problem,
                  (entry){row->runner[i].variant, row->runner[i].config, row->runner[i].time_ns},
                  least_ns, scale, out);
    add_entry(p, problem, (entry){row->default_variant, row->default_config, row->default_ns},
              least_ns, scale, out);
    for (int i = 0; p->keeps_bits && i < row->n_others; i++)
        if (is_current(p, row, i))
            add_entry(p, problem,
                      (entry){row->other[i].variant, row->other[i].config, row->other[i].time_ns},
                      least_ns, scale, out);
}

static int64_t value_size(const kt_problem *p) {
    return p->v > 0 ? p->v : p->k;
}

/* Distance between two shapes of the same op and formats; thread counts count like a dimension. */
static double distance(const kt_problem *a, int a_threads, const kt_problem *b, int b_threads) {
    return kt_log_ratio(a->n, b->n) + kt_log_ratio(a->k, b->k) +
           kt_log_ratio(a_threads, b_threads) +
           0.25 * (kt_log_ratio(a->experts, b->experts) + kt_log_ratio(a->topk, b->topk) +
                   kt_log_ratio(a->kv_heads, b->kv_heads) + kt_log_ratio(a->context, b->context) +
                   kt_log_ratio(value_size(a), value_size(b)) +
                   kt_log_ratio(kt_problem_keys(a), kt_problem_keys(b)) + (a->act != b->act));
}

/* The cell of the nearest shape that has a row for this m and whose winner runs our problem. */
static const kt_table_row *cell_from_nearest(const kt_planner *p, const kt_problem *problem,
                                             int threads, kt_cell *out) {
    const kt_table_row *best = NULL;
    double best_distance = INFINITY;

    out->n = 0;
    for (size_t i = 0; p->table && i < p->table->n_rows; i++) {
        const kt_table_row *row = &p->table->rows[i];
        const kt_problem *q = &row->problem;
        const kt_variant *v = p->row_choice[i].variant;
        double d, ours, theirs;
        kt_cell cell;

        if (!v || q->op != problem->op || q->weights != problem->weights ||
            kt_problem_down(q) != kt_problem_down(problem) || q->acts != problem->acts ||
            q->m != problem->m)
            continue;
        d = distance(problem, threads, q, row->threads);
        if (d >= best_distance) continue;
        ours = kt_cost_ns(problem, v, &p->ceilings, threads);
        theirs = kt_cost_ns(q, v, &p->ceilings, row->threads);
        cell.source = KT_CELL_NEAR;
        cell_from_row(p, i, problem, theirs > 0 ? ours / theirs : 1, &cell);
        if (cell.n == 0) continue;
        best = row;
        best_distance = d;
        *out = cell;
    }
    return best;
}

static int cell_from_table(const kt_planner *p, const kt_problem *problem, int threads,
                           kt_cell *out) {
    const kt_table_row *row = p->table ? kt_table_find(p->table, problem, threads) : NULL;

    out->n = 0;
    out->source = KT_CELL_EXACT;
    if (row) cell_from_row(p, (size_t)(row - p->table->rows), problem, 1, out);
    return out->n > 0;
}

/* The first and the last bucket that have a row, both -1 without any, and one that has none. */
typedef struct range {
    int first, last, at;
} range;

/* What answers for a bucket without a row: nothing, a sister's row, the nearest shape's or the
 * roofline. */
static kt_status guess_cell(const kt_planner *p, const kt_problem *q, int threads, range rows,
                            kt_cells *out, kt_err *err) {
    const bool has_rows = rows.first >= 0;
    const bool is_inside = has_rows && rows.at > rows.first && rows.at < rows.last;
    const bool is_above =
        has_rows && rows.at > rows.last && kt_m_buckets[rows.last] >= full_tile_rows;
    kt_cell *cell = &out->cell[out->n];
    const kt_table_row *near = cell_from_nearest(p, q, threads, cell);
    const bool is_sister = near && near->threads == threads;

    if (is_inside || is_above) {
        out->between++;
        out->guessed += q->m <= even_rows;
    }
    /* Inside, a sister that knows this very m tells more than the neighbours' m (kttune selfcheck:
     * 0.4 % regret against 1.3), on as many threads; above, the last winner is kept. A matrix that
     * serving asks for few rows of is tuned for these; its sisters know the others. */
    if (is_sister && has_rows && !is_above) {
        out->n++;
        return KT_OK;
    }
    if (is_inside || is_above) return KT_OK;
    if (near)
        out->nearest = near;
    else
        kt_cell_by_roofline(p, q, threads, NULL, cell);
    if (cell->n == 0)
        return kt_fail(err, KT_E_UNSUPPORTED,
                       "no usable variant runs %s with %s weights and %s activations, n=%lld "
                       "k=%lld m=%lld; 'kttune list variants' says what each one needs",
                       kt_op_name(q->op), kt_weight_format_name(q->weights),
                       kt_act_format_name(q->acts), (long long)q->n, (long long)q->k,
                       (long long)q->m);
    out->guessed++;
    out->n++;
    return KT_OK;
}

kt_status kt_cells_gather(const kt_planner *p, const kt_problem *problem, int threads,
                          int64_t max_m, kt_cells *out, kt_err *err) {
    kt_cell exact[KT_MAX_CELLS];
    int buckets = 0, first = -1, last = -1;

    memset(out, 0, sizeof *out);
    while (buckets < kt_m_bucket_count && (buckets == 0 || kt_m_buckets[buckets - 1] < max_m)) {
        kt_problem q = *problem;
        q.m = kt_m_buckets[buckets];
        if (cell_from_table(p, &q, threads, &exact[buckets])) {
            if (first < 0) first = buckets;
            last = buckets;
            out->tuned++;
        }
        buckets++;
    }
    out->untuned = buckets - out->tuned;
    for (int b = 0; b < buckets; b++) {
        const range rows = {.first = first, .last = last, .at = b};
        kt_problem q = *problem;

        q.m = kt_m_buckets[b];
        if (exact[b].n > 0)
            out->cell[out->n++] = exact[b];
        else
            KT_TRY(guess_cell(p, &q, threads, rows, out, err));
    }
    return KT_OK;
}
