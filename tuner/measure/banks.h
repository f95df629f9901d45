/* Cold banks of packed weights, shared by all contenders of one layout and kept from cell to cell.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_BANKS_H
#define KT_TUNER_BANKS_H

#include "kt/variant.h"
#include "tuner/measure/cold.h"

/* A model has three or four weight shapes, each in a layout of ours and in some of the libraries': with fewer
 * they would be packed again for every other cell. Memory is limited apart from this. */
#define KT_MAX_BANKS 24

typedef struct kt_banks {
    size_t rotation_bytes; /* set by the owner: kt_cold_rotation_bytes */
    int64_t deadline_ns;   /* set by the owner: no bank is begun that would take longer; 0 = none */
    double packed, pack_ns; /* bytes so far, and the time they took */
    double mapped, map_ns;  /* of them in fresh memory, and the time that its pages took */
    double again_ns; /* packing once more what had been given up, since memory was last taken */
    int n_reused;    /* banks that were made in an older one's memory */
    int64_t clock, cell_start; /* uses so far; those of the current cell are after cell_start */
    struct {
        kt_problem problem; /* m = 0 */
        char layout[32];
        int64_t used; /* clock of the last use; 0 = empty */
        kt_cold_bank bank;
    } entry[KT_MAX_BANKS];
    struct {
        kt_problem problem;
        char layout[32];
    } given_up[KT_MAX_BANKS]; /* whose memory others have now; a ring */
    int n_given_up;           /* so far */
} kt_banks;

/* KT_E_CANCELLED when it would not be ready before the deadline. Else: bank of synthetic weights for the problem in the variant's layout with at least min_slots slots.
 * Borrowed; valid until the cache needs room (KT_MAX_BANKS different ones later, or earlier when
 * memory is short), but never taken from those asked for since kt_banks_new_cell. */
kt_status kt_banks_get(kt_banks *banks, const kt_problem *problem, const kt_variant *variant,
                       int64_t min_slots, kt_cold_bank **out, kt_err *err);
/* What getting this bank would take: 0 when it is there. */
double kt_banks_cost_ns(const kt_banks *banks, const kt_problem *problem, const kt_variant *variant,
                        int64_t min_slots);
void kt_banks_new_cell(kt_banks *banks);
void kt_banks_deinit(kt_banks *banks);

#endif
