/* Weights that are cold by construction: many copies of the same packed bytes on distinct pages, so
 * that each call reads the next copy from memory. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_COLD_H
#define KT_TUNER_COLD_H

#include "base/buffer.h"
#include "dispatch/topology/topology.h"

typedef struct kt_cold_bank {
    kt_buffer buffer;    /* owned */
    size_t slot_bytes;   /* of the content */
    size_t stride;       /* whole pages */
    int64_t n_slots, at; /* at: the slot that comes next */
} kt_cold_bank;

/* Bytes that a rotation must span: four times the measured knee (or last-level cache), at least
 * 256 MiB, at most half of the memory that is available. */
size_t kt_cold_rotation_bytes(const kt_ceilings *ceilings, size_t llc_bytes);

/* The same for a model whose weights take model_bytes in all: a model that is smaller than the
 * rotation is served from the caches, so that is where it is timed from. */
size_t kt_cold_rotation_of_model(const kt_ceilings *ceilings, size_t llc_bytes, double model_bytes);

/* Room for max(min_slots, rotation_bytes / slot) slots, each then a copy of content (slot_bytes); content
 * NULL: the caller fills the first one and calls kt_cold_bank_copy. Refuses (KT_E_NOMEM) when that
 * exceeds half of the available memory. */
kt_status kt_cold_bank_create(const void *content, size_t slot_bytes, int64_t min_slots,
                              size_t rotation_bytes, kt_cold_bank *out, kt_err *err);
/* The same without content, in memory that an older bank leaves: pages that were touched once
 * are not paid for again. *memory is transferred; KT_E_INVALID, and it stays the caller's, when
 * it is too small. */
kt_status kt_cold_bank_create_in(kt_buffer *memory, size_t slot_bytes, int64_t min_slots,
                                 size_t rotation_bytes, kt_cold_bank *out, kt_err *err);
/* Copy the first slot into all others. */
void kt_cold_bank_copy(kt_cold_bank *bank);
void kt_cold_bank_destroy(kt_cold_bank *bank); /* accepts a zeroed bank */

/* The next slot, round and round. */
static inline const void *kt_cold_bank_next(kt_cold_bank *bank) {
    const char *slot = (const char *)bank->buffer.data + (size_t)bank->at * bank->stride;
    bank->at = bank->at + 1 == bank->n_slots ? 0 : bank->at + 1;
    return slot;
}

#endif
