/* The comparison of a device with the emulator, on devices that are the emulator, and on one that
 * is wrong. SPDX-License-Identifier: Apache-2.0 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda_kernel.h"
#include "tests/support/conformance.h"

static kt_device *open_emulated(uint32_t seed) {
    const kt_device_options o = {
        .class = "emulated", .threads = 2, .emulator = {.seed = seed, .races = true}};
    kt_device *d;
    kt_err err;
    cr_assert_eq(kt_device_open(&o, &d, &err), KT_OK, "%s", err.message);
    return d;
}

Test(conformance, the_emulated_device_is_the_emulator, .timeout = 60) {
    kt_device *d = open_emulated(9);

    for (int i = 0; i < KT_CONFORM_COUNT; i++) {
        kt_conform_result r;
        kt_err err;
        cr_assert_eq(kt_conform_check(d, (kt_conform_case)i, 7, &r, &err), KT_OK, "%s",
                     err.message);
        cr_expect_eq(r.n_wrong, 0, "%s: %s", r.name, r.first);
        cr_expect_gt(r.n_values, 1000);
    }
    kt_device_close(d);
}

/* Words of a result as a faulty GPU would give them: found, but for what rounding may do. */
Test(conformance, differences_are_found) {
    enum { BYTES = KT_CONFORM_THREADS * KT_CONFORM_OUT };
    static uint32_t got[BYTES], want[BYTES], sizes[BYTES];
    const float one = 1, far = 1 + 0x1p-18f, near = 1 + 0x1p-21f;

    for (int i = 0; i < KT_CONFORM_COUNT; i++) {
        const bool rounds = i == KT_CONFORM_EXP2 || i == KT_CONFORM_SILU ||
                            i == KT_CONFORM_EXPONENTIALS || i == KT_CONFORM_MMA_BF16 ||
                            i == KT_CONFORM_MMA_E4M3;
        kt_conform_result r = {.name = kt_conform_name((kt_conform_case)i)};
        for (int j = 0; j < BYTES; j++) got[j] = want[j] = sizes[j] = kt_bits_float(one);
        got[77] = kt_bits_float(i == KT_CONFORM_MMA_E4M3 ? 1 + 0x1p-10f : far);
        got[78] = kt_bits_float(near);
        kt_conform_compare((kt_conform_case)i, got, want, sizes, BYTES, &r);
        cr_expect_eq(r.n_wrong, i == KT_CONFORM_EXP2 || !rounds ? 2 : 1, "%s: %ld", r.name,
                     r.n_wrong);
        cr_expect_not_null(strstr(r.first, "block 0, thread 9, word 5"), "%s: %s", r.name, r.first);
        cr_expect(!rounds || r.worst > 1, "%s: %g", r.name, r.worst);
        got[77] = 0x7fc00000; /* not a number */
        r = (kt_conform_result){.name = r.name};
        kt_conform_compare((kt_conform_case)i, got, want, sizes, BYTES, &r);
        cr_expect_geq(r.n_wrong, 1, "%s", r.name);
    }
}

/* Every function that device code may use is called by the kernel that compares. */
Test(conformance, no_function_is_left_out) {
    const char *header = kt_cuda_source("kt_dev.h"), *kernel = kt_cuda_source("conformance.cu");
    int n = 0;

    for (const char *at = header; (at = strstr(at, "KT_DEVICE "));) {
        char name[64], call[66];
        const char *begin = strstr(at, " kt_"), *end = begin + 1 + strcspn(begin + 1, " (");
        at += 10;
        cr_assert_not_null(begin);
        if (*end != '(' || end - at > 60) continue; /* a type before the name */
        snprintf(name, sizeof name, "%.*s", (int)(end - begin - 1), begin + 1);
        snprintf(call, sizeof call, "%s(", name);
        n++;
        cr_expect_not_null(strstr(kernel, call), "conformance.cu does not call %s", name);
    }
    cr_expect_gt(n, 20, "%d functions found", n);
}
