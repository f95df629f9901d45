/* From cells to one layout and a choice for every m. SPDX-License-Identifier: Apache-2.0 */
#include <math.h>
#include <string.h>

#include "base/err.h"
#include "dispatch/cost/cost.h"
#include "dispatch/plan/planner.h"

typedef struct builder {
    const kt_planner *planner;
    const kt_problem *problem;
    int threads;
    const kt_cells *cells;
    const char *layout, *bits; /* bits: of kt_map_time alone; NULL = any */
    kt_choice_map *map;
} builder;

static int same_choice(const kt_choice *a, const kt_choice *b) {
    return a->variant == b->variant && memcmp(&a->config, &b->config, sizeof a->config) == 0;
}

static int has_layout(const kt_choice *c, const char *layout) {
    return !layout || strcmp(kt_layout_of(c->variant), layout) == 0;
}

static int has_bits(const kt_choice *c, const char *bits) {
    return !bits || (c->variant->bits && strcmp(c->variant->bits, bits) == 0);
}

static double cost_at(const builder *b, const kt_variant *v, int64_t m) {
    kt_problem q = *b->problem;
    q.m = m;
    return kt_cost_ns(&q, v, &b->planner->ceilings, b->threads);
}

static double time_in(const kt_cell *cell, const kt_choice *c) {
    for (int i = 0; i < cell->n; i++)
        if (same_choice(&cell->candidate[i].choice, c)) return cell->candidate[i].time_ns;
    return -1;
}

/* Time of c at a bucket. Where the bucket's row does not list it, it lost there to everything that
 * is listed; its own time in the other cell, moved here along the roofline, may say more. */
static double time_at(const builder *b, const kt_cell *cell, const kt_choice *c,
                      const kt_cell *other) {
    double t = time_in(cell, c), slowest, moved, here, there;

    if (t >= 0) return t;
    slowest = cell->candidate[cell->n - 1].time_ns;
    here = cost_at(b, c->variant, cell->m);
    there = cost_at(b, c->variant, other->m);
    moved = there > 0 ? time_in(other, c) * here / there : 0;
    return moved > slowest ? moved : slowest;
}

/* --- layout --- */

/* Where classes are weighed, one that a bucket does not list may be much slower there than all
 * that are: tiles win with many rows and are never listed with one. Then what is expected of
 * both tells more. */
static double unlisted_time(const builder *b, const kt_cell *cell, const kt_choice *c,
                            const kt_cell *other) {
    const kt_candidate *best = &cell->candidate[0];
    double t = time_at(b, cell, c, other), of_best, of_choice;
    kt_problem q = *b->problem;

    if (!b->bits || time_in(cell, c) >= 0) return t;
    q.m = cell->m;
    of_best = kt_cost_expected_ns(&q, best->choice.variant, &b->planner->ceilings, b->threads);
    of_choice = kt_cost_expected_ns(&q, c->variant, &b->planner->ceilings, b->threads);
    return of_best > 0 ? fmax(t, best->time_ns * of_choice / of_best) : t;
}

/* Best time of a layout at cell i: listed there, or moved from the nearest cell that lists it. */
static double layout_time(const builder *b, int i, const char *layout) {
    for (int step = 0; step < b->cells->n; step++) {
        for (int side = -1; side <= 1; side += 2) {
            int j = i + side * step;
            if (j < 0 || j >= b->cells->n) continue;
            for (int c = 0; c < b->cells->cell[j].n; c++) {
                const kt_choice *choice = &b->cells->cell[j].candidate[c].choice;
                if (has_layout(choice, layout) && has_bits(choice, b->bits)) /* the fastest such */
                    return unlisted_time(b, &b->cells->cell[i], choice, &b->cells->cell[j]);
            }
        }
    }
    return INFINITY;
}

/* Mean over decode buckets and mean over prefill buckets of time relative to the best layout's,
 * weighted by decode_share. Relative, because otherwise the largest m alone would decide. */
static double layout_score(const builder *b, const char *layout, double decode_share) {
    double sum[2] = {0, 0}, weight[2] = {1 - decode_share, decode_share}, score = 0;
    int count[2] = {0, 0};

    for (int i = 0; i < b->cells->n; i++) {
        const kt_cell *cell = &b->cells->cell[i];
        int is_decode = cell->m <= KT_DECODE_ROWS;
        double best = cell->candidate[0].time_ns;
        sum[is_decode] += best > 0 ? layout_time(b, i, layout) / best : 1;
        count[is_decode]++;
    }
    for (int i = 0; i < 2; i++)
        if (count[i]) score += (count[1 - i] ? weight[i] : 1) * sum[i] / count[i];
    return score;
}

