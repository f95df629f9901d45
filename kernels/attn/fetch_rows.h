/* Rows of the block to come, asked for in doses. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_ATTN_FETCH_ROWS_H
#define KT_ATTN_FETCH_ROWS_H

#include "kernels/attn/attn_walk.h"
#include "kernels/simd/inline.h"

/* Keys or values of the block after, some rows with every group of products: what is asked for
 * in a burst is waited for in one (4096 keys, cold: 525 us with all of it among the scores, 418
 * us like this). */
typedef struct fetch {
    const uint8_t *from; /* the row that comes next */
    int64_t ld, bytes;
    int64_t left, pace; /* rows; of them with each group */
    int is_near;
} fetch;

/* groups: how many there will be. */
KT_INLINE fetch fetch_from(const kt_attn_next *next, int64_t groups) {
    return (fetch){.from = next->rows,
                   .ld = next->ld,
                   .bytes = next->bytes,
                   .left = next->rows ? KT_ATTN_BLOCK : 0,
                   .pace = (KT_ATTN_BLOCK + groups - 1) / groups,
                   .is_near = next->is_near};
}

KT_INLINE void fetch_rows(fetch *f) {
    for (int64_t n = 0; n < f->pace && f->left > 0; n++, f->left--, f->from += f->ld)
        for (int64_t x = 0; x < f->bytes; x += 64) kt_fetch_line(f->from + x, f->is_near);
}

#endif
