/* Entries that stand for `ratio` tokens each (models_2026.md 3.5): channel by channel the mean of
 * the window's values c, weighted by the softmax of its gates g plus ape, a row per place.
 *
 * Windows may overlap (halves 2): of 2 dim channels the first half, A, counts in the entry of the
 * next window, the second, B, in its own; the first window has B alone. The softmax is formed
 * token by token with a running maximum, so a token's work does not depend on what comes with it,
 * and an open window is no more than three numbers a channel. Baseline code: the same bits on
 * every machine. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_ENTRIES_H
#define KT_KERNELS_ENTRIES_H

#include <stdbool.h>
#include <stdint.h>

/* Floats of a sequence's state: [halves][3][dim] largest gate, sum of weights (0 = empty) and
 * weighted values; first the entry that the present window ends, then (halves 2) the next one's.
 * Zeros where a sequence begins. */
static inline int64_t kt_pool_state_floats(int64_t dim, int64_t halves) {
    return halves * 3 * dim;
}

/* Rows of one sequence, the first at `position`.
 *
 * values, gates  f32 rows of halves * dim, ldv and ldg apart
 * ape            f32 [ratio, halves * dim]
 * state          as above; channels [channel_begin, channel_end) are read and written
 * out            f32 rows of dim, ldo apart: of rows that end a window its entry, of others
 *                nothing is written
 * Never fails, allocates nothing. Calls of other channels may run at the same time. */
typedef struct kt_pool_call {
    const float *values, *gates;
    int64_t ldv, ldg;
    const float *ape;
    float *state;
    float *out;
    int64_t ldo;
    int64_t dim, halves, ratio;
    int64_t position, rows;
    int64_t channel_begin, channel_end;
} kt_pool_call;
void kt_pool_rows(const kt_pool_call *call);

/* ---- where entries are kept ---- */

#define KT_ENTRY_PAGE 64 /* tokens of a page, which keeps the entries whose windows end in it */

/* Entries that have been made when `tokens` tokens are known. */
static inline int64_t kt_entries_of(int64_t tokens, int64_t ratio) {
    return ratio > 0 ? tokens / ratio : 0;
}
static inline bool kt_ends_window(int64_t position, int64_t ratio) {
    return (position + 1) % ratio == 0;
}
/* Rooms for entries in a page, and which one an entry has in page *page of its sequence. */
static inline int64_t kt_entry_rooms(int64_t ratio) {
    return ratio < KT_ENTRY_PAGE ? (KT_ENTRY_PAGE + ratio - 1) / ratio : 1;
}
static inline int64_t kt_entry_room(int64_t entry, int64_t ratio, int64_t *page) {
    const int64_t last = (entry + 1) * ratio - 1;

    *page = last / KT_ENTRY_PAGE;
    return last % KT_ENTRY_PAGE / ratio;
}

/* Floats that hold a row of k numbers as any cache does (kernels/attn/attn_common.h), its scale
 * behind them. */
static inline int64_t kt_packed_row_floats(int64_t k) {
    return (k + 1) / 2 + 1;
}

#endif