double kt_map_time(const kt_planner *p, const kt_problem *problem, int threads,
                   const kt_cells *cells, const char *layout, const char *bits, int64_t m) {
    const builder b = {p, problem, threads, cells, "", bits, NULL};
    const kt_cell *cell = cells->cell;
    int high = 0;
    double low_ns, high_ns;

    while (high < cells->n - 1 && cell[high].m < m) high++;
    high_ns = layout_time(&b, high, layout);
    if (cell[high].m <= m) return high_ns * (double)m / (double)cell[high].m;
    low_ns = layout_time(&b, high - 1, layout); /* the first cell is of one row */
    if (high_ns == INFINITY || low_ns == INFINITY) return INFINITY;
    return low_ns + (high_ns - low_ns) * (double)(m - cell[high - 1].m) /
                        (double)(cell[high].m - cell[high - 1].m);
}

/* The layout of least score; at equal scores the one whose first choice is preferred. */
static const char *choose_layout(const builder *b, double decode_share) {
    const kt_variant *best = NULL;
    double best_score = INFINITY;

    for (int i = 0; i < b->cells->n; i++) {
        for (int c = 0; c < b->cells->cell[i].n; c++) {
            const kt_variant *v = b->cells->cell[i].candidate[c].choice.variant;
            double score;
            if (best && strcmp(kt_layout_of(best), kt_layout_of(v)) == 0) continue;
            score = layout_score(b, kt_layout_of(v), decode_share);
            if (!best || score < best_score * (1 - 1e-9) ||
                (score <= best_score * (1 + 1e-9) && kt_variant_preferred(v, best))) {
                best = v;
                best_score = score;
            }
        }
    }
    return best ? kt_layout_of(best) : "";
}

/* --- map --- */

/* Index of the choice in the map, added if new; -1 when the map is full. */
static int map_index(kt_choice_map *map, const kt_choice *c) {
    for (int i = 0; i < map->count; i++)
        if (same_choice(&map->choice[i], c)) return i;
    if (map->count == KT_MAX_CHOICES) return -1;
    map->choice[map->count] = *c;
    return map->count++;
}

static int accepts_at(const builder *b, const kt_choice *c, int64_t m) {
    kt_problem q = *b->problem;
    q.m = m;
    return kt_variant_accepts(c->variant, &q, &c->config, NULL) == KT_OK;
}

/* A candidate of a segment [low, high] between two cells, with its times at both ends. */
typedef struct contender {
    kt_choice choice;
    double low_ns, high_ns;
    int64_t low_m, high_m;
} contender;

/* Linear in m. Kernels run the rows that do not fill their tile in a smaller one, so times grow
 * by the row; a staircase in passes over the weights predicts worse (kttune selfcheck: 3.0 %
 * regret against 1.3). */
static double contender_time(const contender *c, int64_t m) {
    if (c->high_m <= c->low_m) return c->high_ns;
    return c->low_ns +
           (c->high_ns - c->low_ns) * (double)(m - c->low_m) / (double)(c->high_m - c->low_m);
}

static int collect(const builder *b, const kt_cell *low, const kt_cell *high, contender *out) {
    const kt_cell *ends[2] = {low, high};
    int n = 0;

    for (int e = 0; e < 2; e++) {
        for (int i = 0; i < ends[e]->n; i++) {
            const kt_choice *c = &ends[e]->candidate[i].choice;
            int known = 0;
            for (int j = 0; j < n; j++) known |= same_choice(&out[j].choice, c);
            if (known || !has_layout(c, b->layout)) continue;
            out[n].choice = *c;
            out[n].low_ns = time_at(b, low, c, ends[e]);
            out[n].high_ns = time_at(b, high, c, ends[e]);
            out[n].low_m = low->m;
            out[n].high_m = high->m;
            n++;
        }
    }
    return n;
}

/* Between two cells nothing was measured. What beats the default at one end only won there by
 * something that belongs to that m; left to the line through both ends it does worse than no
 * table at all (replay of results/, all rows of an m left out: 0.48 % regret by the line, 0.32 %
 * by the roofline, 0.29 % so). A mask of those contenders; 0 when the default is not among them. */
