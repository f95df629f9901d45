/* Deterministic plans: one class of bits (kt_variant.bits) for every m and any number of threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/planner.h"

void kt_planner_keep_bits(kt_planner *p) {
    p->keeps_bits = 1;
}

bool kt_planner_keeps_bits(const kt_planner *p) {
    return p->keeps_bits;
}

int kt_planner_threads(const kt_planner *p, int threads) {
    return p->keeps_bits ? p->usual_threads : threads;
}

/* Numbers of rows that a class must take: all that a tile or a block may begin at, then the
 * buckets. */
enum { EACH_ROW = 64 };

/* Scores closer than this are equal. */
static const double same_score = 1e-9;

static int takes(const kt_planner *p, const kt_problem *problem, const kt_variant *of, int64_t m) {
    kt_problem q = *problem;

    q.m = m;
    for (size_t i = 0; i < kt_registry_count(p->registry); i++) {
        const kt_variant *v = kt_registry_at(p->registry, i);
        if (kt_variant_same_bits(v, of) && strcmp(kt_layout_of(v), kt_layout_of(of)) == 0 &&
            kt_variant_accepts(v, &q, NULL, NULL) == KT_OK)
            return 1;
    }
    return 0;
}

/* Has v's class, in v's layout, a variant for every number of rows? */
static int takes_every_m(const kt_planner *p, const kt_problem *problem, const kt_variant *v) {
    for (int64_t m = 1; m <= EACH_ROW; m++)
        if (!takes(p, problem, v, m)) return 0;
    for (int b = 0; b < kt_m_bucket_count; b++)
        if (!takes(p, problem, v, kt_m_buckets[b])) return 0;
    return 1;
}

/* Times at the buckets; of a class, of a whole encoding, of several. */
typedef struct times {
    double ns[KT_MAX_CELLS];
} times;

static times times_of(const kt_planner *p, const kt_problem *problem, const kt_cells *cells,
                      const char *layout, const char *bits) {
    times t;
    for (int i = 0; i < kt_m_bucket_count; i++)
        t.ns[i] = kt_map_time(p, problem, p->usual_threads, cells, layout, bits, kt_m_buckets[i]);
    return t;
}

/* Mean over decode buckets and mean over prefill buckets of time relative to the best, weighted by
 * decode_share, as layouts are weighed. */
static double score_of(const times *t, const times *best, double decode_share) {
    double sum[2] = {0, 0};
    int count[2] = {0, 0};

    for (int i = 0; i < kt_m_bucket_count; i++) {
        const int is_decode = kt_m_buckets[i] <= KT_DECODE_ROWS;
        sum[is_decode] += best->ns[i] > 0 ? t->ns[i] / best->ns[i] : 1;
        count[is_decode]++;
    }
    return (1 - decode_share) * sum[0] / count[0] + decode_share * sum[1] / count[1];
}

/* Among the variants that stay for the problem, the one whose class and layout score best. */
static const kt_variant *best_class(const kt_planner *p, const kt_problem *problem,
                                    const kt_cells *cells, const times *reference,
                                    double decode_share, double *best_score) {
    const kt_variant *best = NULL;

    *best_score = INFINITY;
    for (size_t i = 0; i < kt_registry_count(p->registry); i++) {
        const kt_variant *v = kt_registry_at(p->registry, i);
        times t;
        double score;
        if (v->op != problem->op || kt_planner_refuses(p, v) || !takes_every_m(p, problem, v))
            continue;
        t = times_of(p, problem, cells, kt_layout_of(v), v->bits);
        score = score_of(&t, reference, decode_share);
        if (!(score < INFINITY)) continue;
        if (!best || score < *best_score * (1 - same_score) ||
            (score <= *best_score * (1 + same_score) && kt_variant_preferred(v, best))) {
            best = v;
            *best_score = score;
        }
    }
    return best;
}

/* --- the class --- */

/* The best class and the cells it is chosen from. Rows may name no class that takes every m:
 * then those without a table, and *has_rows is 0. */
static kt_status find_class(kt_planner *p, const kt_problem *problem, double decode_share,
                            kt_cells *cells, const kt_variant **best, int *has_rows, kt_err *err) {
    const kt_table *table = p->table;
    kt_status st = KT_OK;
    double score;

    *best = NULL;
    for (int i = 0; i < 2 && st == KT_OK && !*best; i++) {
        p->table = i == 0 ? table : NULL;
        st = kt_cells_gather(p, problem, p->usual_threads, KT_M_DENSE, cells, err);
        if (st == KT_OK) {
            const times any = times_of(p, problem, cells, NULL, NULL);
            *best = best_class(p, problem, cells, &any, decode_share, &score);
            *has_rows = p->table != NULL;
        }
    }
    p->table = table;
    if (st != KT_OK || *best) return st;
    return kt_fail(err, KT_E_UNSUPPORTED,
                   "deterministic: no class of bits has a usable variant of %s with %s weights "
                   "and %s activations, n=%lld k=%lld, for every m; 'kttune list variants' says "
                   "what each one needs",
                   kt_op_name(problem->op), kt_weight_format_name(problem->weights),
                   kt_act_format_name(problem->acts), (long long)problem->n, (long long)problem->k);
}

