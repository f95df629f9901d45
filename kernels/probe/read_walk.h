/* How every read stream walks memory.
 *
 * Two linear streams side by side: the hardware prefetchers stop at the end of a 4 KiB page and take a
 * few misses to follow the next one, and a second stream keeps the memory busy meanwhile. Measured on
 * Zen 4: 3 to 10 % above one stream, with or without software prefetch; four streams gain nothing more,
 * and streams 256 MiB apart lose a third (they meet in the same memory banks), hence the span.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_PROBE_READ_WALK_H
#define KT_KERNELS_PROBE_READ_WALK_H

#include <stddef.h>

#include "kt/variant.h"

#define KT_READ_STEP ((size_t)256)      /* bytes of each stream per pass of the loop */
#define KT_READ_SPAN ((size_t)64 << 20) /* bytes halved between the two streams */

/* Reads `bytes`, a multiple of KT_READ_STEP, from each of two places. */
typedef void kt_read_pair_fn(const char *p, const char *q, size_t bytes);

/* kt_variant.probe for read_pair: returns the bytes read. */
static inline double kt_read_walk(const kt_probe_call *call, kt_read_pair_fn *read_pair) {
    size_t total = call->bytes / (2 * KT_READ_STEP) * (2 * KT_READ_STEP);

    for (int64_t r = 0; r < call->repeats; r++)
        for (size_t at = 0, span; at < total; at += span) {
            const char *p = (const char *)call->data + at;
            span = total - at < KT_READ_SPAN ? total - at : KT_READ_SPAN;
            read_pair(p, p + span / 2, span / 2);
        }
    return (double)call->repeats * (double)total;
}

#endif
