/* Measuring the machine: read bandwidth, cache knee, peak of each ISA, noise.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_CEILINGS_H
#define KT_TUNER_CEILINGS_H

#include <stdbool.h>

#include "base/buffer.h"
#include "dispatch/registry/registry.h"
#include "dispatch/topology/topology.h"
#include "tuner/measure/timer.h"

#define KT_CURVE_POINTS 12

typedef struct kt_machine_report {
    kt_ceilings ceilings;
    kt_timer timer;
    kt_pages pages; /* what the large buffers got */
    int n_points;   /* read bandwidth of one thread over the footprint */
    struct {
        size_t bytes;
        double gbs;
    } curve[KT_CURVE_POINTS];
    int32_t stream_ahead[2]; /* bytes of prefetch with which one thread, all threads read fastest */
    double seconds;          /* the measurement took */
} kt_machine_report;

/* Fill out; at most 8 s, 3 s when quick. Uses the registry's KT_OP_PROBE variants. */
kt_status kt_ceilings_measure(const kt_registry *registry, const kt_topology *topology, bool quick,
                              kt_machine_report *out, kt_err *err);

/* Operations per second / 1e9 of a peak probe over about `ns` of time. */
double kt_probe_peak_gops(const kt_variant *v, int64_t ns);

#endif
