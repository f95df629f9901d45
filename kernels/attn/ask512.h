/* Asking for the block of keys, or of values, that comes next, a few lines at a time, on AVX-512.
 *
 * A core has 10 to 24 buffers for lines that miss L1, and each prefetch holds one until L2 has the
 * line. A burst of hundreds waits for memory line by line; a few among other work wait for nothing.
 * In the order of their addresses, which the core's own prefetchers follow (NOTES.md).
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_ASK512_H
#define KT_ATTN_ASK512_H

#include "kernels/attn/attn512.h"

/* Lines of the block to come, one after the other. The inner loops ask for a constant number of
 * them with every 16 products, without a branch but the one on is_near: a loop in there costs a
 * tenth of the time. */
KT_INLINE void ask_lines(const char *at, const int n, const int is_near) {
    KT_EACH (i, n) kt_fetch_line(at + 64 * i, is_near);
}

/* Rows of the block to come that lie one behind the other, or NULL: then all are asked for at once.
 */
KT_INLINE const char *ask_from(const kt_attn_next *next) {
    if (!next->rows || next->ld == next->bytes) return (const char *)next->rows;
    for (int64_t r = 0; r < KT_ATTN_BLOCK; r++)
        for (int64_t x = 0; x < next->bytes; x += 64)
            kt_fetch_line(next->rows + r * next->ld + x, next->is_near);
    return NULL;
}

#endif
