/* Eight lanes, each taking every eighth word by h <- rotate((h ^ word) * odd): a bijection of h and
 * of the word, so that one changed word changes its lane for good. The lanes hide each other's
 * multiplication. SPDX-License-Identifier: Apache-2.0 */
#include "base/checksum.h"

#include <string.h>

#define LANES 8
#define ODD UINT64_C(0x9e3779b97f4a7c15) /* 2^64 over the golden ratio: no run of equal bits */

static uint64_t rotate(uint64_t x) {
    return x << 29 | x >> 35;
}

/* Words are little-endian in memory, as everything this program writes. */
static uint64_t word_at(const uint8_t *p) {
    uint64_t w;

    memcpy(&w, p, sizeof w);
    return w;
}

uint64_t kt_checksum(const void *data, size_t bytes) {
    const uint8_t *p = data;
    uint64_t lane[LANES], sum = bytes * ODD;
    uint8_t tail[8 * LANES] = {0};
    size_t left = bytes;

    for (int i = 0; i < LANES; i++) lane[i] = ODD * (uint64_t)(2 * i + 1);
    for (; left >= sizeof tail; left -= sizeof tail, p += sizeof tail)
        for (int i = 0; i < LANES; i++) lane[i] = rotate((lane[i] ^ word_at(p + 8 * i)) * ODD);
    if (left) memcpy(tail, p, left); /* its length is in the sum, so zeros behind it do no harm */
    for (int i = 0; i < LANES; i++) lane[i] = rotate((lane[i] ^ word_at(tail + 8 * i)) * ODD);
    for (int i = 0; i < LANES; i++) sum = rotate((sum ^ lane[i]) * ODD);
    return sum ^ sum >> 32;
}
