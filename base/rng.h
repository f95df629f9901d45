/* Small deterministic random numbers (splitmix64 seeding, xoshiro256++). SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_BASE_RNG_H
#define KT_BASE_RNG_H

#include <stdint.h>

typedef struct kt_rng {
    uint64_t s[4];
} kt_rng;

void kt_rng_seed(kt_rng *rng, uint64_t seed);
uint64_t kt_rng_u64(kt_rng *rng);
uint64_t kt_rng_below(kt_rng *rng, uint64_t n); /* unbiased, n > 0 */
double kt_rng_double(kt_rng *rng);              /* [0, 1), 53 bits */
float kt_rng_uniform(kt_rng *rng, float lo, float hi);
float kt_rng_normal(kt_rng *rng); /* mean 0, variance 1 */

#endif
