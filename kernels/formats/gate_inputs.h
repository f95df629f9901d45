/* What the correctness gates of all GEMM-like ops share: adversarial weights and activations in
 * guarded memory, comparison with a bound, and a failure message that repeats the case.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GATE_INPUTS_H
#define KT_KERNELS_GATE_INPUTS_H

#include "base/guard_page.h"
#include "kernels/formats/gate.h"
#include "kt/variant.h"

/* Running totals over every element compared. Zero-initialise. */
typedef struct kt_gate_sums {
    int64_t compared;
    double error_sq, want_sq;
    double worst; /* largest |error| / bound; over 1 = refused */
} kt_gate_sums;

/* Totals as the public report (may be NULL). */
void kt_gate_finish(const kt_gate_sums *sums, kt_gate_report *report);

/* Names the run in failure messages. */
typedef struct kt_gate_run {
    const kt_variant *variant;
    const kt_config *config;
    const kt_problem *problem;
    uint64_t seed;
    const char *what; /* "c", "h", "out" */
} kt_gate_run;

/* Count one element; KT_E_MISMATCH with the full story when |got - want| exceeds bound or one of them alone is
 * not a number. */
kt_status kt_gate_element(const kt_gate_run *run, int64_t row, int64_t column, double got,
                          double want, double bound, kt_gate_sums *sums, kt_err *err);
/* The same story for a rule that has no number. */
kt_status kt_gate_refuse(const kt_gate_run *run, kt_err *err, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* A plain matrix whose memory ends at inaccessible pages. Zeroed = nothing. */
typedef struct kt_gate_matrix {
    kt_matrix matrix;
    kt_guard data, scales;
} kt_gate_matrix;

/* Rows follow six patterns in turn, so that every panel holds all: random codes with scales of
 * either sign; only extreme codes (-8 and 7, -128 and 127); heavy tails; zero scales under random
 * codes (in f16 every other one subnormal); one group that is not zero; the lowest code throughout. Sizes spread over four decades (sums
 * land on both sides of SiLU's bend) and stay small enough that a whole expert's output is finite. */
kt_status kt_gate_matrix_create(kt_weight_format format, int64_t n, int64_t k, uint64_t seed,
                                kt_gate_matrix *out, kt_err *err);
void kt_gate_matrix_destroy(kt_gate_matrix *w);

/* For FP8: a NaN code of either sign somewhere in every sixth row, those with heavy tails. Other formats stay
 * as they are. */
void kt_gate_matrix_spoil(kt_gate_matrix *w, uint64_t seed);

/* The same bits, or NaN both: which NaN comes out depends on the order of operands of an instruction. */
int kt_gate_same(const float *x, const float *y);

/* m encoded rows, stride bytes apart, the last one ending at an inaccessible page, and the same rows
 * decoded. Patterns in turn: normal; extremes of either sign; heavy tails; one outlier; zeros; all
 * the largest; groups of very different size, some zero. */
typedef struct kt_gate_acts {
    kt_guard rows;
    size_t stride;
    double *decoded; /* [m, k], owned */
} kt_gate_acts;

kt_status kt_gate_acts_create(kt_act_format format, int64_t m, int64_t k, uint64_t seed,
                              kt_gate_acts *out, kt_err *err);
void kt_gate_acts_destroy(kt_gate_acts *acts);

/* Does the variant take these formats, and does its own accepts() agree? */
kt_status kt_gate_accepts(const kt_variant *variant, const kt_problem *problem,
                          const kt_config *config, kt_err *err);

#endif
