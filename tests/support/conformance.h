/* A device against the emulator: every function of kernels/cuda/kt_dev.h on random values.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TESTS_CONFORMANCE_H
#define KT_TESTS_CONFORMANCE_H

#include "dispatch/device/device.h"
#include "kernels/cuda/conformance_calls.h"

typedef struct kt_conform_result {
    const char *name; /* of the case */
    long n_values, n_wrong;
    double worst;    /* |got - want| / bound of the worst; 0 where bits are compared */
    char first[160]; /* the first that is wrong; "" = none */
} kt_conform_result;

/* What each case is called: the functions that it is about. */
const char *kt_conform_name(kt_conform_case which);

/* One case with the values of `seed`, a few blocks of them. The status is that of the device. */
kt_status kt_conform_check(kt_device *d, kt_conform_case which, uint64_t seed,
                           kt_conform_result *out, kt_err *err);

/* n words against those of the emulator; magnitude[i] is the sum of magnitudes behind want[i]. */
void kt_conform_compare(kt_conform_case which, const uint32_t *got, const uint32_t *want,
                        const uint32_t *magnitude, int n, kt_conform_result *out);

#endif
