/* How every read stream walks memory.
 *
 * Two linear streams side by side: the hardware prefetchers stop at the end of a 4 KiB page and
 * take a few misses to follow the next one, and a second stream keeps the memory busy meanwhile.
 * Measured on Zen 4: 3 to 10 % above one stream, with or without software prefetch; four streams
 * gain nothing more, and streams 256 MiB apart lose a third (they meet in the same memory banks),
 * hence the span.
 *
 * The parameter "prefetch" is how many bytes ahead every line is asked for by an instruction, 0 =
 * not at all. A Granite Rapids core reads 15.9 GB/s without and 18.9 with the best distance, so a
 * ceiling without it is none; which distance is best is another for other machines and thread
 * counts, so the probe tries them.
 *
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_KERNELS_PROBE_READ_WALK_H
#define KT_KERNELS_PROBE_READ_WALK_H

#include <stddef.h>

#include "kt/variant.h"

#define KT_READ_STEP ((size_t)256)      /* bytes of each stream per pass of the loop */
#define KT_READ_SPAN ((size_t)64 << 20) /* bytes halved between the two streams */
#define KT_READ_LINE ((size_t)64)

static const int32_t kt_read_ahead[] = {0, 2048, 4096, 8192, 32768};
static const kt_param kt_read_params[] = {{"prefetch", kt_read_ahead, 5, 0}};

/* Reads `bytes`, a multiple of KT_READ_STEP, from each of two places; ahead > 0: and asks for each
 * line so many bytes before it is read. */
typedef void kt_read_pair_fn(const char *p, const char *q, size_t bytes, size_t ahead);

/* What lies past the end is asked for as well: a prefetch of an inaccessible page does nothing. */
static inline void kt_read_ask(const char *p, const char *q, size_t ahead) {
    for (size_t i = 0; i < KT_READ_STEP; i += KT_READ_LINE) {
        __builtin_prefetch(p + ahead + i);
        __builtin_prefetch(q + ahead + i);
    }
}

/* kt_variant.probe for read_pair: returns the bytes read. */
static inline double kt_read_walk(const kt_probe_call *call, kt_read_pair_fn *read_pair) {
    const size_t total = call->bytes / (2 * KT_READ_STEP) * (2 * KT_READ_STEP);
    const size_t ahead = call->config ? (size_t)call->config->value[0] : 0;

    for (int64_t r = 0; r < call->repeats; r++)
        for (size_t at = 0, span; at < total; at += span) {
            const char *p = (const char *)call->data + at;
            span = total - at < KT_READ_SPAN ? total - at : KT_READ_SPAN;
            read_pair(p, p + span / 2, span / 2, ahead);
        }
    return (double)call->repeats * (double)total;
}

#endif
