/* What a choice for a device is expected to take, before anything runs: to leave out what cannot
 * win, and as the pretended clock of devices that have none.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_PRIOR_H
#define KT_TUNER_DEVICE_PRIOR_H

#include "dispatch/device/device.h"
#include "dispatch/device/device_choice.h"

/* Nanoseconds of one call: the larger of bytes by bandwidth and padded products by rate, over the
 * part of the multiprocessors that its waves of blocks fill. Rates are of no GPU in particular:
 * only the order counts. */
double kt_device_prior_ns(const kt_device_choice *choice, const kt_device_job *job, int64_t rows,
                          int multiprocessors);

#endif