static uint32_t doubtful(const builder *b, const contender *list, int n, int64_t m) {
    uint32_t mask = 0;
    kt_problem q = *b->problem;
    kt_cell cell;
    int standard = 0;

    if (n == 0 || m <= list[0].low_m || m >= list[0].high_m) return 0;
    q.m = m;
    kt_cell_by_roofline(b->planner, &q, b->threads, b->layout, &cell);
    while (cell.n > 0 && standard < n &&
           !same_choice(&list[standard].choice, &cell.candidate[0].choice))
        standard++;
    if (cell.n == 0 || standard == n) return 0;
    for (int i = 0; i < n; i++)
        if (i != standard &&
            (list[i].low_ns >= list[standard].low_ns || list[i].high_ns >= list[standard].high_ns))
            mask |= 1u << i;
    return mask;
}

/* Fastest contender at m that runs m rows and still has a place in the map; else, by the roofline,
 * anything of the layout that does. */
static int choose_at(const builder *b, contender *list, int n, int64_t m) {
    uint32_t tried = doubtful(b, list, n, m);
    kt_problem q = *b->problem;
    kt_cell cell;

    for (int round = 0; round < n; round++) {
        double best_ns = INFINITY;
        int best = -1, index;
        for (int i = 0; i < n; i++) {
            double t = contender_time(&list[i], m);
            if (!(tried >> i & 1) && t < best_ns) {
                best = i;
                best_ns = t;
            }
        }
        if (best < 0) break;
        tried |= 1u << best;
        if (!accepts_at(b, &list[best].choice, m)) continue;
        index = map_index(b->map, &list[best].choice);
        if (index >= 0) return index;
    }
    q.m = m;
    kt_cell_by_roofline(b->planner, &q, b->threads, b->layout, &cell);
    for (int i = 0; i < cell.n; i++) {
        int index = map_index(b->map, &cell.candidate[i].choice);
        if (index >= 0) return index;
    }
    for (int i = 0; i < b->map->count; i++)
        if (accepts_at(b, &b->map->choice[i], m)) return i;
    return -1;
}

/* Fill m in [from, to] out of the segment between two cells (which may be the same one). */
static kt_status fill(const builder *b, const kt_cell *low, const kt_cell *high, int64_t from,
                      int64_t to, kt_err *err) {
    contender list[2 * KT_CELL_CANDIDATES];
    int n = collect(b, low, high, list);

    for (int64_t m = from; m <= to; m++) {
        int index = choose_at(b, list, n, m);
        if (index < 0)
            return kt_fail(err, KT_E_UNSUPPORTED,
                           "%s %s n=%lld k=%lld: no variant with layout '%s' runs m=%lld",
                           kt_op_name(b->problem->op), kt_weight_format_name(b->problem->weights),
                           (long long)b->problem->n, (long long)b->problem->k, b->layout,
                           (long long)m);
        b->map->index[m] = (uint8_t)index;
    }
    return KT_OK;
}

kt_status kt_map_build(const kt_planner *p, const kt_problem *problem, int threads, int64_t max_m,
                       double decode_share, const kt_cells *cells, kt_choice_map *out,
                       const char **layout, kt_err *err) {
    builder b = {p, problem, threads, cells, "", NULL, out};
    const kt_cell *last = &cells->cell[cells->n - 1];

    if (max_m > KT_M_DENSE) max_m = KT_M_DENSE;
    memset(out, 0, sizeof *out);
    b.layout = *layout = choose_layout(&b, decode_share);
    /* The first cell is always m = 1. The buckets first: their winners take the places of the
     * map before anything between them. */
    for (int i = 0; i < cells->n; i++) {
        const kt_cell *cell = &cells->cell[i];
        if (cell->m <= max_m) KT_TRY(fill(&b, cell, cell, cell->m, cell->m, err));
    }
    for (int i = 1; i < cells->n; i++) {
        const kt_cell *low = &cells->cell[i - 1], *high = &cells->cell[i];
        int64_t to = high->m - 1 < max_m ? high->m - 1 : max_m;
        KT_TRY(fill(&b, low, high, low->m + 1, to, err));
    }
    if (last->m < max_m) KT_TRY(fill(&b, last, last, last->m + 1, max_m, err));
    out->index[0] = out->index[1];
    for (int64_t m = max_m + 1; m <= KT_M_DENSE; m++) out->index[m] = out->index[max_m];
    return KT_OK;
}
