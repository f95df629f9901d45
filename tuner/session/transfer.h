/* How well what was measured answers for what was not: decisions are left out of a table, the plan chooses
 * from the rest, and the journal's samples of the left-out cell say what that choice would have cost.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_TRANSFER_H
#define KT_TUNER_TRANSFER_H

#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/space/cell.h"
#include "tuner/store/journal.h"

typedef struct kt_transfer_regret {
    int n;       /* cells */
    int unknown; /* of them, those whose choice was never timed there: counted as KT_TRANSFER_UNKNOWN */
    double geomean;                /* of time / time of the decided winner, less 1 */
    double p95, max;               /* likewise */
    char worst[KT_CELL_KEY_BYTES]; /* the cell of max; "" where max is 0 */
    char chosen[64];               /* what the plan chose there */
} kt_transfer_regret;

/* Only what the roofline gave up beforehand is never timed; it does so at half as long again. */
#define KT_TRANSFER_UNKNOWN 0.5

typedef struct kt_transfer {
    kt_transfer_regret
        bucket;              /* one m bucket has no row: its neighbours and other matrices answer */
    kt_transfer_regret rows; /* the same, and no other matrix has a row for this m either */
    kt_transfer_regret shape;     /* no row of this matrix: the nearest shape answers */
    kt_transfer_regret heuristic; /* no table at all: the roofline answers */
} kt_transfer;

/* Replay the newest decision of every cell in the journals (borrowed). Journals of several machines
 * are replayed machine by machine, each by its own rows, ceilings and variants, and the figures are
 * those of all their cells. Choices never slower than the decided one count as regret 0. registry:
 * the variants of this machine; cells decided for others are left out. n = 0 where nothing could be
 * asked (a single shape). */
kt_status kt_transfer_measure(const kt_registry *registry, const kt_journal *const *journals,
                              int n_journals, kt_transfer *out, kt_err *err);

/* From ratios of times (at least 1): the figures of kt_transfer_regret but worst and chosen. Sorts the ratios. */
void kt_transfer_figures(double *ratios, int n, kt_transfer_regret *out);

#endif
