/* Slots for the states of recurrent layers: those of running sequences, and snapshots that belong
 * to the end of a page, where later sequences may begin. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_RUNTIME_KV_STATE_H
#define KT_RUNTIME_KV_STATE_H

#include <stdbool.h>

#include "base/buffer.h"

#define KT_STATE_NONE (-1)

/* What else keeps pages and states by the same numbers, and is told of what happens to them beside
 * steps. has_all: it has all of them, and the memory here is never written. */
typedef struct kt_kept_elsewhere {
    void *arg; /* borrowed; NULL = nothing else does */
    bool has_all;
    void (*copy_page)(void *arg, uint32_t from, uint32_t to, int64_t tokens);
    void (*copy_state)(void *arg, int32_t from, int32_t to);
    void (*clear_state)(void *arg, int32_t slot);
    /* All of a page to memory of the host, kt_kv_page_bytes, and back. The memory is used until the
     * work is waited for; order is that of the calls, and steps come behind them. NULL =
     * neither. */
    void (*save_page)(void *arg, uint32_t page, uint8_t *to);
    void (*load_page)(void *arg, uint32_t page, uint8_t *from);
} kt_kept_elsewhere;

/* Not thread-safe. Slots are f32 [floats], 64-byte aligned. */
typedef struct kt_states {
    int64_t n, floats, n_pages;
    kt_buffer buffer;
    int32_t *free; /* owned: [n_free] slots, the next one last */
    int64_t n_free, n_kept;
    int32_t *page;          /* owned: [n] whose snapshot it is, or KT_STATE_NONE */
    int32_t *older, *young; /* owned: [n] neighbours among the snapshots */
    int32_t *of_page;       /* owned: [n_pages] its snapshot, or KT_STATE_NONE */
    int32_t oldest, youngest;
    kt_kept_elsewhere elsewhere;
} kt_states;

/* n slots of so many floats, snapshots of pages below n_pages. Memory is taken when it is written.
 */
kt_status kt_states_init(kt_states *s, int64_t n, int64_t floats, int64_t n_pages, kt_err *err);
void kt_states_deinit(kt_states *s); /* accepts a zeroed one */

float *kt_states_at(const kt_states *s, int32_t slot);
/* Make a slot's state another one's, or zeros. */
void kt_states_copy(const kt_states *s, int32_t from, int32_t to);
void kt_states_clear(const kt_states *s, int32_t slot);
int64_t kt_states_room(const kt_states *s); /* free slots and snapshots */
/* A slot of any content; that of the longest unused snapshot if none is free. KT_STATE_NONE = every
 * slot is in use. */
int32_t kt_states_take(kt_states *s);
void kt_states_give(kt_states *s, int32_t slot); /* accepts KT_STATE_NONE */
/* Make a taken slot the snapshot of a page that has none. */
void kt_states_keep(kt_states *s, int32_t slot, uint32_t page);
/* The snapshot of a page, used now; or KT_STATE_NONE. */
int32_t kt_states_use(kt_states *s, uint32_t page);
bool kt_states_has(const kt_states *s, uint32_t page);
/* Free the snapshot of a page, if it has one. */
void kt_states_drop(kt_states *s, uint32_t page);

#endif
