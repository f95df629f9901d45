/* Shared by the files of the bench suites only. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_SUITE_IMPL_H
#define KT_TUNER_SUITE_IMPL_H

#include "dispatch/plan/plan.h"
#include "tuner/measure/rounds.h"
#include "tuner/session/suite.h"

#define KT_SUITE_ROTATION ((size_t)256 << 20) /* bytes of weights that take turns: cold ones */

/* What `kt bench --synthetic` said with one and with two threads. */
typedef struct kt_suite_model {
    bool is_known;    /* the rest is set */
    kt_status status; /* of the attempt, with its message */
    kt_err why;
    double prefill_rate, prefill_deviation, prefill_of_peak;
    double decode_rate, decode_deviation, decode_of_stream, decode_gbs, stream_gbs, peak_gops;
    double decode_waiting;
    int repetitions;
} kt_suite_model;

/* Figures of a row's placements; the first makes the row. */
typedef struct kt_suite_tally {
    double rate[KT_SUITE_PLACEMENTS], ceiling[KT_SUITE_PLACEMENTS];
} kt_suite_tally;

#define KT_SUITE_WORST 3

/* One cell of a row of SHAPES. */
typedef struct kt_suite_cell {
    int shape;
    int64_t m;
    kt_choice choice;
    kt_suite_row row;
    kt_suite_tally tally;
} kt_suite_cell;

/* What the first placement of a row finds out for the others. Plain bytes: variants are constant data, at the same
 * address in every child. */
typedef struct kt_suite_memory {
    bool has_choice;
    kt_choice choice;
    /* Of SHAPES: the cells that looked worst, each with what its placements said so far. */
    kt_suite_cell worst[KT_SUITE_WORST];
    int n_worst; /* 0 = unknown */
    char detail[224];
} kt_suite_memory;

/* One run of a suite; rows share it. */
typedef struct kt_suite_bench {
    const kt_registry *registry;
    const kt_fingerprint *machine;
    kt_suite_options options;
    kt_pool *pool;            /* of options.threads; of rows in children only */
    kt_suite_memory *memory;  /* of the row in hand */
    volatile int *in_library; /* shared with the parent: who is at work when time is up */
    kt_suite_model model[2];
} kt_suite_bench;

static inline size_t kt_suite_rotation(const kt_suite_bench *s) {
    return s->options.rotation ? s->options.rotation : KT_SUITE_ROTATION;
}

/* Each kind of row is a function: measure, fill row; KT_E_UNSUPPORTED = this machine or build cannot,
 * which is not a failure of ours. */
typedef kt_status (*kt_suite_measure)(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                                      kt_suite_row *row, kt_err *err);
kt_status kt_suite_experts(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err);
kt_status kt_suite_dense(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                         kt_suite_row *row, kt_err *err);
kt_status kt_suite_shapes(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                          kt_suite_row *row, kt_err *err);
kt_status kt_suite_scaling(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err);
kt_status kt_suite_neighbour(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                             kt_suite_row *row, kt_err *err);
kt_status kt_suite_models(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                          kt_suite_row *row, kt_err *err);
kt_status kt_suite_accuracy(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                            kt_suite_row *row, kt_err *err);

/* `run` on a pool of spec->threads threads, or of one, that is its own. KT_E_UNSUPPORTED where the
 * machine has fewer cores. */
typedef kt_status kt_suite_work(kt_suite_bench *s, kt_pool *pool, const kt_suite_spec *spec,
                                double seconds, kt_suite_row *row, kt_err *err);
kt_status kt_suite_on_pool(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_suite_work *run, kt_err *err);

kt_status kt_suite_kept(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                        kt_suite_row *row, kt_err *err);

kt_status kt_suite_of_rows(kt_suite_bench *s, const kt_suite_spec *spec, double seconds,
                           kt_suite_row *row, kt_err *err);

/* The row in a process of its own, which is ended when it takes longer than options.row_limit:
 * KT_E_UNSUPPORTED when a library was at work then, KT_E_INTERNAL when we were. */
kt_status kt_suite_in_child(kt_suite_measure measure, kt_suite_bench *s, const kt_suite_spec *spec,
                            double seconds, kt_suite_row *row, kt_err *err);

/* The fastest correct variant for this problem among those of a registry, by the tuner's own race; s->memory's if it
 * has one. */
kt_status kt_suite_pick(kt_suite_bench *s, const kt_registry *registry, const kt_problem *problem,
                        int threads, kt_choice *out, kt_err *err);
kt_status kt_suite_encoder(const kt_suite_bench *s, const kt_registry *registry,
                           const kt_problem *problem, int threads, kt_choice *out, kt_err *err);
/* What serves an operation that has no cells: norms, routers. */
kt_status kt_suite_simple(const kt_suite_bench *s, const kt_problem *problem, int threads,
                          kt_choice *out, kt_err *err);
/* With the activation encoding that a plan with these variants would take. */
kt_problem kt_suite_problem(const kt_registry *registry, const kt_fingerprint *machine,
                            const kt_suite_spec *spec);

/* Our own variants within an instruction set: libraries choose their instructions themselves. The caller
 * destroys the registry, then frees the table. */
kt_status kt_suite_own(kt_isa isa, const kt_variant ***table, kt_registry **out, kt_err *err);

/* Rounds of contenders 0 .. n-1 until the time is spent, at least two. */
kt_status kt_suite_rounds(const kt_suite_bench *s, const kt_stopwatch *watch, int n, double seconds,
                          kt_samples *samples, kt_err *err);

/* The time of x over the time of y on this placement, into row->measured and what stands beside it. */
void kt_suite_ratio(const kt_samples *samples, int x, int y, kt_suite_row *row);

/* One more placement's figures for a row; the first makes the row. */
void kt_suite_add(kt_suite_tally *tally, kt_suite_row *row, const kt_suite_row *placement);

#endif
