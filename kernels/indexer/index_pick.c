/* Radix selection: three passes count 11, 11 and 10 bits of the scores as ordered integers, each
 * among those that agree with the bits found so far; what is left are the score that is just
 * picked, and how many of its equals are. No sort: time is linear in n.
 * SPDX-License-Identifier: Apache-2.0 */
#include "kernels/indexer/index_pick.h"

#include <string.h>

#define BINS 2048

/* Larger scores are larger integers; NaN is 0, which no number is. */
static uint32_t ordered(float x) {
    uint32_t bits;

    x += 0.0f; /* -0 becomes 0 */
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* The bin, from the highest down, in which the rank-th number is; *rank becomes that inside it. */
static uint32_t find_bin(const int32_t count[BINS], int64_t *rank) {
    uint32_t bin = BINS - 1;

    while (bin > 0 && *rank > count[bin]) *rank -= count[bin--];
    return bin;
}

/* The integer of the rank-th highest score, rank from 1; *rank becomes how many of its equals are
 * among the rank highest. */
static uint32_t find_least(const float *score, int64_t n, int64_t *rank) {
    static const struct { int shift, bits; } passes[] = {{21, 11}, {10, 11}, {0, 10}};
    uint32_t found = 0;

    for (int p = 0; p < 3; p++) {
        const int shift = passes[p].shift, above = shift + passes[p].bits;
        const uint32_t mask = (1u << passes[p].bits) - 1;
        int32_t count[BINS] = {0};
        for (int64_t i = 0; i < n; i++) {
            const uint32_t x = ordered(score[i]);
            count[x >> shift & mask] += above == 32 || x >> (above & 31) == found;
        }
        found = found << passes[p].bits | find_bin(count, rank);
    }
    return found;
}

void kt_index_pick(const float *score, int64_t n, int64_t count, int32_t *picked) {
    int64_t equals = count, at = 0;
    uint32_t least;

    if (count == 0) return;
    least = find_least(score, n, &equals);
    for (int64_t i = 0; i < n && at < count; i++) {
        const uint32_t x = ordered(score[i]);
        if (x < least || (x == least && equals-- <= 0)) continue;
        picked[at++] = (int32_t)i;
    }
}
