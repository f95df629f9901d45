/* Correctness gates: compare a variant with the double reference. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_GATE_H
#define KT_KERNELS_GATE_H

#include <stddef.h>
#include <stdint.h>

#include "kt/variant.h"

/* Every op has `kt_status kt_<op>_gate(const kt_variant *, const kt_config *, const kt_problem *,
 * uint64_t seed, kt_gate_report *, kt_err *)`: run the variant on inputs made from the seed and
 * compare with the double reference. KT_OK = within the computed bound; KT_E_MISMATCH = wrong, and
 * the message has index, got, want and bound; KT_E_UNSUPPORTED = accepts() refused. The report may
 * be NULL. Gates allocate; they are for tests and the tuner. */
typedef struct kt_gate_report {
    double rel_rms;   /* sqrt(sum (got - want)^2 / sum want^2), 0 when bit-exact */
    char detail[256]; /* one line for people: what was compared, largest error over its bound */
} kt_gate_report;

/* Compare n results with want[i] +- bound[i] (NaN passes only for NaN) and fill the report (may be
 * NULL). The message names the variant, the problem, the seed and the first offender. */
kt_status kt_gate_compare(const kt_variant *v, const kt_problem *problem, uint64_t seed,
                          const float *got, const double *want, const double *bound, size_t n,
                          kt_gate_report *report, kt_err *err);

#endif
