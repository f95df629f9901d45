/* The correctness gate of choices for a device: nothing is timed there before it has computed right
 * results, either. SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_GATE_H
#define KT_TUNER_DEVICE_GATE_H

#include "dispatch/device/device.h"
#include "dispatch/device/device_choice.h"

/* Run the choice on a job of the same formats with few outputs, inputs and experts, one of which no
 * row chooses, for odd numbers of rows, into poisoned memory; compare with double precision.
 * *error: the relative error (L2), the largest. KT_E_MISMATCH: over what rows of its encoding may
 * lose (bfloat16 1 %, INT8 3 %, E4M3 8 %), or not a number. Other errors are the device's. */
kt_status kt_device_gate(kt_device *d, const kt_device_job *job, const kt_device_choice *choice,
                         int64_t rows, uint64_t seed, double *error, kt_err *err);

#endif
