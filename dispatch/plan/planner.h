/* Shared by the files of this folder only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_DISPATCH_PLANNER_H
#define KT_DISPATCH_PLANNER_H

#include <math.h>
#include <string.h>

#include "dispatch/plan/plan.h"

#define KT_MAX_CELLS 32
#define KT_CELL_CANDIDATES 8

/* Something that could run a cell, and how long it takes. */
typedef struct kt_candidate {
    kt_choice choice;
    double time_ns;
} kt_candidate;

typedef enum kt_cell_source {
    KT_CELL_EXACT,   /* a row of the table */
    KT_CELL_NEAR,    /* the row of the nearest shape, scaled by the roofline */
    KT_CELL_ROOFLINE /* no row at all: estimate, widest instruction set */
} kt_cell_source;

/* What is known about one m bucket of a problem. */
typedef struct kt_cell {
    int64_t m;
    kt_cell_source source;
    int n; /* candidates, fastest first */
    kt_candidate candidate[KT_CELL_CANDIDATES];
} kt_cell;

/* The m buckets of one problem, ascending. Buckets inside the tuned range that have no row of their
 * own are left out: their neighbours answer for them. */
typedef struct kt_cells {
    int n;
    kt_cell cell[KT_MAX_CELLS];
    int tuned, untuned; /* buckets with and without a row; tuned + untuned = buckets up to max_m */
    int between;        /* untuned ones that tuned neighbours answer for */
    int guessed;        /* untuned ones that are worth a warning */
    const kt_table_row *nearest; /* a row that answered for another shape, or NULL */
} kt_cells;

struct kt_planner {
    const kt_registry *registry; /* borrowed */
    const kt_table *table;       /* borrowed; NULL = none, or refused */
    kt_choice *row_choice;       /* [table->n_rows]; variant NULL = the row is ignored */
    kt_ceilings ceilings;
    char microarch[24]; /* the machine's */
    kt_log log;
    char command[KT_ERR_SIZE]; /* what a user types to get the missing rows */
    char trouble[KT_ERR_SIZE]; /* what is wrong with the table as a whole; "" = nothing */
    int has_warned;
    int trusts_rows;   /* whatever layers say of them */
    int is_exact;      /* kt_planner_prefer_exact */
    int keeps_bits;    /* kt_planner_keep_bits */
    int usual_threads; /* that classes are chosen for, whatever number runs */
    const char *bits;  /* while a problem is resolved: the only class that counts; NULL = any */
    kt_plan_totals totals;
};

/* KT_E_UNSUPPORTED when no usable variant accepts the problem at some bucket. */
kt_status kt_cells_gather(const kt_planner *p, const kt_problem *problem, int threads,
                          int64_t max_m, kt_cells *out, kt_err *err);

/* Candidates by the roofline alone for problem->m: per layout the fastest, at equal times the
 * preferred one; without a rank only where no variant has one. layout NULL = any. */
void kt_cell_by_roofline(const kt_planner *p, const kt_problem *problem, int threads,
                         const char *layout, kt_cell *out);

/* A variant's parameters for m rows where nothing was measured: the initial ones, but for those
 * that machines of this microarchitecture were measured to want otherwise (plan_defaults.c). */
kt_config kt_config_default(const kt_variant *v, const char *microarch, int64_t m);

/* Peaks of a machine that was not probed, as far as they were measured on another of this
 * microarchitecture and differ from the general estimate (dispatch/cost/cost.c); known ones stay.
 */
void kt_ceilings_default(kt_ceilings *c, const char *microarch);

/* Did the layers deny this row what it promises (kt_planner_trust_rows)? Asked are those whose
 * experts have rows nearest to the row's m. */
int kt_layer_denies(const kt_table *table, const kt_table_row *row);

/* Does a come before b where nothing else tells them apart? Exact arithmetic first, then ours
 * before a library's, then the widest instruction set, then the higher rank. */
int kt_variant_preferred(const kt_variant *a, const kt_variant *b);

/* Buckets up to this many rows are decoding, the rest is prefill: eight sequences that choose the
 * same expert, or a dense layer for eight users. */
#define KT_DECODE_ROWS 8

/* Time of m rows by the fastest of what has this layout and this class of bits, NULL = any:
 * listed at m, or moved from the nearest cell that lists it, or on the line between two cells;
 * INFINITY when no cell knows any. */
double kt_map_time(const kt_planner *p, const kt_problem *problem, int threads,
                   const kt_cells *cells, const char *layout, const char *bits, int64_t m);

/* The class for a problem of a planner that keeps bits: the fastest of those that have a variant
 * for every m, on the usual number of threads and up to the largest m, so that neither changes
 * it. */
kt_status kt_bits_choose(kt_planner *p, const kt_problem *problem, double decode_share,
                         const char **bits, kt_err *err);
/* Of two encodings of activations the one whose best class takes less time; b when they are
 * equal, or when neither has a class. */
kt_act_format kt_bits_acts(kt_planner *p, const kt_problem *problem, kt_act_format a,
                           kt_act_format b);
/* The number of threads that decides where several choices differ in their bits. */
int kt_planner_threads(const kt_planner *p, int threads);

/* Layout and dense map from the cells. */
kt_status kt_map_build(const kt_planner *p, const kt_problem *problem, int threads, int64_t max_m,
                       double decode_share, const kt_cells *cells, kt_choice_map *out,
                       const char **layout, kt_err *err);

/* With exact activations attention keeps off kernels that round queries and weights to 8 bits, and
 * products off those that round weights once more; a planner that keeps bits off variants that
 * promise none, and off other classes than the one that was chosen. */
static inline int kt_planner_refuses(const kt_planner *p, const kt_variant *v) {
    if (p->keeps_bits && !kt_variant_is_stable(v)) return 1;
    if (p->bits && strcmp(p->bits, v->bits) != 0) return 1;
    return p->is_exact && (v->numerics == KT_NUM_ACTS8 || v->numerics == KT_NUM_REQUANT);
}

/* How far two sizes are apart, as a factor; sizes that are not used count as 1. */
static inline double kt_log_ratio(int64_t a, int64_t b) {
    return fabs(log((double)(a > 0 ? a : 1)) - log((double)(b > 0 ? b : 1)));
}

static inline const char *kt_layout_of(const kt_variant *v) {
    return v->layout ? v->layout : "";
}

#endif