kt_status kt_bits_choose(kt_planner *p, const kt_problem *problem, double decode_share,
                         const char **bits, kt_err *err) {
    const kt_variant *best;
    kt_cells cells;
    int has_rows;

    *bits = NULL;
    KT_TRY(find_class(p, problem, decode_share, &cells, &best, &has_rows, err));
    *bits = best->bits;
    return KT_OK;
}

/* --- all classes --- */

/* Means over decode and prefill buckets, less one: by how much it takes longer. */
static kt_class_cost cost_of(const kt_planner *p, const kt_problem *problem, const kt_cells *cells,
                             const times *fastest, const kt_variant *v) {
    const times t = times_of(p, problem, cells, kt_layout_of(v), v->bits);
    kt_class_cost c = {.bits = v->bits, .layout = kt_layout_of(v)};

    c.decode = score_of(&t, fastest, 1) - 1;
    c.prefill = score_of(&t, fastest, 0) - 1;
    for (int i = 0; i < cells->n; i++) {
        const kt_cell *cell = &cells->cell[i];
        int is_listed = 0;
        for (int k = 0; k < cell->n; k++)
            is_listed |= kt_variant_same_bits(cell->candidate[k].choice.variant, v);
        c.n_measured += is_listed && cell->source == KT_CELL_EXACT;
    }
    return c;
}

static double whole_cost(const kt_class_cost *c, double decode_share) {
    return decode_share * c->decode + (1 - decode_share) * c->prefill;
}

static int is_in(const kt_class_cost *list, int n, const kt_variant *v) {
    for (int i = 0; i < n; i++)
        if (strcmp(list[i].bits, v->bits) == 0 && strcmp(list[i].layout, kt_layout_of(v)) == 0)
            return 1;
    return 0;
}

/* Behind the first, which was chosen, by what they cost. */
static void insert(kt_class_cost *list, int *n, const kt_class_cost *c, double decode_share) {
    int at = *n;

    while (at > 1 && whole_cost(&list[at - 1], decode_share) > whole_cost(c, decode_share)) at--;
    if (at == KT_MAX_CLASSES) return;
    if (*n < KT_MAX_CLASSES) ++*n;
    memmove(&list[at + 1], &list[at], (size_t)(*n - at - 1) * sizeof *list);
    list[at] = *c;
}

kt_status kt_plan_classes(kt_planner *p, const kt_problem *problem, double decode_share,
                          kt_class_cost out[KT_MAX_CLASSES], int *n, kt_err *err) {
    const int keeps_bits = p->keeps_bits;
    const kt_table *table = p->table;
    const kt_variant *best;
    kt_cells cells, all;
    times fastest;
    kt_status st;
    int has_rows;

    *n = 0;
    p->keeps_bits = 1;
    st = find_class(p, problem, decode_share, &cells, &best, &has_rows, err);
    p->keeps_bits = 0; /* the fastest of any class, and of none */
    if (!has_rows) p->table = NULL;
    if (st == KT_OK) st = kt_cells_gather(p, problem, p->usual_threads, KT_M_DENSE, &all, err);
    if (st == KT_OK) {
        fastest = times_of(p, problem, &all, NULL, NULL);
        out[(*n)++] = cost_of(p, problem, &cells, &fastest, best);
    }
    p->keeps_bits = 1;
    for (size_t i = 0; st == KT_OK && i < kt_registry_count(p->registry); i++) {
        const kt_variant *v = kt_registry_at(p->registry, i);
        kt_class_cost c;
        if (v->op != problem->op || kt_planner_refuses(p, v) || is_in(out, *n, v) ||
            !takes_every_m(p, problem, v))
            continue;
        c = cost_of(p, problem, &cells, &fastest, v);
        if (isfinite(c.decode) && isfinite(c.prefill)) insert(out, n, &c, decode_share);
    }
    p->keeps_bits = keeps_bits;
    p->table = table;
    return st;
}

/* --- the encoding of activations --- */

kt_act_format kt_bits_acts(kt_planner *p, const kt_problem *problem, kt_act_format a,
                           kt_act_format b) {
    const kt_act_format acts[2] = {a, b};
    kt_problem q[2] = {*problem, *problem};
    times any[2], reference;
    double score[2] = {INFINITY, INFINITY};
    kt_cells cells[2];

    for (int i = 0; i < 2; i++) {
        q[i].acts = acts[i];
        if (kt_cells_gather(p, &q[i], p->usual_threads, KT_M_DENSE, &cells[i], NULL) != KT_OK)
            return acts[1 - i];
        any[i] = times_of(p, &q[i], &cells[i], NULL, NULL);
    }
    for (int m = 0; m < kt_m_bucket_count; m++) reference.ns[m] = fmin(any[0].ns[m], any[1].ns[m]);
    for (int i = 0; i < 2; i++)
        best_class(p, &q[i], &cells[i], &reference, KT_DECODE_SHARE, &score[i]);
    return score[0] < score[1] * (1 - same_score) ? a : b;
}
