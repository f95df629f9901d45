/* Deterministic plans: one class of bits (kt_variant.bits) for every m and any number of threads.
 * SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/plan/planner.h"

void kt_planner_keep_bits(kt_planner *p) {
    p->keeps_bits = 1;
}

int kt_planner_threads(const kt_planner *p, int threads) {
    return p->keeps_bits ? p->usual_threads : threads;
}

/* Numbers of rows that a class must take: all that a tile or a block may begin at, then the buckets. */
enum { EACH_ROW = 64 };

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

/* Among the variants that stay for the problem, the one whose class and layout score best. */
static const kt_variant *best_class(const kt_planner *p, const kt_problem *problem,
                                    const kt_cells *cells, double decode_share) {
    const kt_variant *best = NULL;
    double best_score = INFINITY;

    for (size_t i = 0; i < kt_registry_count(p->registry); i++) {
        const kt_variant *v = kt_registry_at(p->registry, i);
        double score;
        if (v->op != problem->op || kt_planner_refuses(p, v) || !takes_every_m(p, problem, v))
            continue;
        score = kt_map_score(p, problem, p->usual_threads, cells, kt_layout_of(v), v->bits,
                             decode_share);
        if (score == INFINITY) continue;
        if (!best || score < best_score * (1 - 1e-9) ||
            (score <= best_score * (1 + 1e-9) && kt_variant_preferred(v, best))) {
            best = v;
            best_score = score;
        }
    }
    return best;
}

kt_status kt_bits_choose(kt_planner *p, const kt_problem *problem, double decode_share,
                         const char **bits, kt_err *err) {
    const kt_table *table = p->table;
    const kt_variant *best;
    kt_cells cells;
    kt_status st;

    *bits = NULL;
    st = kt_cells_gather(p, problem, p->usual_threads, KT_M_DENSE, &cells, err);
    if (st != KT_OK) return st;
    best = best_class(p, problem, &cells, decode_share);
    if (!best && table) { /* rows that name no class which takes every m: as if there were none */
        p->table = NULL;
        st = kt_cells_gather(p, problem, p->usual_threads, KT_M_DENSE, &cells, err);
        if (st == KT_OK) best = best_class(p, problem, &cells, decode_share);
        p->table = table;
        if (st != KT_OK) return st;
    }
    if (!best)
        return kt_fail(
            err, KT_E_UNSUPPORTED,
            "deterministic: no class of bits has a usable variant of %s with %s weights "
            "and %s activations, n=%lld k=%lld, for every m; 'kttune list variants' says "
            "what each one needs",
            kt_op_name(problem->op), kt_weight_format_name(problem->weights),
            kt_act_format_name(problem->acts), (long long)problem->n, (long long)problem->k);
    *bits = best->bits;
    return KT_OK;
}
