/* xoshiro256++ (Blackman, Vigna 2019), seeded by splitmix64. SPDX-License-Identifier: Apache-2.0 */
#include "base/rng.h"

#include <math.h>

static uint64_t rotl(uint64_t x, int k) {
    return (x << k) | (x >> (64 - k));
}

void kt_rng_seed(kt_rng *rng, uint64_t seed) {
    for (int i = 0; i < 4; i++) {
        uint64_t z = (seed += 0x9e3779b97f4a7c15u);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        rng->s[i] = z ^ (z >> 31);
    }
}

uint64_t kt_rng_u64(kt_rng *rng) {
    uint64_t *s = rng->s;
    uint64_t result = rotl(s[0] + s[3], 23) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotl(s[3], 45);
    return result;
}

uint64_t kt_rng_below(kt_rng *rng, uint64_t n) {
    uint64_t limit = UINT64_MAX - UINT64_MAX % n;
    uint64_t x;
    do x = kt_rng_u64(rng);
    while (x >= limit);
    return x % n;
}

double kt_rng_double(kt_rng *rng) {
    return (double)(kt_rng_u64(rng) >> 11) * 0x1p-53;
}

float kt_rng_uniform(kt_rng *rng, float lo, float hi) {
    return lo + (hi - lo) * (float)kt_rng_double(rng);
}

/* Box-Muller, one of the pair. */
float kt_rng_normal(kt_rng *rng) {
    double u = 1.0 - kt_rng_double(rng);
    double v = kt_rng_double(rng);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
