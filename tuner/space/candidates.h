/* Contenders of a cell: usable variants times their configurations, pruned by the roofline.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CANDIDATES_H
#define KT_TUNER_CANDIDATES_H

#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/space/cell.h"

#define KT_CONTENDER_NAME_BYTES 176

typedef struct kt_contender {
    kt_choice choice;
    double bound_ns;                    /* roofline lower bound of one call */
    char name[KT_CONTENDER_NAME_BYTES]; /* "stem@version{rows=4}" */
} kt_contender;

typedef struct kt_contenders {
    kt_contender *list; /* owned */
    int n, capacity;
    int n_pruned;      /* would have been accepted, but cannot win by the roofline */
    int default_index; /* what runs without tuning */
} kt_contenders;

/* Who is not worth a race. */
typedef struct kt_prune {
    double ratio;       /* > 0: whose bound exceeds the best one's by this factor goes */
    double class_ratio; /* > 0: the best variant of each class of bits that deterministic plans may
                           keep stays up to this factor */
} kt_prune;

/* Every usable variant and configuration that accepts the cell but those that are pruned; the
 * default and libraries (whose instructions are not known from their descriptor) stay. standard
 * is the default, keep (may be NULL) another one to spare. KT_E_UNSUPPORTED when nothing accepts
 * the cell. */
kt_status kt_contenders_make(const kt_registry *registry, const kt_tune_cell *cell,
                             const kt_ceilings *ceilings, const kt_choice *standard,
                             const kt_choice *keep, kt_prune rule, kt_contenders *out, kt_err *err);
void kt_contenders_deinit(kt_contenders *c); /* accepts a zeroed one */

/* Index of a choice, or -1. */
int kt_contenders_find(const kt_contenders *c, const kt_choice *choice);

char *kt_contender_name(const kt_choice *choice, char *out, size_t out_bytes);
int kt_choice_equal(const kt_choice *a, const kt_choice *b);

#endif
