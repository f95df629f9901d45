/* Signs that somebody else used our cores: involuntary context switches and stolen time.
 * SPDX-License-Identifier: Apache-2.0 */
#ifndef KT_TUNER_DISTURBANCE_H
#define KT_TUNER_DISTURBANCE_H

#include <stdint.h>

typedef struct kt_disturbance {
    int stat_fd;             /* /proc/stat, kept open; -1 = not readable */
    int whole_process;       /* count the switches of all threads, not only the caller's */
    int64_t stolen, read_ns; /* what /proc/stat said, and when */
} kt_disturbance;

/* n_threads: how many threads the measured work uses; 1 looks at the calling thread alone. */
void kt_disturbance_init(kt_disturbance *d, int n_threads);
void kt_disturbance_deinit(kt_disturbance *d);

/* A count that grows by one per involuntary switch and per stolen tick. Costs a microsecond; stolen ticks,
 * of which there are 100 a second at most, are looked up every few milliseconds only. */
int64_t kt_disturbance_count(kt_disturbance *d);

#endif
