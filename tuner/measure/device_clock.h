/* The time of work on a device, by the device's own clock and without the host's time to put it.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DEVICE_CLOCK_H
#define KT_TUNER_DEVICE_CLOCK_H

#include "dispatch/device/device_kernel.h"

typedef struct kt_device_clock {
    kt_device *d; /* borrowed */
    uint32_t *go; /* the host's, that the device sees */
    kt_device_kernel hold;
    kt_device_event *from, *to;
} kt_device_clock;

/* Puts the launches of call number `call` into the main stream. */
typedef kt_status kt_device_work(void *arg, int call, kt_err *err);

/* Memory is the device's: given back by kt_device_clock_stop, or ended with the device. */
kt_status kt_device_clock_start(kt_device *d, kt_device_clock *out, kt_err *err);
void kt_device_clock_stop(kt_device_clock *c); /* accepts a zeroed one */

/* Nanoseconds of one of n calls: the stream is held until all are put. What makes code or memory
 * when it is put for the first time must have been put before. */
kt_status kt_device_clock_time(kt_device_clock *c, kt_device_work *put, void *arg, int n,
                               double *ns, kt_err *err);

#endif
