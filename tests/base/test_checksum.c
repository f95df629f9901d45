/* Checksums find every small damage. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"
#include "base/rng.h"

Test(checksum, sees_every_bit_and_length) {
    static const size_t lengths[] = {1, 7, 8, 63, 64, 65, 127, 200, 1000};
    uint8_t data[1001];
    kt_rng rng;

    kt_rng_seed(&rng, 5);
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)kt_rng_u64(&rng);
    for (size_t n = 0; n < sizeof lengths / sizeof *lengths; n++) {
        const uint64_t sum = kt_checksum(data, lengths[n]);
        cr_expect_neq(kt_checksum(data, lengths[n] - 1), sum);
        cr_expect_neq(kt_checksum(data, lengths[n] + 1), sum);
        for (size_t bit = 0; bit < 8 * lengths[n]; bit++) {
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            cr_expect_neq(kt_checksum(data, lengths[n]), sum, "bit %zu of %zu bytes", bit,
                          lengths[n]);
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

Test(checksum, zeros_and_order_count) {
    static const uint8_t zeros[256];
    uint8_t a[128], b[128];

    for (size_t n = 1; n < sizeof zeros; n++)
        cr_expect_neq(kt_checksum(zeros, n), kt_checksum(zeros, n - 1), "%zu zeros", n);
    for (size_t i = 0; i < sizeof a; i++) a[i] = (uint8_t)i;
    memcpy(b, a + 64, 64);
    memcpy(b + 64, a, 64);
    cr_expect_neq(kt_checksum(a, sizeof a), kt_checksum(b, sizeof b));
}

/* Files hold these numbers: other ones would make every packed folder a damaged one. */
Test(checksum, is_the_same_for_good) {
    uint8_t data[100];

    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)(3 * i);
    cr_expect_eq(kt_checksum(data, 0), UINT64_C(0x8e847314e69e9e05), "0x%llx",
                 (unsigned long long)kt_checksum(data, 0));
    cr_expect_eq(kt_checksum(data, sizeof data), UINT64_C(0x742fae7b5b97182c), "0x%llx",
                 (unsigned long long)kt_checksum(data, sizeof data));
}
